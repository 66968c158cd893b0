"""Passes on the LIR of grids: for devices, and for their emulation on a CPU."""
