"""Runs the kernels of a forest: by batch size, each compiled once, on first use."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.backend import backend_of, on_device
from skforge.compiler.target import Target
from skforge.engine.arrays import is_device_array
from skforge.engine.by_round import ByRound
from skforge.engine.cpu.threads import (
    check_n_jobs,
    entry_symbols,
    parallel_for_pointer,
    resolve_n_jobs,
)
from skforge.engine.entry import entry as entries
from skforge.engine.explanations.contributions import Explained
from skforge.engine.kernels import (
    AnyKernel,
    KernelCache,
    KernelStore,
    RangeKernels,
    raw_scores,
)
from skforge.engine.rows import forest_rows
from skforge.engine.shares import LARGEST, Share, Shares
from skforge.exceptions import check_choice
from skforge.forest.forest import Forest
from skforge.forest.leaves import leaf_finder
from skforge.outputs import steps
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

if TYPE_CHECKING:
    from skforge.compiler.cost.estimate import CostEstimate
    from skforge.compiler.ir.hir.nodes import Reduction
    from skforge.compiler.ir.mir.nodes import Element
    from skforge.engine.hash_kernels import HashKernels

#: Raw scores; the source's number of each leaf, CatBoost's bias included; the row of
#: ``leaf_value`` and the value of each leaf; raw scores of some rounds; SHAP values.
Answered: TypeAlias = Literal[
    "raw", "leaves", "leaf_rows", "per_tree", "raw_of_rounds", "contribs"
]
MethodName: TypeAlias = Literal["predict", "contributions", "interactions"]

#: A batch of at most FEW_ROWS rows is small. After SMALL_CALLS such calls of a method,
#: its entry is linked: it saves 5 to 15 us per call, and takes 1 ms, or 35 ms if it is
#: the first of its kind and has to be compiled.
FEW_ROWS, SMALL_CALLS = 1024, 3


class Engine(ByRound, Explained):
    """The kernels of one forest and target, and all that runs them.

    :meth:`run` takes what a source's reader has made of rows; all that it calls, rows
    of the forest alone: C-contiguous arrays of ``forest.input_dtype`` in which NaN is
    what is missing. Raw scores and leaves are found of rows in a GPU's memory, too.
    """

    def __init__(
        self,
        forest: Forest,
        schedules: dict[BatchRange, Schedule],
        target: Target,
        reduction: Reduction,
        n_jobs: int | None,
        contribs_schedule: dict[BatchRange, Schedule] | None = None,
        compiler: KernelCache | None = None,
    ) -> None:
        self.forest = forest
        self.contribs_schedule = contribs_schedule
        self.target = target
        self.reduction: Reduction = reduction
        self.schedules = schedules
        self.n_jobs = n_jobs
        self._entries: dict[steps.Output, Callable[[Any], Array | None] | None] = {}
        self._small_calls: Counter[steps.Output] = Counter()
        self._most_entry_rows: int | None = None
        #: Compiles and keeps the kernels; may be another module's of this forest.
        self._adds = forest.aggregate == "sum"
        how = target, reduction if self._adds else "exact"
        self.compiler = compiler or KernelCache(leaf_finder(forest), *how)
        self._contributions, self._finders = {}, {}
        self._of_rounds = OrderedDict()
        self.kernels = RangeKernels(schedules, self.compiler, "accumulator")
        # Refers to no module: a circle would keep its code until Python looks for such.
        summing = self.compiler.forest
        estimate = lru_cache(maxsize=1)(partial(_estimate, summing, target))
        self._estimate = estimate if backend_of(target).native else None
        self._shares = self._shares_of(self.kernels.element)
        if forest.outputs.graph is not None:
            from skforge.engine import graph_routine

            graph_routine.install()

    def _shares_of(self, element: Element) -> Shares:
        chosen = [self.compiler.that_runs(s, element) for _, s in self.kernels.ranges]
        return Shares(self.forest, chosen, self.kernels.first_rows, self._estimate)

    # ---------------------------------------------------------------- answers

    def run(
        self, what: Answered, rows: Any, n_jobs: int | None = None, **options: Any
    ) -> Array:
        """Return what kernels find for rows of the forest; see :data:`Answered`.

        Numbers of another dtype or order in memory are copied first.
        """
        if not is_device_array(rows):
            rows = forest_rows(self.forest, rows)
        answer: Array = getattr(self, f"_{what}")(rows, n_jobs, **options)
        return answer

    def _raw(self, rows: Any, n_jobs: int | None = None) -> Array:
        if type(rows) is not np.ndarray and is_device_array(rows):
            return on_device().raw(self, rows)
        if self.forest.aggregate == "linear":
            return self._of_models(rows, n_jobs, by_tree=False)
        share = self._share(len(rows), n_jobs)
        kernel = self.kernels.kernel(share.number) if len(rows) else None
        return raw_scores(self.forest, kernel, rows, share.threads)

    def count_small(self, output: steps.Output, n_rows: int) -> None:
        """Link an output's entry once there were several calls for few rows."""
        if n_rows <= FEW_ROWS and self._adds:
            self._small_calls[output] += 1
            if self._small_calls[output] == SMALL_CALLS:
                self._keep_entry(output)

    def _keep_entry(self, output: steps.Output) -> None:
        if output not in self._entries:
            self._small_calls[output] = SMALL_CALLS
            entry = self.entry(output)
            self._entries[output] = entry and self.of_users(entry)

    def of_users(self, entry: Any) -> Any:
        """Return an entry that takes what callers have, before one of numbers."""
        return entry

    def schedule_for(self, n_rows: int) -> Schedule:
        """Return the schedule for a batch size; between ranges, the lower range's."""
        return self.kernels.ranges[self._range_at(n_rows)][1]

    def _kernel(self, n_rows: int, element: Element) -> AnyKernel:
        return self.kernels.kernel(self.kernels.number(n_rows), element)

    def keep_kernels(self) -> None:
        """Share kernels with the user's other processes, through the cache.

        Their keys cannot see every change of this process, so that callers compare
        kernels as they arrive (see :attr:`RangeKernels.arrives`).
        """
        forest = self.compiler.forest
        self.compiler.store = KernelStore(forest, self.target, self.reduction)

    @cached_property
    def hash_kernels(self) -> HashKernels | None:
        """Kernels of rows with hashes of categories; None if there can be none."""
        forest, how = self.compiler.forest, (self.target, self.reduction)
        native = backend_of(self.target).native
        if not forest.tests_bytes or not native or not self._adds:
            return None
        from skforge.engine.hash_kernels import HashKernels

        cache = KernelCache(forest, *how, hashes=True)
        if self.compiler.store is not None:
            cache.store = KernelStore(forest, *how, hashes=True)
        return HashKernels(self.kernels, cache)

    def seek_hash_kernel(self, n_rows: int, n_jobs: int | None) -> None:
        """Compile the kernel that takes hashes of so many rows, if there is one."""
        known = self.hash_kernels
        if known is not None and n_rows >= known.least_rows:
            known.seek(self._share(n_rows, n_jobs).number)

    def warm_up_hashes(self, batch_sizes: ArrayLike | None) -> None:
        if (known := self.hash_kernels) is not None:
            of_blocks = known.number(FEW_ROWS)  # entries take rows block by block
            for number in (*self._ranges_of(batch_sizes), of_blocks):
                known.seek(number)

    def check_schedules(self) -> None:
        """Raise ``ScheduleError`` now if a schedule does not fit, not on a call."""
        for schedule in dict.fromkeys(self.schedules.values()):
            self.compiler.bind(schedule)

    def compile_all(self) -> float:
        """Compile the kernels of all schedules; return the seconds it took."""
        start = time.perf_counter()
        for number in range(len(self.kernels.ranges)):
            self.kernels.kernel(number).load()
        return time.perf_counter() - start

    def warm_up(
        self, batch_sizes: ArrayLike | None = None, *, contribs: bool = False
    ) -> Engine:
        """Compile everything now that calls would compile on first use.

        Parameters
        ----------
        batch_sizes : array-like of int, default=None
            Batch sizes of the calls to come; None means any.
        contribs : bool, default=False
            Whether to compile :meth:`predict_contribs` without options, too.

        Returns
        -------
        CompiledModule or CompiledForest
            Itself. Later calls with these batch sizes, including :meth:`apply`, compile
            nothing; only values of single trees and stages, on their first call, do.

        Raises
        ------
        InvalidInputError
            If a size is not a number of rows.
        UnsupportedModelError
            If ``contribs=True`` and the model does not store the covers of its nodes.

        Examples
        --------
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> from skforge import compile_forest
        >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
        >>> compile_forest(tree).warm_up([1]).predict([[1.0]])
        array([4.])
        """
        if contribs:
            self.warm_up_contribs(batch_sizes)
        numbers = self._ranges_of(batch_sizes)
        for number in numbers:
            self.kernels.kernel(number, "accumulator").load()
        self._load_leaves(batch_sizes)
        if any(self.kernels.first_rows[n] <= FEW_ROWS for n in numbers):
            self._keep_entry("raw")
            self._keep_entry("transformed")
        if self.forest.outputs.graph is not None:
            from skforge.engine import graph_routine

            graph_routine.load(self.forest)
        self.plan_threads(self.n_jobs)
        return self

    def plan_threads(self, n_jobs: int | None) -> None:
        """Start the threads and decide which batches they share: 10 to 30 ms."""
        if n_jobs not in (None, 1):
            entry_symbols()  # the pool's code, even where one thread is the limit now
            parallel_for_pointer(resolve_n_jobs(n_jobs))
            for shares in (self._shares, self._leaf_shares):
                shares.of(LARGEST, n_jobs)

    def threads(self, n_rows: int) -> int:
        """Return the maximum number of threads for a call with that many rows."""
        return self._share(n_rows, None).threads

    def _share(self, n_rows: int, n_jobs: int | None) -> Share:
        return self._shares.of(n_rows, self._jobs(n_jobs))

    # ------------------------------------------------------------ fast calls

    def entry(
        self,
        output: steps.Output = "raw",
        refused: steps.Refused = "nothing",
        *,
        n_jobs: int | None = None,
        classes: Any = None,
        limit: float = float("inf"),
        by_column: bool | None = None,
        hashes: bool = False,
    ) -> Any:
        """Return a compiled function of one argument, or None if there cannot be one.

        The function takes a float32 or float64 array whose columns are contiguous
        (rows may have any stride) and returns predictions in a new array. It returns
        None for all other arguments; the caller then uses the ordinary path
        (:meth:`predict_raw` and so on), which is some microseconds slower and reports
        errors. It compiles nothing: batch sizes whose kernel is not compiled yet return
        None too, and :meth:`compile_all` compiles all of them.

        Parameters
        ----------
        output : {"raw", "transformed", "probabilities", "labels", "scores", "decision"}
            Raw scores; the source's output; ``predict_proba``, several targets side by
            side; the predicted class numbers; ``score_samples``; ``decision_function``.
        refused : {"nothing", "infinite", "not_finite"}
            Values in the rows that the entry declines.
        n_jobs : int or None
            Maximum number of threads.
        classes : ndarray of shape (n_classes,), default=None
            For "labels": values to return in place of class numbers.
        limit : float, default=inf
            With a finite one, numbers of this size or larger are declined too, and
            arrays of another dtype than the forest's. Not for "nothing".
        by_column : bool, default=None
            Whether predictions of several columns lie in memory column by column; None:
            as the source's do, and raw scores row by row.
        hashes : bool, default=False
            Whether it takes rows with hashes of categories, of sizes whose kernels
            :meth:`seek_hash_kernel` has compiled.

        Returns
        -------
        builtin function or None
            None if the output is computed by functions that have no code (SciPy's
            softmax, ONNX's PROBIT, medians), if missing values are not NaN, and
            on Pythons other than CPython with a GIL.

        Raises
        ------
        InvalidInputError
            If an argument is not one of those above.
        """
        check_choice("output", output, steps.OUTPUTS)
        check_choice("refused", refused, steps.REFUSED)
        check_n_jobs(n_jobs)
        forest = self.forest
        made = steps.steps_in_code(forest, output)
        if made is not None and by_column is not None:
            made = replace(made, by_columns=by_column)
        native = backend_of(self.target).native
        if made is None or not native or not entries.supports(forest):
            return None
        jobs = self.n_jobs if n_jobs is None else n_jobs
        threads = 1 if jobs is None else self._shares.most_threads(jobs)
        shares = self._shares.table(threads) if threads > 1 else None
        kind = entries.kind_of(forest, made, refused, limit)
        kind = replace(kind, shared=bool(shares))
        kernels = self.hash_kernels if hashes else self.kernels
        if kernels is None:
            return None
        width = forest.n_columns if hashes else forest.n_features
        ranges, most = kernels.first_rows, self._most_entry_rows
        sizes = entries.sizes_of(forest, width, ranges, most)
        labels = classes if output == "labels" else None
        table, target = kernels.table, self.target
        try:
            return entries.build_entry(kind, sizes, table, target, labels, shares)
        except steps.UntracedError:  # arrays compute what a graph makes of scores
            return None

    def limit_entries(self, rows: int) -> None:
        """Make entries decline batches of more rows from now on."""
        self._most_entry_rows = rows
        self._entries.clear()
        self._small_calls.clear()

    # ------------------------------------------------------------ inspection

    def inspect(
        self, level: str, *, n_rows: int | None = None, method: MethodName = "predict"
    ) -> str:
        """Return a level of the compilation as text.

        Parameters
        ----------
        level : str
            schedule, loops, hir, mir, lir, llvm or asm; cuda or ptx of a GPU's
            kernels; or a pass, such as legalize-reductions or lower-to-lir.
        n_rows : int or None
            The batch size whose kernel to show; None means the largest range.
        method : {"predict", "contributions", "interactions"}, default="predict"
            Whose kernel to show: that of predictions, or of ``predict_contribs``.

        Returns
        -------
        str

        Raises
        ------
        InvalidInputError
            If there is no such level or method.
        """
        if method != "predict":
            return self._explained().inspect(level, n_rows, method)
        last = self.kernels.ranges[-1][0][0]
        schedule = self.schedule_for(last if n_rows is None else n_rows)
        return self.compiler.text(schedule, self.kernels.element, level)


def _estimate(forest: Forest, target: Target) -> CostEstimate:
    from skforge.compiler.cost.estimate import CostEstimate
    from skforge.engine.machine import known_profile

    return CostEstimate(forest, target, known_profile(target))
