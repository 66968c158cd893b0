"""The models of a process: each is loaded once, whatever number of tasks asks for it.

A worker meets the same artifact in every task. It is known by its checksum, so that
neither the engine nor the task has to keep the compiled model; kernels compile on
the first rows, for the CPU of this process.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from skforge.distributed._artifact import Artifact

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest

#: Models a process keeps; the one that was asked for longest ago is forgotten first.
MOST_MODELS = 16

Key: TypeAlias = tuple[str, int | None]


class _Slot:
    """A model, or the place where the first task that needs it puts it."""

    __slots__ = ("lock", "model")

    def __init__(self) -> None:
        self.lock = Lock()
        self.model: CompiledForest | None = None


_slots: OrderedDict[Key, _Slot] = OrderedDict()
_lock = Lock()


def loaded(artifact: Artifact, n_jobs: int | None) -> CompiledForest:
    """Return the model of an artifact, the same object to every thread.

    Callers must not change it. Each ``n_jobs`` is a model of its own.
    """
    key = (artifact.checksum, n_jobs)
    with _lock:
        slot = _slots.setdefault(key, _Slot())
        _slots.move_to_end(key)
        while len(_slots) > MOST_MODELS:
            _slots.popitem(last=False)
    with slot.lock:  # others of this model wait, those of other models do not
        if slot.model is None:
            model = artifact.load()
            model.n_jobs = n_jobs
            slot.model = model
        return slot.model


def kept() -> list[str]:
    """Return the checksums of the models that this process holds, oldest use first."""
    with _lock:
        return [checksum for (checksum, _), s in _slots.items() if s.model is not None]


def _after_fork_in_child() -> None:
    """Forget everything: a lock may be held by a thread that is not here."""
    global _lock
    _lock = Lock()
    _slots.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
