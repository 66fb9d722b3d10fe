"""How every version came to be, and the proof of it: the commit log, replayed and kept."""
