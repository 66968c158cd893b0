"""Tree ensembles in ONNX graphs."""

from skforge.compiler.frontends.onnx import model as model
