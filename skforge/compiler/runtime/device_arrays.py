"""Tells arrays in a GPU's memory, and processes that cannot use one."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

#: DLPack's device numbers: CUDA, CUDA managed, ROCm; and those of host memory.
_DLPACK_GPUS = (2, 13, 10)

#: The id of the process that has used a GPU, if any has.
USED_BY: list[int] = []


def is_device_array(X: Any) -> bool:
    if isinstance(X, np.ndarray):
        return False
    kind = type(X)  # a frame would look for a column of that name, in 8 µs
    if hasattr(kind, "__dlpack_device__"):
        return int(X.__dlpack_device__()[0]) in _DLPACK_GPUS
    return hasattr(kind, "__cuda_array_interface__")


def on_device() -> ModuleType:
    """Return what computes with rows that lie in a GPU's memory."""
    return import_module("skforge.gpu.runtime.on_device")


def is_forked() -> bool:
    """Tell whether this process was forked from one that had used a GPU."""
    return bool(USED_BY) and USED_BY[0] != os.getpid()
