"""The result of a search: the chosen schedules and all trials."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from skforge.engine.schedules import table_at
from skforge.exceptions import InvalidInputError, check_choice, duration, plural
from skforge.runtime.records import fields_in, fields_of, values_out
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule
from skforge.tuning.search.ranges import rows_text
from skforge.tuning.search.trial import DEFAULT, RECORD, STATUSES, Trial

VERSION = 2
#: Words of the report for outcomes of which the name alone says little.
_OUTCOMES = {"stopped": "abandoned early", "no time": "skipped (budget used up)"}


@dataclass(frozen=True, slots=True, eq=False)
class TuningResult:
    """The chosen schedules of a search, and all its trials.

    Parameters
    ----------
    table : mapping of (int, int or None) to Schedule
        The chosen schedule of each range of batch sizes.
    trials : tuple of Trial
        One trial for each candidate and batch size, in the order tried.
    strategy : str
        The name of the search strategy.
    target : str
        A description of the machine.
    reduction : str
        How leaf values were summed.
    n_threads : int
        Threads that a call could use.
    budget : float or None
        Seconds allowed.
    seconds : float
        Seconds taken, including compilation.
    space : str
        The name and size of the searched space.
    n_points : int or None
        Points of the space times the number of ranges, as an exhaustive search would
        try them. None if there are too many to count.
    n_tried : int
        Candidates tried, with any status except "no time".
    trying_seconds : float
        Seconds spent on these candidates, without the default schedules and the final
        comparison.
    notes : tuple of str
        Remarks, such as random rows, an interruption or the use of a record.
    complete : bool
        Whether the search finished within its budget.
    """

    table: Mapping[BatchRange, Schedule]
    trials: tuple[Trial, ...] = field(repr=False)
    strategy: str
    target: str
    reduction: str = "exact"
    n_threads: int = 1
    budget: float | None = None
    seconds: float = 0.0
    space: str = ""
    n_points: int | None = None
    n_tried: int = 0
    trying_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    complete: bool = True

    def __post_init__(self) -> None:
        """Keep read-only copies."""
        object.__setattr__(self, "table", MappingProxyType(dict(self.table)))
        object.__setattr__(self, "trials", tuple(self.trials))
        object.__setattr__(self, "notes", tuple(self.notes))

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from text: a read-only view does not pickle."""
        return TuningResult.from_json, (self.to_json(),)

    # ---------------------------------------------------------------- content

    @property
    def best(self) -> dict[BatchRange, Trial]:
        """The fastest trial of the chosen schedule, for each range of ``table``.

        Omits ranges without measurements, such as those from a record.
        """
        best = {}
        for (first, last), schedule in self.table.items():
            timed = [
                t
                for t in self.trials
                if t.schedule == schedule and t.usable
                if first <= t.n_rows <= (t.n_rows if last is None else last)
            ]
            if timed:
                best[first, last] = min(timed, key=lambda t: t.relative)
        return best

    def speedup(self, n_rows: int) -> float:
        """Return the speedup of the choice for a batch size over the default schedule.

        Uses the trial in ``best`` of the range that holds ``n_rows``, or of the nearest
        lower range; 1.0 if nothing was timed.
        """
        best = self.best
        return 1 / table_at(best, n_rows).relative if best else 1.0

    def rows(self) -> list[dict[str, Any]]:
        """Return the trials as a list of dicts."""
        return [
            {
                "trial": number,
                "machine": trial.machine,
                "first_row": trial.batch[0],
                "last_row": trial.batch[1],
                "n_rows": trial.n_rows,
                "origin": trial.candidate.origin,
                "status": trial.status,
                "reason": trial.reason,
                "seconds": trial.seconds,
                "low": trial.spread[0],
                "high": trial.spread[1],
                "us_per_row": trial.seconds / trial.n_rows * 1e6,
                "relative": trial.relative,
                "n_samples": len(trial.samples),
                "compile_seconds": trial.compile_seconds,
                "digest": trial.digest,
                "schedule": trial.schedule,
                "params": dict(trial.candidate.params),
            }
            for number, trial in enumerate(self.trials)
        ]

    def to_pandas(self) -> Any:
        """Return a data frame with a row for each trial.

        Returns
        -------
        pandas.DataFrame
            ``seconds``, ``low`` and ``high`` are the median and quartiles of the time
            per call, ``relative`` the ratio to the default schedule. Parameters are in
            columns ``param_*``.
        """
        import pandas

        rows = self.rows()
        for row in rows:
            row |= {f"param_{k}": v for k, v in row.pop("params").items()}
        return pandas.DataFrame(rows)

    def beside(self, other: TuningResult) -> TuningResult:
        """Return this result with the trials of another machine's result appended.

        The table stays the same; it does not say which machine runs a batch.
        """
        return replace(
            self,
            trials=(*self.trials, *other.trials),
            target=f"{self.target} and {other.target}",
            space=f"{self.space} and {other.space}",
            n_points=_sum(self.n_points, other.n_points),
            n_tried=self.n_tried + other.n_tried,
            trying_seconds=self.trying_seconds + other.trying_seconds,
            seconds=self.seconds + other.seconds,
            budget=_sum(self.budget, other.budget),
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
            complete=self.complete and other.complete,
        )

    def counts(self) -> dict[str, int]:
        """Return the number of trials with each status."""
        counted = Counter(trial.status for trial in self.trials)
        return {status: counted[status] for status in STATUSES if counted[status]}

    @property
    def share_tried(self) -> float | None:
        """The share of all points that was tried; None if their number is unknown."""
        return self.n_tried / self.n_points if self.n_points else None

    @property
    def exhaustive_seconds(self) -> float | None:
        """Estimated seconds of an exhaustive search.

        The mean seconds per candidate of this search, including compilation and first
        measurement, times ``n_points``. None if these are unknown.
        """
        if not (self.n_points and self.n_tried and self.trying_seconds):
            return None
        return self.trying_seconds / self.n_tried * self.n_points

    def summary(self) -> str:
        """Return a short report of the search, its time and its best schedules."""
        return report(self)

    @property
    def conclusion(self) -> str:
        """What the search chose, as a sentence."""
        if self.strategy == RECORD:
            return "The schedules are those of an earlier search."
        best = self.best
        if not best:
            return "Nothing was timed."
        gains = sorted(
            1 / trial.relative
            for trial in best.values()
            if trial.candidate.origin != DEFAULT
        )
        if not gains:
            return "No schedule was faster than the defaults, so these stay."
        low, high = f"{gains[0]:.2f}", f"{gains[-1]:.2f}"
        times = high if low == high else f"{low} to {high}"
        return (
            f"For {len(gains)} of {plural(len(self.table), 'range')} of batch sizes, "
            f"another schedule was {times} times as fast as the default."
        )

    __str__ = summary

    def __repr__(self) -> str:
        return (
            f"<TuningResult: {self.strategy} on {self.target}, "
            f"{plural(len(self.trials), 'trial')}, {self.seconds:.2f} s>"
        )

    def plot(self, kind: str = "distribution", **options: Any) -> Any:
        """Draw the result with matplotlib.

        Parameters
        ----------
        kind : {"distribution", "slowdown", "sensitivity"}
            "distribution": histograms of times relative to the best of each batch size,
            as in Figure 5 of SilvanForge. "slowdown": every trial's time relative to
            the default, in order, and the best so far. "sensitivity": the slowdown of
            the best schedule of one batch size at another, as in Figure 2.
        **options : dict
            ``ax``, the axes to draw on.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from skforge.tuning.plots import distribution, sensitivity, slowdown

        plots = {plot.__name__: plot for plot in (distribution, slowdown, sensitivity)}
        check_choice("kind", kind, plots)
        return plots[kind](self.trials, **options)

    # --------------------------------------------------------------- storage

    def to_json(self) -> str:
        """Return the result as JSON text; values of points become plain ones."""
        trials = []
        for trial in self.trials:
            params = plain_params(trial.candidate.params)
            candidate = replace(trial.candidate, params=params)
            trials.append(replace(trial, candidate=candidate))
        facts = fields_of(self) | {"trials": trials}
        return json.dumps({"version": VERSION, **values_out(facts)})

    @classmethod
    def from_json(cls, text: str) -> TuningResult:
        """Return the result from the text of :meth:`to_json`.

        Raises
        ------
        InvalidInputError
            If the text is not a tuning result, or has another version.
        """
        try:
            content = json.loads(text)
            if content["version"] != VERSION:
                raise InvalidInputError(
                    f"the tuning result has version {content['version']!r}, but this "
                    f"skforge reads version {VERSION}."
                )
            return cls(**fields_in(cls, content))
        except InvalidInputError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InvalidInputError(
                f"the text is not a tuning result ({type(error).__name__}: {error}); "
                "pass what TuningResult.to_json returned."
            ) from error


def report(result: TuningResult, schedules: bool = True, notes: bool = True) -> str:
    """Return the text of a search; its schedules and notes can be left out."""
    budget = "" if result.budget is None else f" of {result.budget:g}"
    lines = [
        f"{result.strategy} on {result.target}, {result.reduction} sums, "
        f"{plural(result.n_threads, 'thread')}: {result.seconds:.2f}{budget} s"
    ]
    if result.space:
        lines.append(f"searched {result.space}")
    whole = result.exhaustive_seconds
    if whole is not None:
        lines.append(
            f"tried {result.n_tried:,} of {result.n_points:,} points "
            f"({_share(result.n_tried, result.n_points or 1)}); trying all would take "
            f"an estimated {whole:.3g} s, and this search took "
            f"{_share(result.seconds, whole)} of that"
        )
    counted = ", ".join(
        f"{n} {_OUTCOMES.get(status, status)}" for status, n in result.counts().items()
    )
    lines.append(f"trials: {counted or 'none'}")
    table = sorted(result.table.items(), key=lambda item: item[0][0])
    if best := result.best:
        rows = [_row(batch, best.get(batch)) for batch, _ in table]
        lines += ["", "The chosen schedules, compared with the default"]
        lines += _columns([_HEAD, *rows])
    if schedules:
        chosen = (f"  {rows_text(batch)}: {schedule!r}" for batch, schedule in table)
        lines += ["", "Schedules", *chosen]
    lines += ["", result.conclusion]
    lines += [f"note: {note}" for note in result.notes if notes]
    if not result.complete:
        lines.append("note: the budget ended before the search did")
    return "\n".join(lines)


_HEAD = ("batch size", "timed at", "per row", "quartiles", "speedup")


def _row(batch: BatchRange, trial: Trial | None) -> tuple[str, ...]:
    if trial is None:
        return rows_text(batch), "–", "–", "–", "–"
    low, high = (duration(seconds / trial.n_rows) for seconds in trial.spread)
    return (
        rows_text(batch),
        plural(trial.n_rows, "row"),
        duration(trial.seconds / trial.n_rows),
        f"{low} to {high}",
        f"{1 / trial.relative:.2f}×",
    )


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.rjust, row, widths)) for row in rows]


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    plain = (str, int, float, bool, type(None))
    return {k: v if isinstance(v, plain) else repr(v) for k, v in params.items()}


def _sum(*numbers: Any) -> Any:
    return None if None in numbers else sum(numbers)


def _share(part: float, whole: float) -> str:
    """Return a share below 1/2 as "1/80", another as "60%"."""
    return f"1/{whole / part:.0f}" if whole > 2 * part else f"{part / whole:.0%}"
