"""The card that notebooks show: HTML without scripts, for light and dark pages.

Colours are those of the page around the card, and greys that both can show.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from skforge.display.text import Table

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
