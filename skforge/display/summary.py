"""``Summary``: the facts of a fitted ``CompiledForest``, as text and as a card."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from itertools import chain
from string import Template
from textwrap import wrap
from typing import Any, Literal, TypeAlias

import numpy as np

from skforge.compiler.cost.estimate import CostEstimate
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.target import Target
from skforge.display.names import name_of, short_name
from skforge.engine.cpu.threads import resolve_n_jobs
from skforge.engine.machine import known_profile
from skforge.exceptions import duration, plural, three_digits
from skforge.forest.forest import Forest
from skforge.forest.outputs import CLASSIFICATION
from skforge.frontends.content import LIBRARIES
from skforge.prediction.kernel_checks import REFERENCE_ROWS
from skforge.prediction.who_answers import who_answers
from skforge.schedule.bind import kind_of
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule
from skforge.sources.base import Source
from skforge.sources.find import source_of
from skforge.sources.fitted import model_of, start_of
from skforge.tuning.search.ranges import range_text
from skforge.tuning.search.trial import RECORD

Origin: TypeAlias = Literal["measured", "timed in fit", "estimated"]

#: Batch sizes that are shown and measured if the user names none.
SIZES = (1, 8, 64, 512, 4096)

#: Columns of a terminal, and of the text.
WIDTH = 80

#: Nodes up to which a forest is estimated when shown: counting them takes 0.1 s.
MOST_NODES = 200_000


@dataclass(frozen=True, slots=True)
class CallTime:
    """The time of a call with a number of rows.

    Parameters
    ----------
    n_rows : int
        Rows of the call.
    seconds : float
        Seconds of the call: the median if it was measured.
    origin : {"measured", "timed in fit", "estimated"}
        "measured": whole calls, by ``summary(X)``. "timed in fit": kernels alone, by
        the search for schedules. "estimated": kernels alone, by the cost model.
    high : float or None
        The 99th percentile of the measured calls.
    source_seconds, source_high : float or None
        The same of the source's own function; None if it was not measured.
    route : {"entry", "kernel", "steps", "library", ""}
        Who answered most of the measured calls, see :meth:`CompiledForest.counters`.
    """

    n_rows: int
    seconds: float
    origin: Origin
    high: float | None = None
    source_seconds: float | None = None
    source_high: float | None = None
    route: str = ""

    @property
    def faster(self) -> float | None:
        """Time of the source by ours; None if it was not measured."""
        theirs = self.source_seconds
        return None if theirs is None else theirs / self.seconds


def known_times(wrapper: Any, n_threads: int, estimate: bool) -> tuple[CallTime, ...]:
    """Return the times that a fitted wrapper's search measured, or estimates.

    A range of batch sizes whose schedule was not timed here is estimated if
    ``estimate``, the schedule runs on a CPU and the forest is not large.
    """
    here = wrapper.target_ == wrapper.fitted_target_
    result = wrapper.tuning_result_ if here else None
    costs: CostEstimate | None = None
    times: list[CallTime] = []
    for batch, schedule in sorted(wrapper.schedule_.items(), key=lambda s: s[0][0]):
        timed = _searched(result, batch, schedule, n_threads)
        times += timed
        small = wrapper.forest_.n_nodes <= MOST_NODES
        if timed or not (estimate and small) or kind_of(schedule.directives) != "cpu":
            continue
        if costs is None:
            target = wrapper.target_ if wrapper.target_.kind == "cpu" else Target.host()
            costs = CostEstimate(wrapper.forest_, target, known_profile(target))
        first, last = batch
        sizes = [n for n in SIZES if first <= n <= (last or n)]
        seconds = np.atleast_1d(costs.seconds(schedule, sizes, n_threads))
        for n_rows, time in zip(sizes, seconds, strict=True):
            if np.isfinite(time) and time > 0:
                times.append(CallTime(n_rows, float(time), "estimated"))
    return tuple(times)


def _searched(
    result: Any, batch: BatchRange, schedule: Schedule, n_threads: int
) -> list[CallTime]:
    if result is None or result.n_threads != n_threads:
        return []
    first, last = batch
    seconds: dict[int, float] = {}
    for trial in result.trials:
        inside = first <= trial.n_rows <= (last or trial.n_rows)
        if inside and trial.usable and trial.schedule == schedule:
            before = seconds.get(trial.n_rows, np.inf)
            seconds[trial.n_rows] = min(before, trial.seconds)
    return [CallTime(n, s, "timed in fit") for n, s in sorted(seconds.items())]


@dataclass(frozen=True, slots=True)
class SummaryTable:
    title: str
    head: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        table = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        body = ["  " + "  ".join(map(str.rjust, row, widths)).rstrip() for row in table]
        return [self.title, *body, *chain(*map(_wrapped, self.notes))]


def aligned(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return labels and texts as lines, which are broken between words.

    >>> aligned([("trees", "20"), ("features", "5")])
    ['  trees     20', '  features  5']
    """
    width = max(len(label) for label, _ in facts)
    lines = []
    for label, text in facts:
        start = f"  {label.ljust(width)}  "
        lines += _wrapped(text, start, " " * len(start))
    return lines


def _wrapped(text: str, first: str = "", others: str = "") -> list[str]:
    return wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def ranges_of(batches: Iterable[BatchRange]) -> str:
    """Return ranges of batch sizes as text.

    >>> ranges_of([(1, 1)]), ranges_of([(8, None), (1, 7)]), ranges_of([(1, None)])
    ('1 row', '1 to 7, 8 and more rows', 'any number of rows')
    """
    ranges = sorted(batches, key=lambda batch: batch[0])
    if ranges == [(1, None)]:
        return "any number of rows"
    what = "row" if ranges == [(1, 1)] else "rows"
    return f"{', '.join(map(range_text, ranges))} {what}"


# ------------------------------------------------------------ the card


def card(
    title: str,
    facts: Sequence[tuple[str, str]],
    table: SummaryTable | None,
    details: Sequence[tuple[str, str]],
) -> str:
    home = files("skforge.display")
    page = home.joinpath("card.html").read_text("utf-8").rstrip()
    whole, times = map(Template, page.split("\n\n"))
    return whole.substitute(
        style=home.joinpath("card.css").read_text("utf-8"),
        title=escape(title),
        facts="".join(
            f'<tr><th scope="row">{escape(label)}</th><td>{escape(text)}</td></tr>\n'
            for label, text in facts
        ),
        times="" if table is None else times.substitute(_time_table(table)),
        details="".join(
            f"<details><summary>{escape(name)}</summary>"
            f"<pre>{escape(text)}</pre></details>\n"
            for name, text in details
        ),
    )


def _time_table(table: SummaryTable) -> dict[str, str]:
    rows = ["".join(f"<td>{escape(text)}</td>" for text in row) for row in table.rows]
    notes = "".join(f"<div>{escape(note)}</div>\n" for note in table.notes)
    return {
        "title": escape(table.title),
        "head": "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head),
        "rows": "".join(f"<tr>{row}</tr>\n" for row in rows),
        "notes": notes,
    }


#: Who answers a call, see ``CompiledForest.counters``.
ROUTES = {
    "entry": "compiled code that takes the rows from Python",
    "kernel": "compiled code, after Python has read the rows",
    "steps": "steps of the pipeline in their library, then compiled code",
    "library": "the model itself",
}

#: What each reduction promises of the sums.
REDUCTIONS = {
    "reproducible": "sums are rounded unlike the source's, alike for every schedule",
    "fast": "sums are rounded in any order, so that last bits differ from the source's",
}


@dataclass(frozen=True)
class Summary:
    """The facts of a fitted ``CompiledForest``; made by ``CompiledForest.summary``.

    It prints as text, and notebooks show it as a card.

    Attributes
    ----------
    model : str
        Class of the model, or the name of its file.
    library : str
        The library that made the model.
    task : str
        Such as "regression" or "binary classification".
    n_forests : int
        Number of forests; more than one for some wrappers, such as ``VotingRegressor``.
    n_trees, n_nodes : int
        Trees and nodes of all forests.
    depth : (int, int)
        Smallest and largest depth of a leaf.
    n_features : int
        Columns of the rows that the trees read.
    n_outputs : int
        Raw scores per row.
    input_dtype : str
        Dtype of the rows that the trees read.
    reduction : {"exact", "reproducible", "fast"}
        How leaf values are summed.
    n_checked, n_drawn : int
        Rows of ``X`` and random rows on which ``fit`` compared the kernels; both 0 if
        it was fitted in another process.
    reference : str
        What it compared them with: "the model", or for a file, which has no library to
        ask, "the trees as read, evaluated in NumPy".
    target : str
        The machine that predictions run on, or both machines.
    gpu_min_rows : int or None
        Batch size from which the GPU is used; None if there is only one target.
    n_threads : int
        Maximum number of threads of a call.
    compile_seconds : float
        Seconds that ``fit`` spent on reading and compiling, without the search; 0 in a
        loaded file.
    search : str
        The search for schedules, or "" if there was none.
    schedules : dict of (int, int or None) -> Schedule
        The schedule of each range of batch sizes.
    steps : str
        Where each step of a pipeline or member of a model runs, as a table; "" if
        there are none.
    steps_summary : str
        How many of them run where.
    rows : str
        Who answers rows like those given to ``fit``, and what to convert if it is the
        model itself; "" if the object was loaded from a file.
    parameters : dict of str -> object
        The parameters of the ``CompiledForest``.
    method : str
        The method that was timed.
    times : tuple of CallTime
        Times of a call by batch size.
    source : str
        The class of the model whose function was timed with ours, or "".
    """

    model: str
    library: str
    task: str
    n_forests: int
    n_trees: int
    n_nodes: int
    depth: tuple[int, int]
    n_features: int
    n_outputs: int
    input_dtype: str
    reduction: Reduction
    n_checked: int
    n_drawn: int
    reference: str
    target: str
    gpu_min_rows: int | None
    n_threads: int
    compile_seconds: float
    search: str
    schedules: dict[BatchRange, Schedule] = field(repr=False)
    steps: str
    steps_summary: str
    rows: str
    parameters: dict[str, Any] = field(repr=False)
    method: str
    times: tuple[CallTime, ...]
    source: str

    @property
    def exact(self) -> bool:
        """Whether predictions have the source's bits."""
        return self.reduction == "exact"

    @property
    def title(self) -> str:
        """The class, the model and its library."""
        return f"CompiledForest of {self.model} ({self.library})"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and texts: the lines of the text and of the card."""
        low, high = self.depth
        deep = f"{low} to {high}" if low != high else f"{high}"
        within = f" in {self.n_forests} forests" if self.n_forests > 1 else ""
        nodes = plural(self.n_nodes, "node")
        facts = [
            ("trees", f"{self.n_trees:,}{within}, depth {deep}, {nodes}"),
            ("features", f"{self.n_features:,}, read as {self.input_dtype}"),
            ("outputs", f"{self.n_outputs:,}, {self.task}"),
            ("exact", self._check()),
            ("runs on", f"{self.target}; {plural(self.n_threads, 'thread')}"),
        ]
        if self.steps:
            what = self.steps.partition(" ")[0]  # the head of the table
            facts.append((f"{what}s", self.steps_summary))
        if self.rows:
            facts.append(("answers", self.rows))
        if self.compile_seconds:
            facts.append(("compiled in", duration(self.compile_seconds)))
        if self.search:
            facts.append(("search", self.search))
        facts.append(("schedules", f"for {ranges_of(self.schedules)}"))
        if not self.times:
            facts.append(("time", "not measured; summary(X) measures calls"))
        return facts

    def _check(self) -> str:
        if not self.exact:
            return f'no, reduction="{self.reduction}": {REDUCTIONS[self.reduction]}'
        if self.n_checked or self.n_drawn:
            return (
                f"yes; fit compared {plural(self.n_checked, 'row')} of X and "
                f"{self.n_drawn} random rows with {self.reference}, bit by bit"
            )
        return (
            f"yes; each kernel is compared with the trees on {REFERENCE_ROWS} random "
            "rows before its first answer"
        )

    @property
    def table(self) -> SummaryTable | None:
        """The times by batch size; None if nothing is known."""
        if not self.times:
            return None
        times, notes = self.times, list[str]()
        columns: dict[str, list[str]] = {
            "batch size": [f"{t.n_rows:,}" for t in times],
            "per row": [duration(t.seconds / t.n_rows) for t in times],
            "per call": [duration(t.seconds) for t in times],
        }
        if times[0].origin != "measured":
            origins = {t.origin for t in times}
            if len(origins) > 1:
                columns["how"] = [t.origin for t in times]
            what = "Estimated time" if origins == {"estimated"} else "Time"
            title = f"{what} of kernels alone, by batch size"
            notes.append(
                "A call from Python takes longer, above all with a frame; summary(X) "
                "measures calls."
            )
        else:
            title = f"Time of {self.method} by batch size: medians of single calls"
            columns["99% within"] = [duration(t.high) for t in times]
            columns["answered by"] = [t.route for t in times]
            if self.source:
                columns["model's own"] = [duration(t.source_seconds) for t in times]
                columns["faster"] = [_times(t.faster) for t in times]
                notes.append(
                    f"The model's own calls are those of {self.source}, with as many "
                    "OpenMP threads."
                )
            routes = dict.fromkeys(t.route for t in times)
            notes += [f"{route}: {ROUTES[route]}" for route in routes if route]
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        return SummaryTable(title, [*columns], rows, tuple(notes))

    def __repr__(self) -> str:
        lines = [self.title, *aligned(self.facts)]
        table = self.table
        if table is not None:
            lines += ["", *table.lines()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        lines = (
            f"{ranges_of({batch: schedule})}: {schedule!r}"
            for batch, schedule in sorted(self.schedules.items(), key=lambda s: s[0][0])
        )
        set_to = "\n".join(f"{k}={v!r}" for k, v in self.parameters.items())
        details = [("Schedules", "\n".join(lines)), ("Parameters", set_to)]
        if self.steps:
            details.insert(0, ("Steps", self.steps))
        return card(self.title, self.facts, self.table, details)


def summary_of(wrapper: Any) -> Summary:
    """Return the facts of a fitted wrapper; nothing is compiled or measured.

    The times are those measured by the last ``summary(X)``, or else those of the
    search, or else the cost model's estimate; these are of kernels, and left out if
    the model itself answers rows like those of ``fit``, or steps run in their library.
    """
    state = wrapper.__dict__
    predictor, model = state.get("_predictor"), model_of(wrapper)
    forest, start = wrapper.forest_, start_of(wrapper)
    adapter = predictor.source if predictor else source_of(model, forest, start)
    forests: list[Forest] = [forest, *adapter.answers.more]
    n_threads = 1  # of an n_jobs that calls refuse
    with suppress(TypeError, ValueError):
        n_threads = resolve_n_jobs(wrapper.n_jobs)
    checked = (0, 0) if predictor is None else predictor.checked
    timed = None if predictor is None else predictor.timed
    method, times, source = timed or ("", (), "")
    outside = state.get("_fallback") or adapter.members or adapter.before
    if not times and not outside:
        times = known_times(wrapper, n_threads, estimate=not adapter.answers.by_members)
    split, result = state.get("_split"), wrapper.tuning_result_
    rows, machines = wrapper.gpu_min_rows_, str(wrapper.target_)
    if rows is not None:
        machines = f"{Target.host()}; from {rows:,} rows on {machines}"
    bounds = [member.leaf_depths() for member in forests if member.n_trees]
    return Summary(
        model=name_of(model),
        library=LIBRARIES.get(forest.source, forest.source),
        task=_task(wrapper, adapter),
        n_forests=len(forests),
        n_trees=sum(member.n_trees for member in forests),
        n_nodes=sum(member.n_nodes for member in forests),
        depth=(
            min((int(low.min()) for low, _ in bounds), default=0),
            max((int(high.max()) for _, high in bounds), default=0),
        ),
        n_features=forest.n_columns,
        n_outputs=sum(member.n_outputs for member in forests),
        input_dtype=forest.input_dtype.name,
        reduction=state["_asked"][1],
        n_checked=checked[0],
        n_drawn=checked[1],
        reference=adapter.origin.reference,
        target=machines,
        gpu_min_rows=rows,
        n_threads=n_threads,
        compile_seconds=wrapper.compile_time_,
        search="" if result is None else _search_line(result),
        schedules=dict(wrapper.schedule_),
        steps="" if split is None else str(split),
        steps_summary="" if split is None else split.summary.partition(": ")[2],
        rows=who_answers(state),
        parameters=_parameters(wrapper, short_name(model, forest)),
        method=method,
        times=times,
        source=source,
    )


def _parameters(wrapper: Any, estimator: Any) -> dict[str, Any]:
    parameters = wrapper.get_params(deep=False) | {"estimator": estimator}
    if parameters["tuning_budget"] == "deprecated":
        del parameters["tuning_budget"]
    return {"estimator": estimator} | parameters


def _task(wrapper: Any, adapter: Source) -> str:
    task = wrapper.forest_.task
    if adapter.answers.by_members:
        kind = wrapper.__sklearn_tags__().estimator_type
        return "classification" if kind == "classifier" else "regression"
    if task in CLASSIFICATION:
        return f"{task} classification"
    return "outlier detection" if task == "outlier" else str(task)


def _times(faster: float | None) -> str:
    """Return a ratio of times.

    >>> _times(1.234), _times(1234.5), _times(None)
    ('1.23×', '1,234×', '–')
    """
    return "–" if faster is None else f"{three_digits(faster)}×"


def _search_line(result: Any) -> str:
    if result.strategy == RECORD:
        return "the schedules of an earlier search"
    counts = result.counts()
    timed = sum(counts.get(name, 0) for name in ("measured", "stopped", "same code"))
    if result.trials:
        tried = f"{timed} of {len(result.trials)} candidates timed"
    else:
        tried = "no schedule promised enough gain to be timed"
    return f"{result.strategy}, {duration(result.seconds)}, {tried}"
