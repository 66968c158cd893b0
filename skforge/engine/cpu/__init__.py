"""Machine code and threads on the CPU."""
