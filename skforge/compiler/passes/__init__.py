"""The passes from one IR to the next: one file, one function ``run``."""
