"""Compares each kernel with its source before the kernel's first answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.engine.kernels import KernelStore, RangeKernels, raw_scores
from skforge.engine.rows import forest_rows
from skforge.exceptions import VerificationError, VerificationWarning, warn
from skforge.forest import reference
from skforge.forest.arrays import Missing
from skforge.forest.forest import Forest
from skforge.modules.auto import AutoModule
from skforge.modules.compiled import CompiledModule
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

if TYPE_CHECKING:
    from skforge.schedule.bound import BoundLoop

#: Calls per batch size: a batch of one row is not tried on every row.
CALLS = 16

#: Values of a batch tried besides a range's smallest: 16 MB of float32.
MOST_VALUES = 1 << 22

#: Rows drawn where the forest itself, not its source, says what is right.
REFERENCE_ROWS = 64

ADVICE = (
    "Please report this model, and use the source model's own predict until it is "
    "fixed."
)


class Sample(NamedTuple):
    """Rows, a name for each, and the raw scores that the source gives them."""

    rows: Array
    names: list[str]
    expected: Array


class KernelChecks:
    """Compares a module's kernels with a sample, each before its first answer.

    A kernel that disagrees never answers: calls of its range use the first range's
    kernel if that agrees, and a warning says so; otherwise they raise.

    ``sample`` is called when the first kernel arrives, and ``again`` for a sample made
    anew if a kernel disagrees with a stored one; see :attr:`RangeKernels.arrives`.
    """

    def __init__(
        self,
        module: CompiledModule,
        sample: Callable[[], Sample],
        again: Callable[[], Sample] | None = None,
    ) -> None:
        # The module itself would keep itself alive.
        self._forest, self._reduction = module.forest, module.reduction
        self._make, self._again = sample, again
        self._sample: Sample | None = None
        #: Whether a store has the sample, as drawn around the thresholds.
        self.drawn = again is not None
        self._agreed: set[int] = set()

    def __call__(self, kernels: RangeKernels, number: int, kernel: Any) -> Any:
        try:
            self.compare(kernels, number, kernel)
        except VerificationError as error:
            first = kernels.kernel(0) if number else kernel
            if first is kernel:
                raise
            self.compare(kernels, number, first)
            warn(
                f"{error} The kernel for smaller batches agrees with the model and is "
                "used instead.",
                VerificationWarning,
            )
            return first
        return kernel

    def compare(self, kernels: RangeKernels, number: int, kernel: Any) -> None:
        sample = self.sample()
        forest = self._forest
        limit = reference.sum_limits(forest, sample.rows, self._reduction)
        (_, schedule) = batch = kernels.ranges[number]
        for size in batch_sizes(forest, *batch):
            batches = [*_batches(len(sample.rows), size)]
            rows = (forest_rows(forest, sample.rows[at]) for at in batches)
            raw = np.concatenate([raw_scores(forest, kernel, part) for part in rows])
            at = np.concatenate(batches)
            wrong = reference.differing_rows(raw, sample.expected[at], limit[at])
            if len(wrong) and self._again is not None:
                self._sample, self._again = self._again(), None
                self.compare(kernels, number, kernel)
                return
            if len(wrong):
                first = wrong[0]
                raise VerificationError(
                    f"{sample.names[at[first]]}: the compiled code gives "
                    f"{raw[first].tolist()!r}, but the model gives "
                    f"{sample.expected[at[first]].tolist()!r}, with batches of {size} "
                    f"and the schedule {schedule!r}. {ADVICE}"
                )
        self._agreed.add(number)
        if len(self._agreed) == len(kernels.ranges):
            kernels.arrives = None  # frees the sample

    def sample(self) -> Sample:
        self._sample = sample = self._sample or self._make()
        return sample


def compare_now(module: CompiledModule, sample: Callable[[], Sample]) -> None:
    """Compare kernels compiled so far (raise if wrong), and others as they arrive."""
    checks, kernels = KernelChecks(module, sample), module.kernels
    now = {number: kernels.kernel(number) for number in (0, *kernels.compiled())}
    kernels.arrives, module.watch = checks, by_reference
    for number, kernel in now.items():
        checks.compare(kernels, number, kernel)


def by_reference(module: CompiledModule | AutoModule) -> None:
    for part in module.parts:
        sample = partial(_sample, part.forest, part.compiler.store)
        again = None if part.compiler.store is None else partial(sample, anew=True)
        part.kernels.arrives = KernelChecks(part, sample, again)
        part.watch = by_reference


def drawn_rows(module: CompiledModule | AutoModule) -> Array:
    part = module.parts[0]
    checks = part.kernels.arrives
    if isinstance(checks, KernelChecks) and checks.drawn:
        return checks.sample().rows
    return _sample(part.forest, part.compiler.store).rows


def _sample(forest: Forest, store: KernelStore | None, anew: bool = False) -> Sample:
    scored = partial(_scored, forest)
    found = scored() if store is None else store.drawn(scored, anew)
    rows, raw = found["rows"], found["scores"]
    names = [f"random row {i} around the model's thresholds" for i in range(len(rows))]
    return Sample(rows, names, raw[:, 0] if forest.n_outputs == 1 else raw)


def _scored(forest: Forest) -> dict[str, Array]:
    missing = 0.05 if (forest.missing != Missing.NEVER).any() else 0.0
    rows = reference.draw_rows(forest, REFERENCE_ROWS, 0, missing)
    return {"rows": rows, "scores": reference.reference_raw(forest, rows)}


def batch_sizes(forest: Forest, batch: BatchRange, schedule: Schedule) -> list[int]:
    most = MOST_VALUES // max(1, forest.n_features)
    low, high = batch
    first = max(1, low)
    if high is not None and high <= most:
        sizes = {first, (first + high) // 2, high}
    else:
        step = _rows_of_a_block(schedule.loop_nest(forest).loops)
        sizes = {first, *_open_sizes(first, step)}
    return sorted(size for size in sizes if size == first or first < size <= most)


def _open_sizes(first: int, step: int) -> tuple[int, int]:
    """Return two sizes above the first: blocks and a half, and blocks less one row.

    >>> _open_sizes(1, 64), _open_sizes(2049, 512)
    ((97, 191), (2817, 3583))
    """
    blocks = -(-first // step)
    return blocks * step + step // 2 + 1, (blocks + 2) * step - 1


def _rows_of_a_block(loops: tuple[BoundLoop, ...]) -> int:
    steps = [16]  # without blocks, loops are unrolled or vectorised by up to 16
    for loop in loops:
        if loop.root == "batch" and isinstance(loop.step, int):
            steps.append(loop.step)
        steps.append(_rows_of_a_block(loop.body))
    return max(steps)


def _batches(n_rows: int, size: int) -> Iterator[NDArray[np.intp]]:
    if n_rows <= size:
        yield np.arange(size) % n_rows
        return
    # an uneven end, so that remainder loops run; rows from both ends
    step = max(size, -(-n_rows // CALLS))
    for start in range(0, n_rows, step):
        yield np.arange(start, min(start + size, n_rows))
