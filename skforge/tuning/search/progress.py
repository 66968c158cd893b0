"""Show the progress of a search: a bar in terminals and notebooks, lines in logs."""

from __future__ import annotations

import sys
from typing import Any

from skforge.compiler.defaults.walks import BatchRange
from skforge.tuning.search.ranges import range_text
from skforge.tuning.search.trial import Trial


class Progress:
    """Shows the progress of a search; ``verbose=0`` shows nothing.

    Terminals and notebooks get one bar that is redrawn; other streams get one line for
    each range of batch sizes. ``verbose=2`` adds a line for each candidate with its
    time and schedule. Lines go to ``stream``, or to standard error.
    """

    def __init__(self, verbose: int, seconds: float, stream: Any = None) -> None:
        self._verbose, self._seconds, self._stream = verbose, seconds, stream
        self._bar: Any = None
        self._task: Any = None
        self._last: tuple[BatchRange, int, float, float] | None = None

    def __enter__(self) -> Progress:
        """Start the bar, if any."""
        if not self._verbose:
            return self
        from rich.console import Console

        console = Console(file=self._stream, stderr=self._stream is None)
        if console.is_terminal or console.is_jupyter:
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
        return self

    def tell(self, trial: Trial, n_trials: int, best: float, seconds: float) -> None:
        """Show the result of a candidate."""
        now = (trial.batch, n_trials, best, seconds)
        before, self._last = self._last, now
        if self._bar is not None:
            self._bar.update(self._task, completed=seconds, what=_line(*now))
        elif self._verbose and before is not None and before[0] != trial.batch:
            self._print(_line(*before))
        if self._verbose > 1:
            self._print(trial_line(trial))

    def __exit__(self, *_: object) -> None:
        """Stop the bar, or print the last line."""
        if self._bar is not None:
            self._bar.stop()
        elif self._verbose and self._last is not None:
            self._print(_line(*self._last))

    def _print(self, text: str) -> None:
        text = f"tuning: {text}"
        if self._bar is not None:  # prints above the bar
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream or sys.stderr, flush=True)


def trial_line(trial: Trial) -> str:
    """Return the result of a candidate as one line.

    >>> from skforge.compiler.schedule.schedule import Schedule
    >>> from skforge.tuning import Candidate, Trial
    >>> two = Candidate(Schedule().interleave("tree", 2))
    >>> trial_line(Trial((1, 1), 1, two, "measured", "", (2.5e-6,), 0.5))
    '1 rows: 2.50 us, 2.00 times the default: Schedule().interleave("tree", 2)'
    >>> trial_line(Trial((1, 1), 1, two, "too large", "1,000 loops."))
    '1 rows: too large, 1,000 loops: Schedule().interleave("tree", 2)'
    """
    what: Any = trial.schedule
    if what is None:
        what = dict(trial.candidate.params)
    told: str = trial.status
    if trial.samples:
        times = 1 / trial.relative
        told = f"{trial.seconds * 1e6:.2f} us, {times:.2f} times the default"
    if trial.reason:
        told += f", {trial.reason.splitlines()[0].rstrip('.')}"
    return f"{trial.n_rows} rows: {told}: {what!r}"


def _line(batch: BatchRange, n_trials: int, best: float, seconds: float) -> str:
    return (
        f"{range_text(batch)} rows, {n_trials} trials, {1 / best:.2f} times the "
        f"default, {seconds:.1f} s"
    )
