"""Candidates that a strategy proposes, and trials: what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from skforge.compiler.defaults.cpu import BatchRange
from skforge.compiler.schedule.schedule import Schedule

#: "measured": it was timed to the end. "stopped": it was so slow that the rest was
#: spared. "same code": an earlier trial has its time. "illegal": the language, the
#: forest or the target refuses it. "too large": it would take too much memory.
#: "spills": its GPU kernel would keep registers in memory, so it is never run.
#: "wrong": it predicts other values. "failed": compiling or running it raised. "no
#: time": the budget ended first.
Status: TypeAlias = Literal[
    "measured", "stopped", "same code", "illegal", "too large", "spills", "wrong",
    "failed", "no time",
]  # fmt: skip
STATUSES: tuple[Status, ...] = get_args(Status)

#: Where a candidate comes from that no space has: the static default, a record.
DEFAULT, RECORD = "default", "record"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule to try.

    Parameters
    ----------
    schedule : Schedule or None
        None if the language refused to write it; ``refused`` then says why.
    params : mapping of str to object
        The point of the space it was made from; empty if there is none.
    origin : str
        Who proposed it: "default", "record" or the name of a strategy.
    refused : str
        Why there is no schedule.
    """

    schedule: Schedule | None
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    refused: str = ""

    def __post_init__(self) -> None:
        """Keep a read-only copy of the point."""
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from a plain dict: a read-only view does not pickle."""
        parts = (self.schedule, dict(self.params), self.origin, self.refused)
        return type(self), parts


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a candidate at one batch size.

    Parameters
    ----------
    batch : (int, int or None)
        The range of batch sizes it was tried for.
    n_rows : int
        Rows of the batches it was timed with.
    candidate : Candidate
        What was tried.
    status : str
        One of ``STATUSES``.
    reason : str
        For all but "measured", a sentence.
    samples : tuple of float
        Seconds of one call, each the mean of many calls in a row.
    relative : float
        The median ratio of its time to the default schedule's in the same round; NaN
        if it was not timed.
    compile_seconds : float
        Time for lowering and compiling; 0 where the code was there already.
    digest : str
        Names the code: equal for schedules that are lowered to the same.
    machine : str
        The kind of target: "cpu", "cuda", ...
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

    @property
    def schedule(self) -> Schedule | None:
        """The schedule that was tried."""
        return self.candidate.schedule

    @property
    def seconds(self) -> float:
        """Median seconds of a call; NaN if it was never timed."""
        return median(self.samples) if self.samples else float("nan")

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile of the seconds of a call."""
        if not self.samples:
            return float("nan"), float("nan")
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return float(low), float(high)

    @property
    def usable(self) -> bool:
        """Whether its schedule may be chosen: timed to the end, and right."""
        return self.status in ("measured", "same code") and bool(self.samples)
