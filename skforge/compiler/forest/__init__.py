"""Forests as arrays, their validation and their reference evaluation."""

from skforge.compiler.forest.arrays import PostTransform
from skforge.compiler.forest.forest import Forest

# Files saved by earlier versions name these here.
__all__ = ["Forest", "PostTransform"]
