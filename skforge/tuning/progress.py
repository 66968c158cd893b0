"""The progress of a search: a bar, or lines of a log."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from multiprocessing import current_process
from typing import Any

from skforge.compiler.schedule.ranges import BatchRange
from skforge.tuning.search.ranges import range_text
from skforge.tuning.search.trial import Trial

#: Seconds after which a search shows a bar without being asked.
PATIENCE = 1.0


class Progress:
    """Shows the progress of a search.

    ``verbose=None`` shows a bar once a search has run for ``PATIENCE`` seconds, if
    standard error is a terminal or this is a notebook with ipywidgets, and only in the
    main process: never in pipes, logs and workers. 0 shows nothing. With 1, terminals
    and such notebooks get the bar at once, and other streams one line for each range of
    batch sizes. 2 adds a line for each candidate with its time and schedule. Lines go
    to ``stream``, or to standard error.
    """

    def __init__(self, verbose: int | None, seconds: float, stream: Any = None) -> None:
        self._patient = verbose is None
        self._verbose, self._seconds, self._stream = verbose or 0, seconds, stream
        self._bar: Any = None
        self._task: Any = None
        self._last: tuple[BatchRange, str] | None = None

    def __enter__(self) -> Progress:
        if self._verbose:
            self._start()
        return self

    def _start(self) -> None:
        from rich.console import Console

        console = Console(file=self._stream, stderr=self._stream is None)
        if console.is_terminal or (console.is_jupyter and _has_widgets()):
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("tuning"),
                BarColumn(),
                TextColumn("{task.completed:.1f} of {task.total:.1f} s"),
                TextColumn("{task.fields[what]}"),
                console=console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._seconds, what="")

    def tell(self, trial: Trial, n_trials: int, best: float, seconds: float) -> None:
        line = (
            f"{range_text(trial.batch)} rows, {n_trials} trials, {1 / best:.2f} times "
            f"as fast as the default, {seconds:.1f} s"
        )
        before, self._last = self._last, (trial.batch, line)
        if self._patient and seconds > PATIENCE:
            self._patient = False
            if _is_watched(self._stream or sys.stderr):
                self._start()
        if self._bar is not None:
            self._bar.update(self._task, completed=seconds, what=line)
        elif self._verbose and before is not None and before[0] != trial.batch:
            self._print(before[1])
        if self._verbose > 1:
            self._print(trial_line(trial))

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._verbose and self._last is not None:
            self._print(self._last[1])

    def _print(self, text: str) -> None:
        text = f"tuning: {text}"
        if self._bar is not None:  # prints above the bar
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream or sys.stderr, flush=True)


def _is_watched(stream: Any) -> bool:
    if current_process().name != "MainProcess":
        return False
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return bool(stream.isatty() or (hasattr(shell, "kernel") and _has_widgets()))


def _has_widgets() -> bool:
    return find_spec("ipywidgets") is not None


def trial_line(trial: Trial) -> str:
    """Return the result of a candidate as one line.

    >>> from skforge.compiler.schedule.schedule import Schedule
    >>> from skforge.tuning import Candidate, Trial
    >>> two = Candidate(Schedule().interleave("tree", 2))
    >>> print(trial_line(Trial((1, 1), 1, two, "measured", "", (2.5e-6,), 0.5)))
    1 rows: 2.50 us, 2.00 times as fast as the default: Schedule().interleave("tree", 2)
    >>> trial_line(Trial((1, 1), 1, two, "too large", "1,000 loops."))
    '1 rows: too large, 1,000 loops: Schedule().interleave("tree", 2)'
    """
    tried = dict(trial.candidate.params) if trial.schedule is None else trial.schedule
    outcome: str = trial.status
    if trial.samples:
        times = f"{1 / trial.relative:.2f} times as fast as the default"
        outcome = f"{trial.seconds * 1e6:.2f} us, {times}"
    if trial.reason:
        outcome += f", {trial.reason.splitlines()[0].rstrip('.')}"
    return f"{trial.n_rows} rows: {outcome}: {tried!r}"
