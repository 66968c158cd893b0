"""Predictions of some boosting rounds, and those after each round in one pass.

The leaf values of all trees come from one kernel, see :mod:`.by_tree`, and NumPy adds
them in the library's order. Rounds that are asked for again and again get a kernel of
their own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.backend import backend_of
from skforge.engine import targets
from skforge.engine.arrays import is_device_array
from skforge.engine.by_tree import ByTree
from skforge.exceptions import InvalidInputError
from skforge.forest.outputs import AnswerSpec
from skforge.forest.rounds import BoostingRounds, ends_in_bias

if TYPE_CHECKING:
    from skforge.compiler.ir.hir.nodes import Reduction

#: Arguments of each library's ``predict`` that choose rounds.
ARGUMENTS = {
    "xgboost": ("iteration_range",),
    "lightgbm": ("start_iteration", "num_iteration"),
    "catboost": ("ntree_start", "ntree_end"),
}

#: Leaves found for the sums of some rounds until a kernel of these rounds is compiled:
#: to find them takes as long as to compile it, a fifth of a second. A call takes as
#: long as so many leaves.
MANY_LEAVES, LEAVES_A_CALL = 1 << 25, 1 << 14

#: Kernels of some rounds that are kept, the last ones used.
KEPT = 16

#: Rows whose leaves are added at once, so that they stay in the cache.
BLOCK_ROWS = 1024

#: Bytes of the leaf values of all rows that are kept at once.
MOST_BYTES = 1 << 28

#: Makes the rows, block by block, each time it is called.
RowBlocks: TypeAlias = Callable[[], Iterable[Array]]


def asked(rounds: BoostingRounds, params: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rounds [begin, end) that arguments of the library choose.

    Raise ``InvalidInputError`` if there are none such.
    """
    n, source = rounds.n, rounds.forest.source
    if source == "lightgbm":  # which goes on to the end, and not beyond
        begin = max(0, index(params.get("start_iteration") or 0))
        count = index(params.get("num_iteration") or 0)
        end = begin + count if 0 < count < n - begin else n
    elif source == "catboost":
        begin = index(params.get("ntree_start") or 0)
        end = index(params.get("ntree_end") or 0) or (0 if begin else n)
    else:
        try:
            given = params.get("iteration_range")
            first, last = (0, 0) if given is None else given
            begin, end = index(first), index(last) or n
        except (TypeError, ValueError):  # no two numbers
            begin, end = 0, -1
    if not 0 <= begin < end <= n:
        given = ", ".join(f"{name}={value!r}" for name, value in params.items())
        raise InvalidInputError(
            f"{given} does not lie within the {n} boosting rounds that are compiled."
        )
    return begin, end


class ByRound(ByTree):
    """Runs boosting rounds; a base of ``Engine``."""

    reduction: Reduction
    #: By rounds: the leaves found for them so far, or the module compiled for them.
    _of_rounds: OrderedDict[tuple[int, int], Any]

    @cached_property
    def rounds(self) -> BoostingRounds | None:
        return BoostingRounds.of(self.forest)

    def _own_kernel(self: Any, at: tuple[int, int], leaves: int) -> Any:
        """Return the module of rounds that were asked for often, None of others."""
        with self.compiler.lock:
            found = self._of_rounds.pop(at, 0)
            if isinstance(found, int):
                found += leaves
                if found >= MANY_LEAVES or not backend_of(self.target).native:
                    found = self._part(*at)
            self._of_rounds[at] = found
            if len(self._of_rounds) > KEPT:
                self._of_rounds.popitem(last=False)
        return None if isinstance(found, int) else found

    def _raw_of_rounds(
        self: Any,
        rows: Any,
        n_jobs: int | None = None,
        *,
        begin: int,
        end: int,
        start: Array | None = None,
    ) -> Array:
        """Return the raw scores of rounds [begin, end).

        With ``start``, of shape (n_rows, n_outputs), sums start from each row's own.
        """
        at = begin, end
        if is_device_array(rows):
            on_device: Array = self._own_kernel(at, MANY_LEAVES)._raw(rows)
            return on_device
        leaves = len(rows) * self.forest.n_trees + LEAVES_A_CALL
        own = None if start is not None else self._own_kernel(at, leaves)
        if own is not None:
            return own.predict_raw(rows, n_jobs=n_jobs)
        raw = np.empty((len(rows), self.forest.n_outputs), self.forest._dtypes[1])
        bias = begin == 0 and ends_in_bias(self.forest)
        for first in range(0, len(rows), BLOCK_ROWS):
            part = rows[first : first + BLOCK_ROWS]
            planes = self._planes([part], len(part), at, n_jobs, bias)
            sums = self._first_sums()
            _run_up(planes, sums if start is None else start[first:][: len(part)].T)
            raw[first : first + len(part)] = self._scores(planes[:, -1])
        self.rounds.finish(raw, begin)
        return raw[:, 0] if self.forest.n_outputs == 1 else raw

    def stages(
        self: Any,
        blocks: RowBlocks,
        n: int,
        begin: int,
        end: int,
        step: int = 1,
        n_jobs: int | None = None,
        start: Array | None = None,
    ) -> Iterator[tuple[AnswerSpec, Array]]:
        """Yield the scores of ``n`` rows after every ``step`` rounds of [begin, end).

        Sums start from those of ``start``, (n, n_outputs), if they are given.
        Each comes with the rules for answers from it. Blocks have all leaf values of
        their rows at once; those of all rows take ``MOST_BYTES``.
        """
        rounds, forest = self.rounds, self.forest
        if rounds.medians:
            values = [self._per_tree(rows, n_jobs) for rows in blocks()]
            trees = np.concatenate([np.empty((0, forest.n_trees)), *values])
            for at in range(begin + 1, end + 1):
                yield rounds.spec(begin, at), trees[:, :at]
            return
        sums = self._first_sums() if start is None else start.T
        catboost = forest.source == "catboost"
        if catboost:  # it adds what each step gives, which starts from 0, or -inf
            sums = np.where(np.isinf(sums), sums, -0.0)
        spec = rounds.spec(begin, end)
        values = rounds.width * forest.leaf_value.shape[1] * max(1, n)
        most = MOST_BYTES // (values * forest.accumulator_dtype.itemsize)
        most = end - begin if most >= end - begin else max(1, most // step) * step
        for first in range(begin, end, most):
            last = min(first + most, end)
            alone = most < end - begin
            planes = self._planes(blocks(), n, (first, last), n_jobs, alone=alone)
            if catboost:
                planes = rounds.steps(planes, first, step)
            _run_up(planes, sums)
            for k in range(rounds.each - 1, planes.shape[1], rounds.each):
                at = first + (k + 1) // rounds.each
                raw = np.array(self._scores(planes[:, k]), order="C")
                raw = raw[:, 0] if forest.n_outputs == 1 else raw
                if rounds.varies:
                    spec = rounds.spec(begin, at)
                yield spec, raw
            sums = planes[:, -1].copy()

    def _first_sums(self) -> Array:
        base = self.forest.base
        return base if self.forest.vector_leaves else base[:, np.newaxis]

    def _scores(self, sums: Array) -> Array:
        return sums[0] if self.forest.vector_leaves else sums.T

    def _planes(
        self: Any,
        blocks: Iterable[Array],
        n: int,
        at: tuple[int, int],
        n_jobs: int | None,
        bias: bool = False,
        alone: bool = False,
    ) -> Array:
        """Return the leaf values of rounds: by output, by tree and by row.

        Leaves for all outputs have a last axis, and no first one. The last tree is that
        of the ``bias``. Found ``alone``, the rounds have a kernel without the others.
        """
        forest, rounds, module = self.forest, self.rounds, self
        first, last = (round_ * rounds.width for round_ in at)
        if alone:
            module, first, last = self._part(*at), 0, last - first
        tail = (forest.n_outputs,) if forest.vector_leaves else ()
        outputs, count = rounds.width // rounds.each, (last - first) // rounds.width
        shape = outputs, count * rounds.each + bias, n, *tail
        planes = np.empty(shape, forest.accumulator_dtype)
        by_round = planes[:, : count * rounds.each].reshape(
            outputs, count, rounds.each, n, *tail
        )
        begin = 0
        for rows in blocks:
            here = slice(begin, begin := begin + len(rows))
            values = module._per_tree(rows, n_jobs)
            if bias:
                planes[:, -1, here] = values[:, -1]
            values = values[:, first:last].reshape(
                len(rows), count, outputs, rounds.each, *tail
            )
            by_round[:, :, :, here] = np.moveaxis(values, (2, 1, 3), (0, 1, 2))
        return planes

    def _part(self: Any, begin: int, end: int) -> Any:
        """Return a module of rounds [begin, end), compiled for them once."""
        how = self.target, self.reduction
        forest = self.rounds.part(begin, end)
        return self._module(forest, targets.default_table(forest, *how, False), *how)


def blocks_of(rows: Array) -> Iterator[Array]:
    return (rows[at : at + BLOCK_ROWS] for at in range(0, len(rows), BLOCK_ROWS))


@np.errstate(all="ignore")  # rows may have infinite values for linear models
def _run_up(planes: Array, first: Array) -> None:
    """Add to each plane the ones before it, and to the first ones sums, in place."""
    planes[:, 0] += first
    if planes.size < BLOCK_ROWS:  # calls of NumPy take longer than the sums
        planes[:] = np.add.accumulate(planes, axis=1)
    else:  # which needs no memory
        for k in range(1, planes.shape[1]):
            planes[:, k] += planes[:, k - 1]
