"""``skforge.accelerate()``: programs that nobody edits, answered by kernels."""
