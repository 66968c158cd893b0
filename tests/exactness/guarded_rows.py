"""Rows between pages that may not be touched; run as a program, which dies of a read.

Prints each case before it runs, so that the last line names the one that read too far.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from itertools import product

import numpy as np

from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import levels, raw_of
from tests.exactness.sliced import case, sliced

FORESTS = (
    "1 feature",
    "1 feature, double",
    "lt",
    "13 features",
    "16 features",
    "17 features",
    "17 features, double",
    "100 features",
    "501 features",
    "501 features, double",
    "2000 features, few used",
)
#: Blocks of predicates, and walks that read rows before them.
SCHEDULES = (
    sliced(512),
    Schedule().cache("batch"),
    Schedule().tile("batch", "b0", "b1", 64).cache("b0"),
)
SIZES = (1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 512, 530)


class Guarded:
    """Memory with an unreadable page on both sides; ``at_end`` touches the second."""

    def __init__(self, n_bytes: int) -> None:
        page = mmap.PAGESIZE
        self.size = -(-n_bytes // page) * page
        self.memory = mmap.mmap(-1, self.size + 2 * page)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for guard in (address, address + page + self.size):
            if protect(guard, page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.first = page

    def place(self, flat: np.ndarray, at_end: bool) -> np.ndarray:
        """Return a copy of the array that touches a guard."""
        gap = self.size - flat.nbytes if at_end else 0
        made = np.frombuffer(self.memory, flat.dtype, flat.size, self.first + gap)
        made[:] = flat
        return made


def strided(rows: np.ndarray, apart: int, guarded: Guarded, at_end: bool) -> np.ndarray:
    """Return the rows ``apart`` numbers from each other, no number after the last."""
    n, width = rows.shape
    flat = np.full((n, apart), np.nan, rows.dtype)
    flat[:, :width] = rows
    placed = guarded.place(flat.reshape(-1)[: (n - 1) * apart + width], at_end)
    item = rows.itemsize
    return np.lib.stride_tricks.as_strided(placed, (n, width), (apart * item, item))


def main(all_levels: bool) -> None:
    """Compare every forest, number of rows, stride and place with the reference.

    Unless all are asked for, targets take turns.
    """
    targets = ["cpu", *levels()]
    for at, name in enumerate(FORESTS):
        turn = at % len(targets)
        for level in targets if all_levels else targets[turn : turn + 1]:
            for schedule in SCHEDULES:
                compare(name, level, schedule)
    print("all read within bounds")


def compare(name: str, level: str, schedule: Schedule) -> None:
    made, rows, raw = case(name)
    module = compile_forest(made, schedule, levels().get(level, "cpu"))
    for n, more, at_end, backwards in product(SIZES, (0, 3), *[(True, False)] * 2):
        what = (name, level, schedule, n, more, at_end, backwards)
        print(*what, flush=True)
        apart = rows.shape[1] + more
        guarded = Guarded(n * apart * rows.itemsize)
        x, wanted = strided(rows[:n], apart, guarded, at_end), raw[:n]
        if backwards:
            x, wanted = x[::-1], wanted[::-1]
        assert raw_of(module, x).tobytes() == wanted.tobytes(), what


def touch() -> None:
    """Read the byte after the last: what the guard is for."""
    guarded = Guarded(8)
    placed = guarded.place(np.zeros(8, np.uint8), True)
    print("reading past the end", flush=True)
    ctypes.string_at(placed.ctypes.data, 9)


if __name__ == "__main__":
    if sys.argv[1] == "touch":
        touch()
    else:
        main(all_levels=sys.argv[1] == "all levels")
