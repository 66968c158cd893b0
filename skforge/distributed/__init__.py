"""Predictions beyond one machine, on the engines that are there already.

Each adapter sends the model to the workers as a few bytes, without machine code; a
worker compiles it once, when its first rows come, for the CPU it runs on. What comes
back has the bits that one process would give, whatever the blocks, the workers, and
those of them that died on the way.

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
