"""``ScheduleSearch``: a schedule search with scikit-learn's search interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from itertools import chain
from numbers import Real
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skforge._docs import documented
from skforge._typing import Array
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.target import Target
from skforge.display.notebook import OwnRepr
from skforge.estimators import CompiledForest
from skforge.exceptions import InvalidInputError, check_choice
from skforge.prediction.delegation import validated
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule
from skforge.tuning.result import TuningResult
from skforge.tuning.search.strategies import Strategy
from skforge.tuning.search.trial import DEFAULT, Trial
from skforge.tuning.space.cpu import CPU, cpu_point, cpu_schedule, cpu_space
from skforge.tuning.space.space import Constraint, Point, ScheduleSpace
from skforge.tuning.tuner import STRATEGIES, Tuner

__all__ = ["ScheduleSearch"]

R = TypeVar("R")


def space_of(value: Any) -> ScheduleSpace | None:
    """Return the space for a user's value: a space, a grid, schedules, or None.

    A grid is a mapping of names to lists of values: ``{"schedule": [...]}``, or
    parameters of the CPU space or of Table 5 for GPUs. Missing parameters get a plain
    default. A sequence of schedules or names of presets is a grid of these.
    """
    if value is None or isinstance(value, ScheduleSpace):
        return value
    if isinstance(value, (list, tuple)):
        return ScheduleSpace.of(value)
    if not isinstance(value, Mapping):
        raise InvalidInputError(
            "space must be a ScheduleSpace, a grid such as {'block': [64, 256]}, or a "
            f"list of schedules. Got {type(value).__name__} instead."
        )
    grid: dict[str, tuple[Any, ...]] = {}
    for name, choices in value.items():
        single = isinstance(choices, (str, bytes, Schedule))
        if single or not hasattr(choices, "__iter__"):
            raise InvalidInputError(
                f"the grid's values of {name!r} must be a list. Got {choices!r} "
                "instead."
            )
        grid[name] = tuple(choices)
    names = set(grid)
    if not names:
        raise InvalidInputError("the grid is empty; give at least one parameter.")
    if names == {"schedule"}:
        return ScheduleSpace.of(grid["schedule"])
    if names <= set(CPU):
        for name, values in grid.items():
            known = CPU[name]
            for value in values if isinstance(known[0], str) else ():
                check_choice(name, value, known)
        grid = {"walk": ("rows",), **grid}
        rule = Constraint(tuple(grid), _in_cpu_space, "a point of the CPU space")
        return ScheduleSpace(grid, _cpu_template, (rule,), name="grid")
    from skforge.gpu.space import TABLE_5

    if names <= set(TABLE_5):
        return ScheduleSpace(grid, _gpu_template, name="grid")
    odd = sorted(names - set(CPU) - set(TABLE_5)) or sorted(names)
    raise InvalidInputError(
        f"the grid has {', '.join(map(repr, odd))}, which do not belong to one space; "
        f"a grid has either 'schedule' or some of {', '.join((*CPU, *TABLE_5))}."
    )


def _in_cpu_space(**chosen: Any) -> bool:
    """Tell whether a grid's point, with defaults filled in, satisfies the CPU rules.

    Values may differ from those of the whole space.
    """
    point = cpu_point(**chosen)
    return all(
        rule.test(**{name: point[name] for name in rule.names})
        for rule in cpu_space().constraints
        if "walk" not in rule.names or len(rule.names) > 2
    )


def _cpu_template(point: Point, shape: ForestShape) -> Schedule:
    return cpu_schedule(cpu_point(**point), shape)


def _gpu_template(point: Point, shape: ForestShape) -> Schedule:
    from skforge.gpu.space import PLAIN, gpu_schedule

    return gpu_schedule({**PLAIN, **point}, shape)


def _of_best(method: Callable[..., R]) -> Callable[..., R]:
    """Return a method of the best estimator, which the model must have, too."""
    name = method.__name__

    def check(self: Any) -> bool:
        getattr(self._inner(), name)  # raises the model's own AttributeError
        return True

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> R:
        return getattr(self._fitted(), name)(*args, **kwargs)

    return cast(Callable[..., R], available_if(check)(call))


#: Parameters that a search hands on to ``CompiledForest``.
SHARED = ("target", "reduction", "n_jobs", "random_state", "verbose")


@dataclass(eq=False, repr=False)
class ScheduleSearch(MetaEstimatorMixin, BaseEstimator):
    """Searches schedules of a forest as ``GridSearchCV`` searches parameters.

    The score is time, not accuracy: every schedule gives the same predictions.

    Parameters
    ----------
    estimator : estimator, Booster, path, ModelProto, Forest or CompiledForest
        The model, fitted or not, as :class:`~skforge.CompiledForest` takes it.
    space : ScheduleSpace, dict, list or None, default=None
        A space; a grid ``{"schedule": [...]}`` or of parameters of
        ``ScheduleSpace.cpu()``; or a list of schedules and presets. None uses the
        target's whole space.
    strategy : str or Strategy, default="auto"
        "heuristic", "learned", "exhaustive", "random", "halving" or a strategy object.
        "auto" is "exhaustive" for a grid or a list, else "heuristic".
    batch_sizes : array-like of int, default=None
        Batch sizes to search for; None uses the ranges of the default schedules.
    scoring : {"latency", "throughput"} or callable, default="latency"
        "latency" is the negative seconds per call, "throughput" is rows per second. A
        callable takes a timed :class:`~skforge.tuning.Trial` and returns a number;
        greater is better.
    budget : float, default=None
        Seconds for all batch sizes together. None uses the default of
        :class:`~skforge.tuning.Tuner`; for a grid or a list, it sets no limit.
    target, reduction
        See :class:`~skforge.CompiledForest`.
    records : TuningRecords or path, default=None
        A file of results, reused by later searches with the same conditions.
    refit : bool, default=True
        Whether to compile the model with the best schedules, which prediction needs.
    n_jobs, random_state, verbose
        See :class:`~skforge.CompiledForest`; ``n_jobs`` is the number of threads per
        call.

    Attributes
    ----------
    best_schedule_ : Schedule
        The schedule with the best mean score over the batch sizes.
    best_params_ : dict
        Its point of the space; ``{"schedule": ...}`` for the default schedule and for
        schedules from a record, which are not points of the space.
    best_score_ : float
        Its mean score; NaN from a record.
    best_index_ : int
        Its row of ``results_``; -1 from a record.
    schedules_ : dict of (int, int or None) -> Schedule
        The best schedule of each range of batch sizes, used for predictions.
    results_ : dict of str to ndarray
        A table like ``cv_results_`` with a row for each candidate: ``params``,
        ``param_<name>``, ``schedule``, ``status``, ``reason``, ``compile_seconds``,
        for each size ``seconds_<size>`` and ``score_<size>``, ``mean_score`` and
        ``rank_score``.
    tuning_result_ : TuningResult
        All trials.
    best_estimator_ : CompiledForest
        The compiled model; only with ``refit=True``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from skforge.tuning import ScheduleSearch
    >>> X, y = load_iris(return_X_y=True)
    >>> forest = RandomForestClassifier(10, random_state=0).fit(X, y)
    >>> grid = {"walk": ["trees"], "in_flight": [1, 10]}
    >>> search = ScheduleSearch(forest, grid, batch_sizes=[8]).fit(X)
    >>> len(search.results_["params"])  # the default schedule is always one
    3
    >>> bool((search.predict(X) == forest.predict(X)).all())
    True
    """

    __repr__ = OwnRepr()

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{name: CompiledForest._parameter_constraints[name] for name in SHARED},
        "estimator": "no_validation",
        "space": [ScheduleSpace, Mapping, "array-like", None],
        "strategy": [StrOptions({"auto", *STRATEGIES}), Strategy],
        "batch_sizes": ["array-like", None],
        "scoring": [StrOptions({"latency", "throughput"}), callable],
        "budget": [Interval(Real, 0, None, closed="neither"), None],
        "records": "no_validation",
        "refit": ["boolean"],
    }

    estimator: Any
    space: Any = None
    _: KW_ONLY
    strategy: str | Strategy = "auto"
    batch_sizes: ArrayLike | None = None
    scoring: Any = "latency"
    budget: float | None = None
    target: str | Target = "cpu"
    reduction: Reduction = "exact"
    records: Any = None
    refit: bool = True
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: int | None = None

    @validated
    @documented(CompiledForest.fit)
    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> ScheduleSearch:
        """Train the model if it is not fitted, and search for schedules.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows, or sample rows for a fitted model. Candidates are timed and
            checked on them.

        Returns
        -------
        ScheduleSearch
            Itself.

        Raises
        ------
        TuningError
            If the space is empty or has no legal point.
        InvalidInputError
            If ``space`` does not describe a space.
        """
        space = space_of(self.space)
        whole = space is not None and not isinstance(self.space, ScheduleSpace)
        strategy = self.strategy
        if isinstance(strategy, str) and strategy == "auto":
            strategy = "exhaustive" if whole else "heuristic"
        budget = 1e6 if self.budget is None and whole else self.budget
        compiled = self._compiled(
            self._model(),
            tuning=Tuner(strategy, space, budget, self.records),
            batch_sizes=self.batch_sizes,
        ).fit(X, y, **fit_params)
        result = compiled.tuning_result_
        assert result is not None
        table = dict(compiled.schedule_)
        score = _scorer(self.scoring)
        if callable(self.scoring):
            table = _best_by_score(result, score) or table
        if self.refit and table != dict(compiled.schedule_):
            fitted = compiled.__dict__.get("estimator_", self._model())
            compiled = self._compiled(fitted, schedule=table).fit(X)
        self.results_ = _results(result, score)
        self.tuning_result_ = result
        self.schedules_ = table
        # from a record, the schedules are known, and their times are not
        self.best_index_, self.best_score_ = -1, float("nan")
        self.best_schedule_ = table[max(table)]
        self.best_params_ = {"schedule": self.best_schedule_}
        means = self.results_["mean_score"]
        if not np.isnan(means).all():
            best = self.best_index_ = int(np.nanargmax(means))
            self.best_schedule_ = self.results_["schedule"][best]
            self.best_params_ = dict(self.results_["params"][best])
            self.best_score_ = float(means[best])
        self.__dict__.pop("best_estimator_", None)
        if self.refit:
            self.best_estimator_ = compiled
        return self

    def _model(self) -> Any:
        model = self.estimator
        return model.estimator if isinstance(model, CompiledForest) else model

    def _compiled(self, model: Any, **options: Any) -> CompiledForest:
        shared = {name: getattr(self, name) for name in SHARED}
        return CompiledForest(model, **shared, **options)

    def _inner(self) -> CompiledForest:
        best = self.__dict__.get("best_estimator_")
        return self._compiled(self._model()) if best is None else best

    def _fitted(self) -> CompiledForest:
        check_is_fitted(self)
        if not self.refit:
            raise AttributeError(
                "ScheduleSearch predicts only with refit=True; with refit=False, read "
                "best_schedule_."
            )
        return self.best_estimator_

    @_of_best
    def predict_proba(self, X: Any, **params: Any) -> Any:
        """Return the probability of each class."""

    predict = _of_best(CompiledForest.predict)
    decision_function = _of_best(CompiledForest.decision_function)
    predict_raw = _of_best(CompiledForest.predict_raw)
    score = _of_best(CompiledForest.score)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the model."""
        return self._inner().__sklearn_tags__()

    def __getattr__(self, name: str) -> Any:
        """Return a fitted attribute of the model, such as ``classes_``."""
        inner = self.__dict__.get("best_estimator_")
        if inner is not None and name.endswith("_") and not name.startswith("_"):
            return getattr(inner, name)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )


def _scorer(scoring: Any) -> Callable[[Trial], float]:
    if callable(scoring):
        return lambda trial: float(scoring(trial))
    if scoring == "throughput":
        return lambda trial: trial.n_rows / trial.seconds
    return lambda trial: -trial.seconds


def _best_by_score(result: TuningResult, score: Callable[[Trial], float]) -> Any:
    main = _main_sizes(result)
    timed = [t for t in result.trials if t.samples and t.n_rows == main[t.batch]]
    best: dict[BatchRange, Any] = {}
    for trial in sorted(timed, key=score, reverse=True):  # of equals the first
        best.setdefault(trial.batch, trial.schedule)
    return best


def _results(result: TuningResult, score: Callable[[Trial], float]) -> dict[str, Any]:
    rows: dict[Any, dict[int, Trial]] = {}
    for trial in result.trials:
        rows.setdefault(trial.candidate.key, {}).setdefault(trial.n_rows, trial)
    # Sizes at which candidates were timed; the ends of ranges only have finalists.
    tried = [t for t in result.trials if t.candidate.origin != DEFAULT]
    sizes = sorted({trial.n_rows for trial in tried or result.trials})
    firsts = [next(iter(trials.values())) for trials in rows.values()]
    points = [dict(t.candidate.params) or {"schedule": t.schedule} for t in firsts]
    compiled = [
        max(t.compile_seconds for t in trials.values()) for trials in rows.values()
    ]
    columns: dict[str, Any] = {
        "params": np.fromiter(points, object),
        "schedule": np.fromiter((t.schedule for t in firsts), object),
        "status": np.array([t.status for t in firsts]),
        "reason": np.fromiter((t.reason for t in firsts), object),
        "compile_seconds": np.array(compiled),
    }
    for name in dict.fromkeys(chain(*points)):
        columns[f"param_{name}"] = _values_of(name, points)
    main = sorted(set(_main_sizes(result).values())) or sizes
    for size in sizes:
        timed = [trials.get(size) for trials in rows.values()]
        columns[f"seconds_{size}"] = _numbers(timed, attrgetter("seconds"))
        columns[f"score_{size}"] = _numbers(timed, score)
    scores = [columns[f"score_{size}"] for size in main if f"score_{size}" in columns]
    means = np.mean(scores, axis=0) if scores else np.full(len(rows), np.nan)
    # from 1 for the greatest; ties share one, NaN comes last
    losses = np.where(np.isnan(means), np.inf, -means)
    ranks = 1 + np.searchsorted(np.sort(losses), losses)
    return {**columns, "mean_score": means, "rank_score": ranks.astype(np.int32)}


def _values_of(name: str, points: list[dict[str, Any]]) -> Any:
    objects = np.fromiter((point.get(name) for point in points), object)
    return np.ma.MaskedArray(objects, mask=[name not in point for point in points])


def _numbers(timed: list[Trial | None], number: Callable[[Trial], float]) -> Array:
    return np.array([number(t) if t and t.samples else np.nan for t in timed])


def _main_sizes(result: TuningResult) -> dict[BatchRange, int]:
    return {trial.batch: trial.n_rows for trial in reversed(result.trials)}
