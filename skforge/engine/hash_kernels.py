"""Kernels that take rows with hashes of categories, and make the statistics they test.

They need not write the rows of a forest, and read them back. Only bit logic has them:
it compares statistics as bytes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.engine.hashing import LEAST_ROWS, encoder_of
from skforge.engine.kernels import AnyKernel, KernelCache, RangeKernels, raw_scores
from skforge.exceptions import VerificationWarning, warn
from skforge.forest.encoder_tables import known_hashes
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows
from skforge.schedule.schedule import Schedule

#: Rows that a kernel is compared on: blocks of any size, and a part of one.
DRAWN_ROWS = 1057
#: The share of drawn hashes that the model knows.
KNOWN = 0.95


def _is_bit_logic(schedule: Schedule, n_trees: int) -> bool:
    from skforge.schedule.bound import predicate_trees

    nest = schedule.loop_nest(n_trees)
    return nest.representation == "bitsliced" and predicate_trees(nest.loops) is None


class HashKernels(RangeKernels):
    """The kernels of hashes of those ranges whose schedules have them.

    Each has to agree with the range's own kernel before it answers.
    """

    def __init__(self, kernels: RangeKernels, cache: KernelCache) -> None:
        super().__init__(dict(kernels.ranges), cache, kernels.element)
        self._own, n_trees = kernels, cache.forest.n_trees
        self._left = {
            number
            for number, ((_, last), schedule) in enumerate(self.ranges)
            if (last or LEAST_ROWS) >= LEAST_ROWS and _is_bit_logic(schedule, n_trees)
        }
        firsts = (self.first_rows[number] for number in self._left)
        #: The least rows that a kernel may take.
        self.least_rows = max(LEAST_ROWS, min(firsts, default=sys.maxsize))
        self.arrives = _compared

    @property
    def own(self) -> RangeKernels:
        return self._own

    def seek(self, number: int) -> None:
        """Compile the kernel of a range on first use, if it has one."""
        with self.cache.lock:
            if number not in self._left:
                return
            self._left.discard(number)
            self.kernel(number)

    def _use(self, number: int, element: Any, kernel: AnyKernel) -> None:
        if kernel is not self._own.kernel(number):
            super()._use(number, element, kernel)


def _compared(kernels: RangeKernels, number: int, kernel: AnyKernel) -> AnyKernel:
    """Return the kernel, or the range's own one if their scores of some rows differ."""
    assert isinstance(kernels, HashKernels)
    forest, own = kernels.cache.forest, kernels.own.kernel(number)
    hashes, rows = _drawn(forest)
    found, wanted = (
        raw_scores(forest, *pair) for pair in ((kernel, hashes), (own, rows))
    )
    if np.array_equal(found, wanted):
        return kernel
    warn(
        "The kernel that reads hashes of categories disagrees with the one that reads "
        "numbers, which is used instead. Please report this model.",
        VerificationWarning,
    )
    return own


def _drawn(forest: Forest) -> tuple[Array, Array]:
    """Return drawn rows with hashes, most of which the model knows, and encoded ones.

    Those of the first half are in the tables by ranks, as far as they are known.
    """
    hashed, random = forest.hashed, np.random.default_rng(0)
    assert hashed is not None
    rows, half = draw_rows(forest, DRAWN_ROWS, 0, 0.05), DRAWN_ROWS // 2
    for part, strange in ((slice(half), False), (slice(half, None), True)):
        some = rows[part]
        for column, known in enumerate(known_hashes(hashed, strange)):
            if hashed.is_category[column]:
                drawn = random.integers(-(2**31), 2**31, len(some)).astype(np.int32)
                if len(known):
                    is_known = random.random(len(some)) < KNOWN
                    drawn = np.where(is_known, random.choice(known, len(some)), drawn)
                some[:, column] = drawn.view(np.float32)
    hashes = np.ascontiguousarray(rows[:, : forest.n_columns])
    encoder_of(hashed).encode(rows)
    return hashes, rows
