"""Show how far a command is: a bar in terminals, and one closing line."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from skforge.cli.report import duration


class RowsProgress:
    """Counts rows; draws a bar on standard error if that is a terminal.

    Parameters
    ----------
    what : str
        What is done, for the bar.
    total : int or None
        What :meth:`add` counts up to; None if it is not known.
    """

    def __init__(self, what: str, total: int | None) -> None:
        self.n_rows, self._start = 0, perf_counter()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn(what),
                BarColumn(),
                *([] if total is None else [TaskProgressColumn()]),
                TextColumn("{task.fields[rate]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(what, total=total, rate="")

    def __enter__(self) -> RowsProgress:
        """Show the bar, if there is one."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def add(self, n_rows: int, done: int) -> None:
        """Count rows; ``done`` is how much of the total has been read."""
        self.n_rows += n_rows
        if self._bar is not None:
            self._bar.update(self._task, completed=done, rate=self.rate())

    def rate(self) -> str:
        """Return the rows and the rows a second so far."""
        seconds = max(perf_counter() - self._start, 1e-9)
        return f"{self.n_rows:,} rows, {_two_digits(self.n_rows / seconds):,} rows/s"

    def closing(self, what: str) -> str:
        """Return the line that says what was done, in what time."""
        seconds = perf_counter() - self._start
        speed = f"{_two_digits(self.n_rows / max(seconds, 1e-9)):,} rows/s"
        return f"{what} in {duration(seconds)}, {speed}"


def _two_digits(value: float) -> int:
    """Return a number rounded to two digits.

    >>> _two_digits(123456.7)
    120000
    """
    return int(float(f"{value:.2g}"))
