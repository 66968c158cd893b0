"""Tree ensembles in ONNX graphs."""

from skforge.compiler.frontends.onnx import model

__all__ = ["model"]
