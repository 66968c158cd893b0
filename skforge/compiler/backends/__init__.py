"""Emitters of machine code and the runtime beneath them."""
