"""The text of GPU kernels, run on the CPU by g++."""
