"""Short texts of numbers and ranges, and tables aligned for a shell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skforge.compiler.defaults.walks import BatchRange
from skforge.tuning.search.ranges import range_text


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts, with a title and a note below it."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str

    def lines(self) -> list[str]:
        """Return the table as lines, with columns aligned to the right."""
        widths = [max(map(len, column)) for column in zip(*self.table, strict=True)]
        body = [
            "  " + "  ".join(map(str.rjust, row, widths)).rstrip() for row in self.table
        ]
        return [self.title, *body, *([self.note] if self.note else [])]

    @property
    def table(self) -> list[list[str]]:
        """The head and the rows."""
        return [self.head, *self.rows]


def aligned(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each label and text.

    >>> aligned([("trees", "20"), ("features", "5")])
    ['  trees     20', '  features  5']
    """
    width = max(len(label) for label, _ in facts)
    return [f"  {label.ljust(width)}  {text}" for label, text in facts]


def plural(n: int, what: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{n:,} {what}{'s' if n != 1 else ''}"


def duration(seconds: float | None) -> str:
    """Return a time with three digits and its unit; a dash for None.

    >>> duration(4.123e-7), duration(0.01234), duration(61.2), duration(None)
    ('0.412 µs', '12.3 ms', '61.2 s', '–')
    """
    if seconds is None:
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            break
    value = seconds / size
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"


def ranges_of(batches: Iterable[BatchRange]) -> str:
    """Return ranges of batch sizes as text.

    >>> ranges_of([(1, 1)]), ranges_of([(8, None), (1, 7)]), ranges_of([(1, None)])
    ('1 row', '1 to 7, 8 and more rows', 'any number of rows')
    """
    found = sorted(batches, key=lambda batch: batch[0])
    if found == [(1, None)]:
        return "any number of rows"
    what = "row" if found == [(1, 1)] else "rows"
    return f"{', '.join(map(range_text, found))} {what}"
