"""Runs the kernels of a source's forests, for dense and for sparse rows.

Sparse rows become dense blocks of the columns read. Text has tens of thousands of
columns, of which a forest tests a few hundred. The blocks hold only these, and a copy
of the forest with renumbered columns reads them. Where trees are deep, or rows have few
entries that trees test, entries alone find the leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.backend import backend_of
from skforge.engine.by_round import blocks_of
from skforge.engine.engine import Answered
from skforge.engine.rows import forest_rows
from skforge.engine.sparse import SparseWalk
from skforge.forest.forest import Forest
from skforge.forest.outputs import AnswerSpec
from skforge.forest.reference import differing_rows, draw_rows, reference_raw
from skforge.modules.compiled import CompiledModule, compile_forest
from skforge.prediction.kernel_checks import by_reference
from skforge.rows.sparse_rows import dense_blocks
from skforge.sources.base import Source

if TYPE_CHECKING:
    from skforge.modules.auto import AutoModule

#: From this many unread columns on, they are left out and a second module compiles.
#: Rows of fewer columns are never walked: their blocks stay in the cache.
UNREAD = 256

#: Rows with which the entries' answers are compared with the forest's.
_DRAWN = 32


class SourceEngine:
    """Runs kernels for rows that a source has read: an array, or a sparse matrix."""

    def __init__(self, module: CompiledModule | AutoModule, source: Source) -> None:
        self.module: Any = module
        self._more, self._fill = source.answers.more, source.facts.fill

    def module_of(self, forest: Forest) -> CompiledModule:
        """Compile a forest as the first one is compiled."""
        module = compile_forest(forest, None, self.module.target, self.module.reduction)
        by_reference(module)
        return module

    @cached_property
    def modules(self) -> list[Any]:
        """The module of each forest."""
        return [self.module, *map(self.module_of, self._more)]

    def run(
        self, what: Answered, rows: Any, n_jobs: int | None, **options: Any
    ) -> Array:
        """Return what kernels find; the raw scores of several forests side by side."""
        if what == "raw" and self._more:  # never sparse
            parts = [module.run("raw", rows, n_jobs) for module in self.modules]
            return np.column_stack(parts)
        if options and hasattr(options.get("background"), "tocsr"):
            blocks = self._dense(options["background"])
            options["background"] = np.concatenate([*blocks])
        module, place = self.module, None
        if isinstance(rows, np.ndarray) or not hasattr(rows, "tocsr"):
            return np.asarray(module.run(what, rows, n_jobs, **options))
        # contributions have a column for each feature, those not read included, and
        # walks of sparse rows add leaves up
        if what in ("raw", "leaves"):
            if (answer := self._walked(what, rows.tocsr(), n_jobs)) is not None:
                return answer
            if self._narrow is not None:
                module, place = self._narrow.module, self._narrow.columns
        dense = self._dense(rows, place)
        return np.concatenate([module.run(what, x, n_jobs, **options) for x in dense])

    def stages(
        self, rows: Any, begin: int, end: int, step: int, n_jobs: int | None
    ) -> Iterator[tuple[AnswerSpec, Array]]:
        """Yield rules and raw scores after each so many boosting rounds."""
        ready = partial(forest_rows, self.module.forest)
        dense = None if hasattr(rows, "tocsr") else ready(rows)

        def blocks() -> Iterable[Array]:
            return map(ready, self._dense(rows)) if dense is None else blocks_of(dense)

        stages: Iterator[tuple[AnswerSpec, Array]] = self.module.stages(
            blocks, rows.shape[0], begin, end, step, n_jobs=n_jobs
        )
        return stages

    def warm_up(self, batch_sizes: Any, n_jobs: int | None) -> None:
        for module in self.modules:
            module.warm_up(batch_sizes)
            module.plan_threads(n_jobs)
        _ = self._walk
        if self._narrow is not None:
            self._narrow.module.warm_up()  # sparse rows use it in blocks

    def _dense(self, rows: Any, place: Any = None) -> Iterator[Array]:
        return dense_blocks(rows, self._fill, self.module.forest.input_dtype, place)

    def _walked(self, what: Answered, rows: Any, n_jobs: int | None) -> Array | None:
        narrow, walk = self._narrow, self._walk if rows.shape[0] else None
        width = self.module.forest.n_features if narrow is None else narrow.n_columns
        if walk is None or not walk.pays(rows, width):
            return None
        how = self.module.parts[0]._jobs(n_jobs), what == "leaves"
        answer = walk(rows, *how)
        return walk(rows.sorted_indices(), *how) if answer is None else answer

    @cached_property
    def _walk(self) -> SparseWalk | None:
        return _walk_of(self.module, self._fill)

    @cached_property
    def _narrow(self) -> Narrow | None:
        return _narrowed(self.module)


class Narrow(NamedTuple):
    """A module for the columns that a forest reads, renumbered."""

    module: CompiledModule
    n_columns: int
    columns: NDArray[np.int64]  # the module's column of each forest column, or -1


def _narrowed(module: Any) -> Narrow | None:
    if not isinstance(module, CompiledModule) or not backend_of(module.target).native:
        return None
    forest = module.forest
    columns = np.unique(forest.feature) if forest.n_predicates else np.zeros(1, int)
    if forest.n_features - len(columns) < UNREAD or forest.aggregate == "linear":
        return None
    place = np.full(forest.n_features, -1, np.int64)
    place[columns] = np.arange(len(columns))
    few: Forest = replace(
        forest,
        feature=place[forest.feature].astype(forest.feature.dtype),
        n_features=len(columns),
        feature_names=None,
        category_names=(),
        category_lists=(),
        row_norms=(),
    )
    few_columns = CompiledModule(
        few, module.schedules, module.target, module.reduction, module.n_jobs
    )
    return Narrow(few_columns, len(columns), place)


def _walk_of(module: Any, fill: float) -> SparseWalk | None:
    """Return what finds leaves by entries, if drawn rows show that it agrees."""
    forest = module.forest
    fits = module.reduction == "exact" and backend_of(module.parts[0].target).native
    if not fits or forest.n_features < UNREAD or not SparseWalk.supports(forest):
        return None
    from scipy.sparse import csr_array

    walk, rows = SparseWalk(forest, fill), draw_rows(forest, _DRAWN, 0)
    absent = np.random.default_rng(0).random(rows.shape) < 0.8
    rows[absent] = fill
    at, columns = np.nonzero(~absent)
    starts = np.append(0, np.cumsum(np.bincount(at, minlength=_DRAWN)))
    entries = csr_array((rows[at, columns], columns, starts), rows.shape)
    scores = reference_raw(forest, rows)
    wanted = scores[:, 0] if forest.n_outputs == 1 else scores
    given = walk(entries, 1, leaves=False)
    fine = given is not None and not len(differing_rows(given, wanted))
    return walk if fine else None
