"""Counts of the processes that a program starts, for the report at its end.

Each process has a file of slots, mapped into its memory. So what it has counted is
there even if a signal ends it, as servers end their workers, and a count takes less
than a microsecond. The program itself counts in its memory alone.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from skforge.acceleration.tally import LISTENERS, CallKind, Tally, Totalled, Totals

#: A slot has the text of what is counted, then calls, rows and seconds.
_SLOT, _NUMBERS, _TEXT = 256, struct.Struct("=3d"), 232
#: Most of them; the pages of those that are not used take no memory.
_SLOTS = 4096


class SharedCounts:
    """The counts of this process; nothing is counted before there is a folder."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        #: Where the slot of each is, and its sums.
        self._sums: dict[CallKind, tuple[int, Totalled]] = {}
        self._map: mmap.mmap | None = None

    def begin(self, folder: Path) -> None:
        """Count into a file of this process's own: also in a child after a fork."""
        self.folder, self._sums, self._map = folder, {}, None
        if self.add not in LISTENERS:
            LISTENERS.append(self.add)

    def add(self, counted: CallKind, rows: int, seconds: float) -> None:
        slot = self._sums.get(counted) or self._new(counted)
        if slot is None or self._map is None:
            return
        start, sums = slot
        sums[0] += 1
        sums[1] += rows
        sums[2] += seconds
        _NUMBERS.pack_into(self._map, start + _TEXT, *sums)

    def _new(self, counted: CallKind) -> tuple[int, Totalled] | None:
        start = len(self._sums) * _SLOT
        if start >= _SLOTS * _SLOT:
            return None
        try:
            if self._map is None:
                self._map = self._file()
        except OSError:  # another user's process, or a folder that is gone
            LISTENERS.clear()
            return None
        text = "\t".join(map(str, counted)).encode()[: _TEXT - 1]
        self._map[start : start + len(text)] = text
        return self._sums.setdefault(counted, (start, [0, 0, 0.0]))

    def _file(self) -> mmap.mmap:
        assert self.folder is not None
        with (self.folder / f"{os.getpid()}.{os.urandom(4).hex()}").open("x+b") as file:
            file.truncate(_SLOTS * _SLOT)
            return mmap.mmap(file.fileno(), _SLOTS * _SLOT)


SHARED = SharedCounts()


def counted_in(folder: Path) -> tuple[int, Totals]:
    """Return how many processes have counted into a folder, and what."""
    totals: Totals = {}
    files = [*folder.iterdir()] if folder.is_dir() else []
    for file in files:
        content = file.read_bytes()
        for start in range(0, len(content), _SLOT):
            text = content[start : start + _TEXT].rstrip(b"\0")
            if not text:
                break
            model, method, side, size, why = text.decode(errors="ignore").split("\t", 4)
            sums = _NUMBERS.unpack_from(content, start + _TEXT)
            tally = totals.setdefault((model, method), Tally())
            tally.add_sums(side, int(size), why, sums)
    return len(files), totals
