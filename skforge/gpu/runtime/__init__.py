"""GPU programs: compilers, memory, streams and launches."""
