"""LLVM IR text for LIR."""
