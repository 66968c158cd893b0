"""What a compiled forest answers tree by tree: the leaves of rows, and their values.

The kernels are those of a forest with an output for each tree, so that leaves come at
the speed of predictions: 2 ns a leaf where a walk that stores its number takes 8 to 60
(a core of Emerald Rapids).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.backend import backend_of, on_device
from skforge.compiler.target import Target
from skforge.engine import targets
from skforge.engine.arrays import is_device_array
from skforge.engine.cpu.threads import check_n_jobs
from skforge.engine.kernels import KernelCache, RangeKernels
from skforge.engine.linear_leaves import LinearLeaves
from skforge.engine.schedules import check_count
from skforge.engine.shares import Shares
from skforge.forest.forest import Forest
from skforge.forest.leaves import Found, finder_of, rows_in
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule


class ByTree:
    """Finds the leaves of rows, and their values; a base of ``Engine``."""

    forest: Forest
    target: Target
    n_jobs: int | None
    compiler: KernelCache
    kernels: RangeKernels
    schedules: dict[BatchRange, Schedule]
    _adds: bool
    _finders: dict[Found, Any]
    _shares_of: Callable[..., Shares]
    #: Gets each module made here, to compare its kernels before they answer.
    watch: Callable[[Any], None] | None = None

    def _leaves(self, rows: Any, n_jobs: int | None = None) -> NDArray[np.int32]:
        if is_device_array(rows):
            return on_device().leaves(self, rows)
        if not self._walks_to_leaves:
            return rows_in(self._found("number", rows, n_jobs))
        leaves = np.empty((len(rows), self.forest.n_trees), np.int32)
        if len(rows) and self.forest.n_trees:
            share = self._leaf_shares.of(len(rows), self._jobs(n_jobs))
            kernel = self.kernels.kernel(share.number, "leaf_number")
            kernel(rows, leaves, share.threads)
        return leaves

    def _per_tree(self, rows: Array, n_jobs: int | None = None) -> Array:
        forest = self.forest
        if not forest.n_trees:
            return np.empty((len(rows), 0), forest.accumulator_dtype)
        if forest.aggregate == "linear":
            return self._of_models(rows, n_jobs, by_tree=True)
        if self._adds and not forest.vector_leaves:
            return self._found("value", rows, n_jobs)
        values = forest.leaf_value if forest.vector_leaves else forest.leaf_value[:, 0]
        return values.take(self._leaf_rows(rows, n_jobs), axis=0)

    def _leaf_rows(self, rows: Array, n_jobs: int | None = None) -> NDArray[np.int32]:
        return rows_in(self._found("row", rows, n_jobs))

    def _found(self, found: Found, rows: Array, n_jobs: int | None) -> Array:
        finder = self.finder(found)
        finder.n_jobs = self.n_jobs
        sums: Array = finder.predict_raw(rows, n_jobs=n_jobs)
        return sums.reshape(len(sums), self.forest.n_trees)

    def _of_models(self, rows: Array, n_jobs: int | None, by_tree: bool) -> Array:
        """Return scores of linear models, or the numbers that each tree adds."""
        leaves = self._leaf_rows(rows, n_jobs)
        return self._models(rows, leaves, self._jobs(n_jobs), by_tree)

    @cached_property
    def _models(self) -> LinearLeaves:
        return LinearLeaves(self.forest)

    def finder(self, found: Found) -> Any:
        """Return the module that finds leaves; all threads get the same one.

        Each kind has its own, made when first needed: to look numbers or values up by
        rows, NumPy takes half to twice as long as kernels take to find either.
        """
        if (made := self._finders.get(found)) is None:
            with self.compiler.lock:
                if (made := self._finders.get(found)) is None:
                    made = self._finders[found] = self._finder(found)
        return made

    def _finder(self, found: Found) -> Any:
        if found == "row" and not self._adds:  # its own kernels find rows
            how = self.compiler.forest, self.schedules, self.target, "exact"
            return self._module(*how, compiler=self.compiler)
        forest, host = finder_of(self.forest, found), self.target
        if not backend_of(host).native:
            host = Target.host()

        def choose() -> Any:
            return targets.default_table(forest, host, "exact", measured=False)

        what, given = f"{found} on {host.to_json()}", [*self.schedules.values()]
        table = self.compiler.chosen(what, given, choose)
        return self._module(forest, table, host, "exact")

    def _module(self, *how: Any, **shared: Any) -> Any:
        """Return a module whose kernels are kept and compared as this one's are."""
        make: Any = type(self)
        made = make(*how, self.n_jobs, **shared)
        if self.compiler.store is not None:
            made.keep_kernels()
        if self.watch is not None:
            self.watch(made)
        return made

    @cached_property
    def _walks_to_leaves(self) -> bool:
        """Whether walks find leaves: as the schedules ask for, and those of GPUs."""
        if not self._adds or not self.forest.n_trees:
            return not self.forest.n_trees
        if not backend_of(self.target).native:
            return True
        schedules = dict.fromkeys(schedule for _, schedule in self.kernels.ranges)
        chosen = (self.compiler.that_runs(s, "leaf_number") == s for s in schedules)
        return all(chosen)

    @cached_property
    def _leaf_shares(self) -> Shares:
        if self._walks_to_leaves:
            return self._shares_of("leaf_number")
        shares: Shares = self.finder("number")._shares
        return shares

    def _load_leaves(self, batch_sizes: ArrayLike | None) -> None:
        """Compile what :meth:`apply` needs for batches of these sizes."""
        if self._walks_to_leaves:
            for number in self._ranges_of(batch_sizes):
                self.kernels.kernel(number, "leaf_number").load()
            return
        kinds: list[Found] = ["number"] if self._adds else ["number", "row"]
        for found in kinds:
            finder = self.finder(found)
            for number in finder._ranges_of(batch_sizes):
                finder.kernels.kernel(number).load()
            finder._keep_entry("raw")

    def _range_at(self, n_rows: Any) -> int:
        return self.kernels.number(check_count(n_rows))

    def _ranges_of(self, batch_sizes: ArrayLike | None) -> list[int]:
        if batch_sizes is None:
            return list(range(len(self.kernels.ranges)))
        return sorted({self._range_at(size) for size in np.ravel(batch_sizes)})

    def _jobs(self, n_jobs: int | None) -> int | None:
        n_jobs = self.n_jobs if n_jobs is None else n_jobs
        check_n_jobs(n_jobs)
        return n_jobs
