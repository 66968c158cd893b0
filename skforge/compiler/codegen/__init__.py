"""Emitters: LLVM IR for CPUs, CUDA and HIP C++ for GPUs."""
