"""LIR: scalars, vectors, buffers and structured control flow."""
