"""Short texts of numbers and ranges; tables for a shell, and a card for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

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


# ------------------------------------------------------------ the card

# HTML without scripts, for light and dark pages: colours are those of the page around
# the card, and greys that both can show.

_STYLE = """<style>
.skforge-card {display: inline-block; max-width: 100%; box-sizing: border-box;
  padding: .6em .9em; border: 1px solid rgba(128, 128, 128, .45); border-radius: 6px;
  color: inherit; font-size: .9em; line-height: 1.45; text-align: left;
  overflow-x: auto}
.skforge-card .skforge-title {font-weight: 600; margin-bottom: .35em}
.skforge-card table {border-collapse: collapse; border: 0; margin: 0 0 .4em;
  width: auto; min-width: 0; font-size: inherit; color: inherit; background: none}
.skforge-card table tr, .skforge-card table tr:hover {background: none; border: 0}
.skforge-card table th, .skforge-card table td {padding: .05em .9em .05em 0;
  border: 0; background: none; color: inherit; vertical-align: top; font-weight: 400;
  max-width: 46em; white-space: normal; text-align: left}
.skforge-card .skforge-facts th {opacity: .7; white-space: nowrap}
.skforge-card .skforge-times th, .skforge-card .skforge-times td {text-align: right;
  white-space: nowrap; font-variant-numeric: tabular-nums}
.skforge-card .skforge-times thead th {opacity: .7;
  border-bottom: 1px solid rgba(128, 128, 128, .45)}
.skforge-card .skforge-note {opacity: .7; margin-bottom: .4em}
.skforge-card summary {cursor: pointer}
.skforge-card pre {margin: .2em 0 .4em; padding: 0; border: 0; background: none;
  color: inherit; font-size: .9em; white-space: pre-wrap; overflow-wrap: anywhere}
</style>"""


def card(
    title: str,
    facts: Sequence[tuple[str, str]],
    table: Table | None,
    details: Sequence[tuple[str, str]],
) -> str:
    """Return a card: a title, facts, a table of times, and texts shown on demand."""
    parts = [
        _STYLE,
        '<div class="skforge-card">',
        f'<div class="skforge-title">{escape(title)}</div>',
        '<table class="skforge-facts"><tbody>',
        *(
            f'<tr><th scope="row">{escape(label)}</th><td>{escape(text)}</td></tr>'
            for label, text in facts
        ),
        "</tbody></table>",
    ]
    if table is not None:
        parts += _times(table)
    for name, text in details:
        parts.append(
            f"<details><summary>{escape(name)}</summary>"
            f"<pre>{escape(text)}</pre></details>"
        )
    return "\n".join([*parts, "</div>"])


def _times(table: Table) -> list[str]:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    lines = [
        f"<div>{escape(table.title)}</div>",
        f'<table class="skforge-times"><thead><tr>{head}</tr></thead><tbody>',
    ]
    for row in table.rows:
        cells = "".join(f"<td>{escape(text)}</td>" for text in row)
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</tbody></table>")
    if table.note:
        lines.append(f'<div class="skforge-note">{escape(table.note)}</div>')
    return lines
