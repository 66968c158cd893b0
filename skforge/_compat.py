"""Functions that newer Pythons have in the standard library."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def no_warnings() -> Iterator[None]:
    """Show no warnings inside: ``catch_warnings(action="ignore")`` of Python 3.11."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class cached_property(functools.cached_property[T]):
    """``functools.cached_property`` without the lock that it has before Python 3.12.

    All objects of a class share that lock, and a child forked while another thread
    holds it waits for ever. Without it, two threads may compute one value twice.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = nullcontext()
