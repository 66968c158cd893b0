"""C libraries, object files and wheels that need no Python to run."""
