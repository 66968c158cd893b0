"""Search for the fastest schedule of a forest on a machine."""
