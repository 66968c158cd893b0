"""Finds threads of a launch that meet in memory with nothing to order them.

Threads of a block are ordered by the barrier after each region, and after each load
outside regions; blocks of a launch by nothing. Two accesses to one element race if
either writes, unless both add atomically: a GPU may carry them out in any order, or
halves of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.oracles.lir_memory import fault

_MANY = -1  # more than one block, or thread: every other one is another


class _Access(NamedTuple):
    block: int
    phase: int  # how many barriers of its block came before
    thread: int
    atomic: bool


class Races:
    """Who touched what in one launch; buffers are known by the translator's numbers."""

    def __init__(self) -> None:
        self._block = self._phase = 0
        self._writes: dict[int, dict[int, _Access]] = {}
        self._reads: dict[int, dict[int, _Access]] = {}

    def next_block(self) -> None:
        """Begin another block."""
        self._block += 1
        self._phase = 0

    def barrier(self) -> None:
        """Order what all threads of the block have done before what they do next."""
        self._phase += 1

    def fresh(self, buffer: int) -> None:
        """Note that a buffer has new memory."""
        self._writes[buffer] = {}
        self._reads[buffer] = {}

    def read(self, buffer: int, index: Any, count: int, thread: int = _MANY) -> None:
        """Note ``count`` elements from ``index``, of one thread or of all."""
        self._touch(buffer, index, count, thread, False, False)

    def write(self, buffer: int, index: Any, count: int, thread: int) -> None:
        """Note elements that a thread writes."""
        self._touch(buffer, index, count, thread, True, False)

    def add(self, buffer: int, index: Any, count: int, thread: int) -> None:
        """Note elements that a thread adds to atomically."""
        self._touch(buffer, index, count, thread, True, True)

    def _touch(
        self,
        buffer: int,
        index: Any,
        count: int,
        thread: int,
        writes: bool,
        atomic: bool,
    ) -> None:
        written = self._writes.setdefault(buffer, {})
        seen = self._reads.setdefault(buffer, {})
        now = _Access(self._block, self._phase, thread, atomic)
        starts = index.tolist() if isinstance(index, np.ndarray) else [index]
        for at in (start + k for start in starts for k in range(count)):
            last = written.get(at)
            if last is not None and self._races(last, now):
                _refuse(at, "written", last, now)
            if writes:
                read = seen.get(at)
                if read is not None and self._races(read, now):
                    _refuse(at, "read", read, now)
                written[at] = _joined(last, now)
            else:
                seen[at] = _joined(seen.get(at), now)

    @staticmethod
    def _races(before: _Access, now: _Access) -> bool:
        if before.atomic and now.atomic:
            return False
        if before.block != now.block:
            return True
        threads = {before.thread, now.thread}
        return before.phase == now.phase and (len(threads) > 1 or _MANY in threads)


def _joined(before: _Access | None, now: _Access) -> _Access:
    """Return who to tell of later: the last of all that an access may race with."""
    if before is None:
        return now
    if before.block != now.block:
        return now._replace(block=_MANY)
    if before.phase < now.phase:
        return now
    both = now._replace(atomic=before.atomic and now.atomic)
    return both if before.thread == now.thread else both._replace(thread=_MANY)


def _refuse(element: int, what: str, before: _Access, now: _Access) -> None:
    if before.block != now.block:
        other = "another block of the launch"
    elif before.thread in (_MANY, now.thread):
        other = "other threads since the last barrier"
    else:
        other = f"thread {before.thread} since the last barrier"
    fault(f"element {element} was {what} by {other}")
