"""Everything of GPUs: code generation, layouts, passes, costs, and the runtime."""
