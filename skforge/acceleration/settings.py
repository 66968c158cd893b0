"""What ``accelerate`` was asked for, and what each thread is doing."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """When a model is compiled, and how often answers are compared afterwards."""

    min_rows: int = 1
    min_calls: int = 3
    #: The share of the kernels' calls that the library answers, too (SKFORGE_CHECK).
    share: float = 0.0
    #: What compiling any model takes at least, in seconds.
    least_seconds: float = 0.15
    #: Compile in the first call that may, in its thread, and use kernels even where
    #: they are slower: so that nothing depends on times.
    eager: bool = False
    #: As of ``CompiledForest``.
    schedule: Any = "auto"


class _OfThread(threading.local):
    def __init__(self) -> None:
        #: One item, which is :attr:`inside`: to set it takes less than an attribute.
        self.busy = [False]

    @property
    def inside(self) -> bool:
        """Whether a wrapped method is at work: those that it calls are left alone."""
        return self.busy[0]

    @inside.setter
    def inside(self, inside: bool) -> None:
        self.busy[0] = inside


class Active:
    """What is on now; one object for the process."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.thread = _OfThread()


ACTIVE = Active()
