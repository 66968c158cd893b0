"""LIR as CUDA and HIP text, and the host's plan of launches."""
