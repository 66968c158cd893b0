"""Calls that a test watches, and calls of many threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


def calls_of(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Return a list that gets the arguments of each call of a function from now on."""
    calls: list[Any] = []
    honest = getattr(owner, name)

    def noted(*args: Any) -> Any:
        calls.append(args)
        return honest(*args)

    patch.setattr(owner, name, noted)
    return calls


def run_threads(work: Callable[[int], Any], n_threads: int = 16) -> list[Any]:
    """Run ``work(number)`` in threads that start at the same moment."""
    barrier = threading.Barrier(n_threads)

    def start(number: int) -> Any:
        barrier.wait(60)
        return work(number)

    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(start, range(n_threads)))
