"""Candidates that a strategy proposes, and trials: their measured results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from skforge.exceptions import duration, plural
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

#: "measured": all samples were taken. "stopped": timing ended early because it was too
#: slow. "same code": an earlier trial of the same machine code has its time. "illegal":
#: the schedule language, the forest or the target refuses it. "too large": it would
#: need too much memory. "spills": its GPU kernel would spill registers, so it is not
#: run. "wrong": its predictions differ. "failed": compiling or running it raised. "no
#: time": the budget ended first.
Status: TypeAlias = Literal[
    "measured", "stopped", "same code", "illegal", "too large", "spills", "wrong",
    "failed", "no time",
]  # fmt: skip
STATUSES: tuple[Status, ...] = get_args(Status)

#: Origins of candidates that come from no space: the static default, a record.
DEFAULT, RECORD = "default", "record"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule to try.

    Parameters
    ----------
    schedule : Schedule or None
        The schedule; None if the schedule language refuses the point.
    params : mapping of str to object
        The point of the space that the schedule was made from; empty if it has none.
    origin : str
        "default", "record" or the name of the strategy that proposed it.
    refused : str
        The reason if ``schedule`` is None.
    """

    schedule: Schedule | None
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    refused: str = ""

    def __post_init__(self) -> None:
        """Keep a read-only copy of the point."""
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))

    @property
    def key(self) -> Any:
        """What tells it from other candidates: the schedule, or else the point."""
        if self.schedule is not None:
            return self.schedule
        return repr(sorted(self.params.items(), key=lambda item: item[0]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from a plain dict: a read-only view does not pickle."""
        parts = (self.schedule, dict(self.params), self.origin, self.refused)
        return type(self), parts


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a candidate at one batch size.

    Parameters
    ----------
    batch : (int, int or None)
        The range of batch sizes that the candidate was tried for.
    n_rows : int
        The batch size that was timed.
    candidate : Candidate
        The candidate.
    status : str
        One of ``STATUSES``.
    reason : str
        The reason for the status, as a sentence; empty for "measured".
    samples : tuple of float
        Seconds per call; each sample is the mean of many consecutive calls.
    relative : float
        The median ratio of its time to the default schedule's in the same round; NaN
        if it was not timed.
    compile_seconds : float
        Seconds of lowering and compiling; 0 if the code existed already.
    digest : str
        A hash of the code: equal for schedules that lower to the same code.
    machine : str
        The kind of target, such as "cpu" or "cuda".
    """

    batch: BatchRange
    n_rows: int
    candidate: Candidate
    status: Status
    reason: str = ""
    samples: tuple[float, ...] = ()
    relative: float = float("nan")
    compile_seconds: float = 0.0
    digest: str = ""
    machine: str = "cpu"

    def __str__(self) -> str:
        """Return the result as one line.

        >>> cached = Candidate(Schedule().cache("tree"))
        >>> print(Trial((1, 1), 1, cached, "measured", "", (2.5e-6,), 0.5))
        1 row: 2.50 µs, 2.00 times as fast as the default: Schedule().cache("tree")
        >>> Trial((1, 1), 1, cached, "too large", "1,000 loops.")
        <Trial with 1 row: too large, 1,000 loops: Schedule().cache("tree")>
        """
        tried = dict(self.candidate.params) if self.schedule is None else self.schedule
        outcome: str = self.status
        if self.samples:
            times = f"{1 / self.relative:.2f} times as fast as the default"
            outcome = f"{duration(self.seconds)}, {times}"
        if self.reason:
            outcome += f", {self.reason.splitlines()[0].rstrip('.')}"
        return f"{plural(self.n_rows, 'row')}: {outcome}: {tried!r}"

    def __repr__(self) -> str:
        return f"<Trial with {self}>"

    @property
    def schedule(self) -> Schedule | None:
        """The schedule that was tried."""
        return self.candidate.schedule

    @property
    def seconds(self) -> float:
        """Median seconds per call; NaN if it was never timed."""
        return median(self.samples) if self.samples else float("nan")

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile of the seconds per call."""
        if not self.samples:
            return float("nan"), float("nan")
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return float(low), float(high)

    @property
    def usable(self) -> bool:
        """Whether its schedule may be chosen: correct and fully timed."""
        return self.status in ("measured", "same code") and bool(self.samples)
