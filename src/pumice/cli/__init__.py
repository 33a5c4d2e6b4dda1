"""Room: the command line, and the only reader of environment variables."""
