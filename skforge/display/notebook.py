"""What shells and notebooks show of a ``CompiledForest``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from operator import methodcaller
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import _num_samples, check_is_fitted
from threadpoolctl import threadpool_limits

from skforge._compat import no_warnings
from skforge._docs import documented
from skforge.display.names import short_name
from skforge.display.summary import SIZES, CallTime, Summary, summary_of
from skforge.engine.cpu.threads import resolve_n_jobs
from skforge.exceptions import (
    InvalidInputError,
    VerificationWarning,
    check_choice,
    plural,
)
from skforge.prediction.choose_targets import size_ranges
from skforge.prediction.given_rows import take_rows
from skforge.prediction.state import Delegated
from skforge.runtime.mappings import is_columns, is_mapped
from skforge.sources.fitted import is_estimator, model_of
from skforge.tuning.plots import axes_for

# ------------------------------------------------------------ repr


class OwnRepr:
    """The ``__repr__`` of a wrapper: scikit-learn's, with short names of models.

    Of the class it is scikit-learn's own, by which scikit-learn's printer knows how to
    break the lines of an estimator, also inside another.
    """

    def __get__(self, wrapper: Any, owner: Any = None) -> Any:
        return BaseEstimator.__repr__ if wrapper is None else partial(_repr, wrapper)


def _repr(wrapper: Any, N_CHAR_MAX: int = 700) -> str:
    params = wrapper.get_params(deep=False)
    forest = wrapper.__dict__.get("forest_")
    params["estimator"] = short_name(params["estimator"], forest)
    return BaseEstimator.__repr__(type(wrapper)(**params), N_CHAR_MAX)


# ------------------------------------------------------------ what users call


class Displayed(Delegated):
    """Adds summaries, plots, the repr and the card; only those with rows measure."""

    def summary(
        self, X: Any = None, *, method: str = "predict", batch_sizes: Any = None
    ) -> Summary:
        """Return the model, what was checked, the schedules and the time of a call.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), default=None
            Rows on which to measure single calls, for about a second, beside the
            model's own method if there is a live model. Without rows nothing is
            measured: times are those of the last ``summary(X)`` or of the search, or
            estimates.
        method : str, default="predict"
            The method to measure, such as "predict_proba"; ``transform`` is measured
            where there is no ``predict``.
        batch_sizes : array-like of int, default=None
            Rows per call; None means 1, 8, 64, 512 and 4,096. Rows repeat in batches
            larger than ``X``.

        Returns
        -------
        Summary
            It prints as text, and notebooks show it as a card.

        Examples
        --------
        >>> from skforge import CompiledForest
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
        >>> summary = CompiledForest(tree).fit([[0.0]]).summary()
        >>> summary.model, summary.library, summary.n_trees, summary.exact
        ('DecisionTreeRegressor', 'scikit-learn', 1, True)
        """
        check_is_fitted(self)
        return summary_of(self) if X is None else measured(self, X, method, batch_sizes)

    @documented(summary)
    def plot_latency(
        self,
        X: Any,
        *,
        ax: Any = None,
        method: str = "predict",
        batch_sizes: Any = None,
    ) -> Any:
        """Measure calls as :meth:`summary` does, and draw their times by batch size.

        Lines are medians; the area above a line reaches to the 99th percentile. The
        legend says who answered: entry, kernel or library, as :meth:`counters` does.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        ax : matplotlib.axes.Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        InvalidInputError
            If matplotlib is not installed.
        """
        check_is_fitted(self)
        ax = axes_for(ax)  # before anything is measured
        return draw(measured(self, X, method, batch_sizes), ax)

    @documented(plot_latency)
    def plot_tuning(self, kind: str = "distribution", *, ax: Any = None) -> Any:
        """Draw the search for schedules that ``fit`` made.

        Parameters
        ----------
        kind : {"distribution", "slowdown", "sensitivity"}, default="distribution"
            What to draw, see :meth:`skforge.tuning.TuningResult.plot`.

        Raises
        ------
        InvalidInputError
            If ``fit`` searched or timed nothing, or matplotlib is not installed.
        """
        check_is_fitted(self)
        if self.tuning_result_ is None:
            raise InvalidInputError(
                "fit searched no schedules, so there is nothing to draw; use a search, "
                "such as tuning='exhaustive'."
            )
        return self.tuning_result_.plot(kind, ax=ax)

    __repr__ = OwnRepr()

    def _sk_visual_block_(self) -> Any:
        model = model_of(self)
        parts = [model if is_estimator(model) else type(model).__name__]
        names = [f"estimator: {type(model).__name__}"]
        details = [str(short_name(model))]
        if self.__sklearn_is_fitted__():
            if (split := self.__dict__.get("_split")) is not None:
                parts.append(_OutputLines(split.summary, str(split).splitlines()))
            lines = [f"target: {self.target_.cpu}"]
            for (first, last), schedule in sorted(self.schedule_.items()):
                sizes = f"{first}–{last or ''}" if last != first else f"{first}"
                lines.append(f"{sizes} rows: {schedule!r}")
            parts.append(_OutputLines(plural(len(self.schedule_), "schedule"), lines))
            names, details = [*names, "compiled"], [*details, lines[0]]
        return _block("parallel", parts, names, details)

    def _html_repr(self) -> str:
        if self.__sklearn_is_fitted__():
            return summary_of(self)._repr_html_()
        return f'{_STYLE}<div class="skforge-box">{estimator_html_repr(self)}</div>'

    def _repr_html_inner(self) -> str:  # scikit-learn 1.6 does not call _html_repr
        return self._html_repr()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:  # nor here
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        return bundle | {"text/html": self._html_repr()} if len(bundle) > 1 else bundle


# ------------------------------------------------------------ the diagram

#: Wraps long schedules, which would otherwise overflow the box.
_STYLE = (
    "<style>.skforge-box div.sk-toggleable__content pre "
    "{white-space: pre-wrap; overflow-wrap: anywhere}</style>"
)


class _OutputLines:
    def __init__(self, name: str, lines: list[str]) -> None:
        self._name, self._lines = name, lines

    def _sk_visual_block_(self) -> Any:
        return _block("single", self, self._name, "\n".join(self._lines))


def _block(kind: str, parts: Any, names: Any, details: Any) -> Any:
    try:
        from sklearn.utils._repr_html.estimator import _VisualBlock
    except ImportError:  # scikit-learn before 1.8
        from sklearn.utils._estimator_html_repr import _VisualBlock
    return _VisualBlock(kind, parts, names=names, name_details=details)


# ------------------------------------------------------------ measuring calls


#: Seconds of all measurements, without compiling and warming up.
SECONDS = 1.0

#: Turns of each function at a batch size, so that both meet the same slow phases.
ROUNDS = 8

#: Different batches of a size, and values of the largest batch.
BATCHES, MOST_VALUES = 32, 1 << 22

#: Methods that can be timed.
METHODS = (
    *("predict", "predict_proba", "predict_log_proba", "predict_raw"),
    *("decision_function", "score_samples"),
)


def measured(wrapper: Any, X: Any, method: str, batch_sizes: Any) -> Summary:
    check_choice("method", method, METHODS)
    if method == "predict" and not hasattr(wrapper, method):
        method = "transform"
    if isinstance(X, Mapping) and is_mapped(X):
        X = wrapper._compiled().framed(X) if is_columns(X) else [X]
    n_rows = _num_samples(X)
    if not n_rows:
        raise InvalidInputError("X has 0 rows; pass at least one to measure calls.")
    if (ranges := size_ranges(batch_sizes)) is None:
        most = max(1, MOST_VALUES // max(1, wrapper.forest_.n_features))
        sizes = [size for size in SIZES if size <= most]
    else:
        sizes = sorted(ranges.values())
    share = SECONDS / len(sizes)
    caller = partial(methodcaller, method)
    source, theirs = _source(wrapper, method, X)
    times: list[CallTime] = []
    threads = threadpool_limits(resolve_n_jobs(wrapper.n_jobs), "openmp")
    with threads, no_warnings():  # the model's, once a call
        warnings.simplefilter("always", VerificationWarning)
        for size in sizes:
            if batch_sizes is None and not _fits(times, size, share, theirs=False):
                break
            batches = _batches(X, n_rows, size)
            calls = {"ours": [partial(caller(rows), wrapper) for rows in batches]}
            if theirs is not None and _fits(times, size, share, theirs=True):
                calls["theirs"] = [partial(theirs, rows) for rows in batches]
            before, seconds = wrapper.counters(), _timed(calls, share)
            after = wrapper.counters()
            route = max(after, key=lambda k: after[k]["calls"] - before[k]["calls"])
            quantiles = {
                who: np.quantile(samples, (0.5, 0.99)).tolist()
                for who, samples in seconds.items()
            }
            middle, high = quantiles["ours"]
            its_middle, its_high = quantiles.get("theirs", (None, None))
            times.append(
                CallTime(size, middle, "measured", high, its_middle, its_high, route)
            )
    wrapper._compiled().timed = method, tuple(times), source
    return summary_of(wrapper)


def _source(
    wrapper: Any, method: str, X: Any
) -> tuple[str, Callable[[Any], object] | None]:
    predictor = wrapper._compiled()
    source = predictor.source
    takes_no_mapping = is_mapped(X) and predictor.framed(X) is not X
    function = None if takes_no_mapping else source.origin.method(source, method)
    return "" if function is None else source.class_name, function


def _batches(X: Any, n_rows: int, size: int) -> list[Any]:
    count = max(1, min(BATCHES, n_rows // size))
    starts = np.linspace(0, max(0, n_rows - size), count).astype(int)
    return [take_rows(X, (start + np.arange(size)) % n_rows) for start in starts]


def _fits(times: Sequence[CallTime], size: int, seconds: float, theirs: bool) -> bool:
    if not times:
        return True
    before = times[-1].source_seconds if theirs else times[-1].seconds
    return before is not None and before * size / times[-1].n_rows < 5 * seconds


def _timed(
    calls: Mapping[str, Sequence[Callable[[], object]]], seconds: float
) -> dict[str, list[float]]:
    for batches in calls.values():  # compiles, and warms up
        for call in batches[:2]:
            start = perf_counter()
            call()
            if perf_counter() - start > seconds / 4:
                break
    slot = seconds / ROUNDS / len(calls)
    rings = {name: cycle(batches) for name, batches in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = perf_counter() + seconds
    for number in range(ROUNDS):
        if number and perf_counter() > end:
            break
        for name, ring in rings.items():
            samples[name] += _slot(ring, slot)
    return samples


def _slot(ring: Any, seconds: float) -> list[float]:
    times = []
    end = perf_counter() + seconds
    for call in islice(ring, 1 << 16):
        start = perf_counter()
        call()
        stop = perf_counter()
        times.append(stop - start)
        if stop > end:
            break
    return times


def draw(summary: Summary, ax: Any) -> Any:
    from matplotlib.ticker import EngFormatter

    times = summary.times
    routes = [
        t.route if i == 0 else f"{t.route} from {t.n_rows:,} rows"
        for i, t in enumerate(times)
        if i == 0 or t.route != times[i - 1].route
    ]
    ours = f"CompiledForest ({', '.join(routes)})"
    lines = {ours: [(t.n_rows, t.seconds, t.high) for t in times]}
    if summary.source:
        lines[summary.source] = [
            (t.n_rows, t.source_seconds, t.source_high)
            for t in times
            if t.source_seconds is not None
        ]
    for name, points in lines.items():
        n_rows, middle, high = zip(*points, strict=True)
        (line,) = ax.plot(n_rows, middle, "o-", label=name)
        shade: dict[str, Any] = {"alpha": 0.15, "linewidth": 0}
        ax.fill_between(n_rows, middle, high, color=line.get_color(), **shade)
    ax.fill_between(
        [], [], [], color="grey", label="up to the 99th percentile", **shade
    )
    ax.set(xscale="log", yscale="log", xlabel="batch size", ylabel="time per call")
    ax.set_title(f"{summary.method}: median of single calls")
    ax.set_xticks([t.n_rows for t in times], [f"{t.n_rows:,}" for t in times])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(EngFormatter(unit="s"))
    ax.legend()
    return ax
