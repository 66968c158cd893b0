"""LIR as LLVM IR text."""
