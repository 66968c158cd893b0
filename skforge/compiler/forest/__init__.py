"""Forests as arrays, their validation and their reference evaluation."""

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import PostTransform

# Pickles of earlier versions name these here.
__all__ = ["Forest", "PostTransform"]
