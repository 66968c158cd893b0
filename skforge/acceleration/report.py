"""What was answered by kernels, what by the libraries, and why."""

from __future__ import annotations

from typing import NamedTuple

from skforge.acceleration.records import GONE, RECORDS
from skforge.acceleration.tally import Tally, Totals


class MethodReport(NamedTuple):
    """Calls of one method of all models of a class.

    ``library_seconds`` leaves out calls that kernels would not answer in any case.
    ``seconds_saved`` counts batches of sizes for which both sides were measured.
    """

    model: str
    method: str
    kernel_calls: int
    kernel_rows: int
    kernel_seconds: float
    library_calls: int
    library_rows: int
    library_seconds: float
    seconds_saved: float
    differed: int
    #: Why the library answered, and how often; the most frequent reason first.
    reasons: dict[str, int]


class AccelerationReport(tuple[MethodReport, ...]):
    """One line for each method of each class; ``str`` gives a table."""

    __slots__ = ()

    def __str__(self) -> str:
        if not self:
            return "skforge has seen no call of a model."
        head = ("model", "method", "by kernels", "by library", "seconds saved")
        lines = [
            (
                *(one.model, one.method),
                f"{one.kernel_calls:,} calls, {one.kernel_rows:,} rows",
                f"{one.library_calls:,} calls, {one.library_rows:,} rows",
                f"{one.seconds_saved:.2f}",
            )
            for one in self
        ]
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        texts = []
        for one, cells in zip((None, *self), (head, *lines), strict=True):
            pairs = zip(cells, widths, strict=True)
            texts.append("  ".join(c.ljust(w) for c, w in pairs).rstrip())
            reasons = {} if one is None else one.reasons
            texts += [f"    {calls:,} calls: {why}" for why, calls in reasons.items()]
        return "\n".join(texts)

    __repr__ = __str__


def acceleration_report() -> AccelerationReport:
    """Return which calls kernels and libraries have answered, and why.

    Returns
    -------
    AccelerationReport
        A tuple with a named tuple for each method of each class of models: calls, rows
        and seconds of both sides, the seconds saved and why the library answered.
        Models that are gone count, too. ``str`` makes a table of it.

    Examples
    --------
    >>> import skforge
    >>> print(skforge.acceleration_report())
    skforge has seen no call of a model.
    """
    return report_with({})


def report_with(totals: Totals) -> AccelerationReport:
    """Return a report of this process, and of what others have counted."""
    for (name, method), tally in [*GONE.items()]:  # models may go meanwhile
        totals.setdefault((name, method), Tally()).add(tally)
    for record in [*RECORDS.values()]:
        for method, tally in [*record.tallies.items()]:
            totals.setdefault((record.name, method), Tally()).add(tally)
    return AccelerationReport(
        _line(name, method, tally) for (name, method), tally in sorted(totals.items())
    )


def _line(name: str, method: str, tally: Tally) -> MethodReport:
    sums = [
        [sum(column) for column in zip(start, *side.values(), strict=True)]
        for start, side in (
            (tally.before, tally.by_kernels),
            ((0, 0, 0.0), tally.by_library),
        )
    ]
    kernels, library = sums
    calls, rows = (int(library[i]) + tally.alone[i] for i in range(2))
    reasons = dict(sorted(tally.whys.items(), key=lambda item: -item[1]))
    return MethodReport(
        *(name, method, int(kernels[0]), int(kernels[1]), kernels[2]),
        *(calls, rows, library[2]),
        *(tally.saved(), tally.differed, reasons),
    )
