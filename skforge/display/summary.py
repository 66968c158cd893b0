"""``Summary``: the facts of a fitted ``CompiledForest``, as text and as a card."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from skforge.compiler.defaults.walks import BatchRange
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import CLASSIFICATION
from skforge.compiler.frontends.base import is_pipeline, last_step
from skforge.compiler.frontends.content import is_path
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.runtime.cpu.threads import resolve_n_jobs
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.display.text import Table, aligned, card, duration, plural, ranges_of
from skforge.display.times import CallTime, known_times
from skforge.prediction.arrival import REFERENCE_ROWS
from skforge.sources.base import Source
from skforge.sources.delegation import model_of, start_of
from skforge.sources.find import source_of
from skforge.sources.stored_model import StoredModel
from skforge.tuning.search.trial import RECORD

#: Names of the libraries, by ``Forest.source``.
LIBRARIES = {
    "sklearn": "scikit-learn",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "onnx": "ONNX",
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
        Rows of ``X`` and drawn rows on which ``fit`` compared the kernels with the
        model; both 0 if it was fitted in another process.
    target : str
        The machine that predictions run on, or both machines.
    gpu_min_rows : int or None
        Batch size from which the GPU is used; None if there is only one target.
    n_threads : int
        Maximum number of threads of a call.
    compile_seconds : float
        Seconds that ``fit`` spent on reading and compiling, without the search.
    search : str
        The search for schedules, or "" if there was none.
    schedules : dict of (int, int or None) -> Schedule
        The schedule of each range of batch sizes.
    steps : str
        Where each step of a pipeline runs, as a table; "" if the model is none.
    steps_summary : str
        How many steps run where.
    method : str
        The method that was timed.
    times : tuple of CallTime
        Times of a call by batch size.
    source : str
        The function of the model that was timed beside ours, or "".
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
    target: str
    gpu_min_rows: int | None
    n_threads: int
    compile_seconds: float
    search: str
    schedules: dict[BatchRange, Schedule] = field(repr=False)
    steps: str
    steps_summary: str
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
        found = [
            ("trees", f"{self.n_trees:,}{within}, depth {deep}, {nodes}"),
            ("features", f"{self.n_features:,}, read as {self.input_dtype}"),
            ("outputs", f"{self.n_outputs:,}, {self.task}"),
            ("exact", self._check()),
            ("runs on", self._place()),
        ]
        if self.steps:
            found.append(("steps", self.steps_summary))
        found.append(("compiled in", duration(self.compile_seconds)))
        if self.search:
            found.append(("search", self.search))
        found.append(("schedules", f"for {ranges_of(self.schedules)}"))
        if not self.times:
            found.append(("time", "not measured; summary(X) measures calls"))
        return found

    def _check(self) -> str:
        if not self.exact:
            return f'no, reduction="{self.reduction}": {REDUCTIONS[self.reduction]}'
        if self.n_checked or self.n_drawn:
            return (
                f"yes; fit compared {plural(self.n_checked, 'row')} of X and "
                f"{self.n_drawn} drawn rows with the model, bit by bit"
            )
        return (
            f"yes; each kernel is compared with the trees on {REFERENCE_ROWS} drawn "
            "rows before its first answer"
        )

    def _place(self) -> str:
        return f"{self.target}; {plural(self.n_threads, 'thread')}"

    @property
    def table(self) -> Table | None:
        """The times by batch size; None if nothing is known."""
        if not self.times:
            return None
        head = ["rows a call", "µs a row", "a call"]
        rows = [
            [f"{t.n_rows:,}", f"{t.seconds / t.n_rows * 1e6:.3g}", duration(t.seconds)]
            for t in self.times
        ]

        def add(name: str, cells: list[str]) -> None:
            head.append(name)
            for row, cell in zip(rows, cells, strict=True):
                row.append(cell)

        if self.times[0].origin != "measured":
            add("how", [t.origin for t in self.times])
            note = (
                "Kernels alone, without Python's call; summary(X) measures whole calls."
            )
            return Table("Time by batch size", head, rows, note)
        add("99th percentile", [duration(t.high) for t in self.times])
        note = ""
        if self.source:
            add(self.source, [duration(t.source_seconds) for t in self.times])
            add("faster", [_times(t.faster) for t in self.times])
            note = f"{self.source} may use as many OpenMP threads as skforge."
        title = f"Time of {self.method} by batch size: medians of single calls"
        return Table(title, head, rows, note)

    def __str__(self) -> str:
        """Return the facts and times as aligned text."""
        lines = [self.title, *aligned(self.facts)]
        table = self.table
        if table is not None:
            lines += ["", *table.lines()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the text, for shells."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the card, for notebooks."""
        details = [("Schedules", "\n".join(self._schedule_lines()))]
        if self.steps:
            details.insert(0, ("Steps", self.steps))
        return card(self.title, self.facts, self.table, details)

    def _schedule_lines(self) -> list[str]:
        return [
            f"{ranges_of({batch: one})}: {one!r}"
            for batch, one in sorted(self.schedules.items(), key=lambda s: s[0][0])
        ]


def summary_of(
    wrapper: Any, method: str = "", times: tuple[CallTime, ...] = (), source: str = ""
) -> Summary:
    """Return the facts of a fitted wrapper; nothing is compiled or measured.

    Without ``times``, those measured by an earlier ``summary(X)`` are used, or else
    those of the search, or else the cost model's estimate.
    """
    state = wrapper.__dict__
    predictor, model, forest = (
        state.get("_predictor"),
        model_of(wrapper),
        wrapper.forest_,
    )
    adapter = (
        predictor.source if predictor else source_of(model, forest, start_of(wrapper))
    )
    forests: list[Forest] = [forest, *adapter.more]
    n_threads = _threads(wrapper.n_jobs)
    checked = (0, 0) if predictor is None else predictor.checked
    if not times and predictor is not None and predictor.timed is not None:
        method, times, source = predictor.timed
    if not times:
        times = known_times(wrapper, n_threads, estimate=not adapter.answers)
    split, found = state.get("_split"), wrapper.tuning_result_
    bounds = [one.leaf_depths() for one in forests if one.n_trees]
    return Summary(
        model=name_of(model),
        library=LIBRARIES.get(forest.source, forest.source),
        task=_task(wrapper, adapter),
        n_forests=len(forests),
        n_trees=sum(one.n_trees for one in forests),
        n_nodes=sum(one.n_nodes for one in forests),
        depth=(
            min((int(low.min()) for low, _ in bounds), default=0),
            max((int(high.max()) for _, high in bounds), default=0),
        ),
        n_features=forest.n_features,
        n_outputs=sum(one.n_outputs for one in forests),
        input_dtype=forest.input_dtype.name,
        reduction=state["_asked"][1],
        n_checked=checked[0],
        n_drawn=checked[1],
        target=_machines(wrapper),
        gpu_min_rows=wrapper.gpu_min_rows_,
        n_threads=n_threads,
        compile_seconds=wrapper.compile_time_,
        search="" if found is None else _search_line(found),
        schedules=dict(wrapper.schedule_),
        steps="" if split is None else str(split),
        steps_summary="" if split is None else split.summary.removeprefix("steps: "),
        method=method,
        times=times,
        source=source,
    )


def _machines(wrapper: Any) -> str:
    """Return the target, or the CPU and the GPU with its first batch size."""
    rows, target = wrapper.gpu_min_rows_, str(wrapper.target_)
    return (
        target if rows is None else f"{Target.host()}; from {rows:,} rows on {target}"
    )


def _threads(n_jobs: Any) -> int:
    """Return the threads of a call; 1 for what calls refuse."""
    try:
        return resolve_n_jobs(n_jobs)
    except (TypeError, ValueError):
        return 1


def _task(wrapper: Any, adapter: Source) -> str:
    """Return the task; that of the model if it makes answers of several scores."""
    task = wrapper.forest_.task
    if adapter.answers:
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
    if faster is None:
        return "–"
    return f"{faster:,.0f}×" if faster >= 100 else f"{faster:.3g}×"


def _search_line(found: Any) -> str:
    if found.strategy == RECORD:
        return "the schedules of an earlier search"
    counts = found.counts()
    timed = sum(counts.get(one, 0) for one in ("measured", "stopped", "same code"))
    if found.trials:
        tried = f"{timed} of {len(found.trials)} candidates timed"
    else:
        tried = "no schedule promised enough gain to be timed"
    return f"{found.strategy}, {duration(found.seconds)}, {tried}"


def name_of(model: Any) -> str:
    """Return a short name of a model: its class, or its file."""
    if isinstance(model, StoredModel):
        return model.class_name
    if is_path(model):
        return str(os.path.basename(os.fspath(model)))
    if isinstance(model, (str, bytes)):
        return "model in memory"
    name = type(model).__name__
    if is_pipeline(model):
        return f"{name} ending in {type(last_step(model)).__name__}"
    return name
