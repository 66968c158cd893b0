"""A compiled forest: kernels by batch size, each compiled once, on first use."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from skforge._docs import documented
from skforge._typing import Array
from skforge.compiler.backend import backend_of, on_device
from skforge.compiler.forest import sparse_rows
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.leaves import leaf_finder
from skforge.compiler.frontends import load_forest
from skforge.compiler.outputs import steps
from skforge.compiler.outputs.answers import of_scores
from skforge.compiler.runtime import targets
from skforge.compiler.runtime.arrays import into, is_device_array
from skforge.compiler.runtime.by_round import ByRound
from skforge.compiler.runtime.cpu.threads import (
    check_n_jobs,
    entry_symbols,
    parallel_for_pointer,
    resolve_n_jobs,
)
from skforge.compiler.runtime.entry import entry as entries
from skforge.compiler.runtime.explanations.contributions import Explained
from skforge.compiler.runtime.kernels import (
    AnyKernel,
    KernelCache,
    KernelStore,
    RangeKernels,
    raw_scores,
)
from skforge.compiler.runtime.rows import prepare_rows
from skforge.compiler.runtime.schedules import Schedules, schedule_table
from skforge.compiler.runtime.shares import LARGEST, Share, Shares
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import check_choice

if TYPE_CHECKING:
    from skforge.compiler.cost.estimate import CostEstimate
    from skforge.compiler.ir.hir.nodes import Reduction
    from skforge.compiler.ir.mir.nodes import Element

OutArray: TypeAlias = Array | None
MethodName: TypeAlias = Literal["predict", "contributions", "interactions"]

#: A batch of at most FEW_ROWS rows is small. After SMALL_CALLS such calls of a method,
#: its entry is linked: it saves 5 to 15 us per call, and takes 1 ms, or 35 ms if it is
#: the first of its kind and has to be compiled.
FEW_ROWS, SMALL_CALLS = 1024, 3


class CompiledModule(ByRound, Explained):
    """A forest compiled for one target; made by :func:`compile_forest`.

    Calls are safe from many threads at once.

    Attributes
    ----------
    forest : Forest
        The forest that was compiled.
    target : Target
        The machine it was compiled for.
    reduction : {"exact", "reproducible", "fast"}
        How leaf values are summed.
    schedules : dict of (int, int or None) -> Schedule
        The schedule of each range of batch sizes, both ends included.
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
        self.forest, self._spec = forest, forest.answers
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
        #: Whether rows are those of the forest, not of a source with categories.
        self.takes_made = False
        self.kernels = RangeKernels(schedules, self.compiler, "accumulator")
        # Refers to no module: a circle would keep its code until Python looks for such.
        summing = self.compiler.forest
        estimate = lru_cache(maxsize=1)(partial(_estimate, summing, target))
        self._estimate = estimate if backend_of(target).native else None
        self._shares = self._shares_of(self.kernels.element)

    def _shares_of(self, element: Element) -> Shares:
        chosen = [self.compiler.that_runs(s, element) for _, s in self.kernels.ranges]
        return Shares(self.forest, chosen, self.kernels.first_rows, self._estimate)

    def __repr__(self) -> str:
        kind = "" if self.target.kind == "cpu" else f"{self.target.kind} "
        n = len(set(self.schedules.values()))
        return (
            f"<CompiledModule of {self.forest.n_trees:,} trees, "
            f"{self.forest.n_features:,} features, for {kind}{self.target.cpu}, "
            f"{self.reduction}, {n} schedule{'s' if n != 1 else ''}>"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in ("predict_proba", "predict_log_proba"):
                text += (
                    "; its predict returns what a Booster's does, the probabilities of "
                    "a classifier, and CompiledForest has the methods of scikit-learn"
                )
            raise AttributeError(text)

    @property
    def parts(self) -> tuple[CompiledModule, ...]:
        """The module of each target: this one."""
        return (self,)

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle without machine code; kernels compile again on first use."""
        target = targets.stored_target(self.target)
        facts = self.forest, dict(self.schedules), target, self.reduction, self.n_jobs
        return restored, (*facts, self.contribs_schedule)

    # ------------------------------------------------------------ predictions

    def predict_raw(
        self, X: Any, *, n_jobs: int | None = None, out: OutArray = None, **rounds: Any
    ) -> Array:
        """Return raw scores (margins): sums of leaf values, averaged if the source is.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Rows, cast to the forest's input dtype as the source does. With a GPU, also
            arrays in its memory (CuPy, PyTorch, DLPack).
        n_jobs : int or None
            Maximum number of threads; None uses the module's own setting.
        out : ndarray of the result's shape and dtype, default=None
            Where to write the results of rows in host memory; a ``numpy.memmap`` for
            results that do not fit in memory.
        **rounds : dict
            Boosting rounds, by the library's own arguments: ``iteration_range`` of
            XGBoost, ``num_iteration`` and ``start_iteration`` of LightGBM,
            ``ntree_start`` and ``ntree_end`` of CatBoost.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs)
            In the accumulator's dtype; ``out`` if it was given. For rows on a GPU, a
            CuPy array written on the current stream.

        Raises
        ------
        InvalidInputError
            If the rows do not fit the forest, or ``out`` the results.
        """
        if rounds:
            return self._predict_rounds("predict_raw", X, n_jobs, out, rounds)
        if out is not None:
            return into(out, self.predict_raw(X, n_jobs=n_jobs))
        entry = self._entries.get("raw")
        if entry and n_jobs is None and (answer := entry(X)) is not None:
            return answer
        return self._raw(X, n_jobs, "raw")

    def _raw(self, X: Any, n_jobs: int | None, output: steps.Output) -> Array:
        """Return raw scores without an entry, for an output that may have one soon."""
        far = type(X) is not np.ndarray and is_device_array(X)
        if far and (self.takes_made or self.forest.hashed is None):
            return on_device().raw(self, X)
        if sparse_rows.is_sparse(X) and self.forest.hashed is None:
            blocks = sparse_rows.blocks_of(self.forest, X)
            return np.concatenate([self._raw(rows, n_jobs, output) for rows in blocks])
        if self.forest.aggregate == "linear":
            return self._of_models(X, n_jobs, by_tree=False)
        rows = prepare_rows(self.forest, X, self.takes_made)
        share = self._share(len(rows), n_jobs)
        kernel = self.kernels.kernel(share.number) if len(rows) else None
        raw = raw_scores(self.forest, kernel, rows, share.threads)
        if len(rows) <= FEW_ROWS and self._adds:
            self._small_calls[output] += 1
            if self._small_calls[output] == SMALL_CALLS:
                self._keep_entry(output)
        return raw

    def _keep_entry(self, output: steps.Output) -> None:
        if output not in self._entries and self.forest.hashed is None:
            self._small_calls[output] = SMALL_CALLS
            self._entries[output] = self.entry(output)

    @documented(predict_raw)
    def predict(
        self, X: Any, *, n_jobs: int | None = None, out: OutArray = None, **rounds: Any
    ) -> Array:
        """Return the source's output: raw scores after its transform.

        For classifiers these are the probabilities that a Booster returns, not labels.

        Returns
        -------
        ndarray
            In the source's shape and dtype; ``out`` if it was given.
        """
        if rounds:
            return self._predict_rounds("predict", X, n_jobs, out, rounds)
        if out is not None:
            return into(out, self.predict(X, n_jobs=n_jobs))
        entry = self._entries.get("transformed")
        if entry and n_jobs is None and (answer := entry(X)) is not None:
            return answer
        values: Array = self._raw(X, n_jobs, "transformed")
        if is_device_array(X):
            rule = partial(of_scores, self._spec, "transformed")
            values = on_device().answered(self.target, rule, values)
        else:
            values = of_scores(self._spec, "transformed", values)
        return values

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
    ) -> CompiledModule:
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
        ranges, most = self.kernels.first_rows, self._most_entry_rows
        sizes = entries.sizes_of(forest, ranges, most)
        labels = classes if output == "labels" else None
        table, target = self.kernels.table, self.target
        return entries.build_entry(kind, sizes, table, target, labels, shares)

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


def compile_forest(
    forest: object,
    schedule: Schedules = None,
    target: str | Target = "cpu",
    reduction: Reduction = "exact",
    n_jobs: int | None = None,
    contribs_schedule: Schedules = None,
) -> CompiledModule:
    """Compile a fitted model or its library's file, without scikit-learn.

    Parameters
    ----------
    forest : Forest, path, bytes, Booster, ModelProto or fitted estimator
        A forest from :func:`skforge.load_forest`, or anything that it accepts.
    schedule : "auto", str, Schedule, dict of (int, int or None) -> these, or None
        One schedule or a preset's name for every batch size, one of these for each
        range of batch sizes, or the static defaults ("auto" or None).
    target : str or Target, default="cpu"
        "cpu" is this machine's CPU, "cuda" or "hip" its current GPU. "auto" is the
        GPU if a schedule maps loops to one, and the CPU otherwise. "emulated" runs
        GPU schedules on the CPU.
    reduction : {"exact", "reproducible", "fast"}, default="exact"
        ``exact``: the source's bits. ``reproducible``: the same bits for every
        schedule and number of threads. ``fast``: any order of summation.
    n_jobs : int or None
        Maximum threads; None means 1, -1 all.
    contribs_schedule : Schedule, dict of (int, int or None) -> Schedule, or None
        The schedules of ``predict_contribs``, with ``represent("contributions")``;
        None means the static defaults.

    Returns
    -------
    CompiledModule
        Its kernels compile on first use.

    Raises
    ------
    InvalidInputError
        If an argument has a wrong type or value.
    InvalidModelError, UnsupportedModelError
        If the model cannot be read, or cannot be reproduced exactly.
    ScheduleError
        If a schedule does not fit the forest or the target.
    TargetError
        If the target is not available.

    See Also
    --------
    skforge.load : Loads what :func:`skforge.save` wrote, which is compiled already.
    skforge.CompiledForest : Compares with the model and searches for schedules, too.

    Examples
    --------
    >>> import skforge
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> module = skforge.compile_forest(tree)
    >>> module.predict_raw([[0.2], [0.9]])
    array([3., 4.])
    """
    check_choice("reduction", reduction, ("exact", "reproducible", "fast"))
    check_n_jobs(n_jobs)
    table = schedule_table(schedule)
    if not isinstance(forest, Forest):
        forest = load_forest(forest)
    resolved = targets.resolve_target(target, () if table is None else table.values())
    schedules = table or targets.default_table(forest, resolved, reduction)
    explained = schedule_table(contribs_schedule)
    module = CompiledModule(forest, schedules, resolved, reduction, n_jobs, explained)
    if explained is not None:
        module._explained()
    if table is not None:
        module.check_schedules()
    return module


def restored(
    forest: Forest,
    schedules: dict[BatchRange, Schedule],
    target: str | Target,
    reduction: Reduction,
    n_jobs: int | None,
    contribs_schedule: dict[BatchRange, Schedule] | None = None,
) -> CompiledModule:
    """Return a module from a file or another process, after validating its forest."""
    how = schedules, target, reduction, n_jobs, contribs_schedule
    return compile_forest(forest.validate(), *how)


def _estimate(forest: Forest, target: Target) -> CostEstimate:
    from skforge.compiler.cost.estimate import CostEstimate
    from skforge.compiler.runtime.machine import known_profile

    return CostEstimate(forest, target, known_profile(target))


__all__ = ["CompiledModule", "compile_forest"]
