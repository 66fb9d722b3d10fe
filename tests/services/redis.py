"""Session-scoped Redis."""
