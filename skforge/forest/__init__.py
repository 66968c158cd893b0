"""Forests as arrays, their validation and their reference evaluation."""
