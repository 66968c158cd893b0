"""CUDA and HIP C++ text for LIR, and the host's launch plan."""
