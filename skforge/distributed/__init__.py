"""Predict on several machines with Dask, Spark or Ray.

Each adapter sends the model to the workers as bytes without machine code. A worker
compiles it once for its own CPU, when it gets its first rows. The results have the same
bits as in one process, regardless of blocks, workers and worker failures; only ONNX
graphs that add up answers answer each block as a batch of its own.

===================================== ==============================================
`skforge.distributed.dask.predict`    Dask arrays and data frames
`skforge.distributed.spark`           ``predict_udf``, and ``ForestTransformer`` for
                                      pipelines
`skforge.distributed.ray`             ``predict`` and ``Predictor`` for Ray Data
`skforge.distributed.pack`            the model as it is sent
===================================== ==============================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skforge.distributed._artifact import Artifact, pack

__all__ = ["Artifact", "pack"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("skforge.distributed._artifact"), name)
    if name in ("dask", "ray", "spark"):
        return import_module(f"skforge.distributed.{name}")
    raise AttributeError(f"module 'skforge.distributed' has no attribute {name!r}")
