"""Compile candidates, check them and time them."""
