"""What leaves the training: the artifact store, and later the versions that services read from it."""
