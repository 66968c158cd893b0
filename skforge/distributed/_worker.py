"""A per-process cache of models, so that each is loaded once for all tasks.

A worker gets the same artifact in every task and finds the model by its checksum.
Kernels are compiled with the first rows, for the CPU of this process.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from skforge.distributed._artifact import Artifact

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest

#: Maximum models in the cache; the least recently used is evicted first.
MOST_MODELS = 16

Key: TypeAlias = tuple[str, int | None]


class _Slot:
    """A cache entry; the first task that needs the model loads it."""

    __slots__ = ("lock", "model")

    def __init__(self) -> None:
        self.lock = Lock()
        self.model: CompiledForest | None = None


_slots: OrderedDict[Key, _Slot] = OrderedDict()
_lock = Lock()


def loaded(artifact: Artifact, n_jobs: int | None) -> CompiledForest:
    """Return the model of an artifact; all threads share one object per ``n_jobs``.

    Callers must not modify it.
    """
    key = (artifact.checksum, n_jobs)
    with _lock:
        slot = _slots.setdefault(key, _Slot())
        _slots.move_to_end(key)
        while len(_slots) > MOST_MODELS:
            _slots.popitem(last=False)
    with slot.lock:  # only tasks of the same model wait
        if slot.model is None:
            model = artifact.load()
            model.n_jobs = n_jobs
            slot.model = model
        return slot.model


def kept() -> list[str]:
    """Return the checksums of the cached models, least recently used first."""
    with _lock:
        return [checksum for (checksum, _), s in _slots.items() if s.model is not None]


def _after_fork_in_child() -> None:
    """Clear the cache: a thread of the parent may have held a lock."""
    global _lock
    _lock = Lock()
    _slots.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
