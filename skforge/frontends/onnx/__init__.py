"""Tree ensembles in ONNX graphs."""

from skforge.frontends.onnx import model as model
