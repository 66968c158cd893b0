"""Functions that newer Pythons have in the standard library."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


class cached_property(functools.cached_property[T]):
    """``functools.cached_property`` without the lock that it has before Python 3.12.

    All objects of a class share that lock, and a child forked while another thread
    holds it waits for ever. Without it, two threads may compute one value twice.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = nullcontext()
