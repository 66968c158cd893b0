"""A row of the table: something tried many times, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import table


@dataclass(slots=True)
class Row:
    """Counts of one thing that was tried.

    ``lost`` holds a line for each try that did not end as promised: a wrong bit, a
    crash, a hang, an error that is not ours. ``left_out`` says why nothing was tried.
    """

    family: str
    what: str
    tried: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)
    notes: str = ""
    left_out: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def count(self, well: bool, what: str) -> bool:
        """Count one try; ``what`` is said of it if it was lost."""
        self.tried += 1
        if well:
            self.survived += 1
        else:
            self.lost.append(what)
        return well


def to_markdown(rows: Sequence[Row], machine: str) -> str:
    """Return the table, then notes, then a line for each thing lost.

    >>> print(to_markdown([Row("soak", "calls", 3, 2, ["one bit"])], "One core."))
    # Reliability
    <BLANKLINE>
    One core.
    <BLANKLINE>
    | family | what was tried | tried | survived | lost |
    |---|---|--:|--:|--:|
    | soak | calls | 3 | 2 | 1 |
    <BLANKLINE>
    Lost, soak, calls:
    <BLANKLINE>
    - one bit
    <BLANKLINE>
    """
    heads = ["family", "what was tried", "tried", "survived", "lost"]
    counts = [
        [r.family, r.what, *(f"{n:,}" for n in (r.tried, r.survived, len(r.lost)))]
        for r in rows
    ]
    lines = ["# Reliability", "", machine, "", *table(heads, counts, texts=2)]
    notes = [
        f"- **{row.family}, {row.what}**: "
        + (f"not tried: {row.left_out}" if row.left_out else row.notes)
        for row in rows
        if row.left_out or row.notes
    ]
    if notes:
        lines += ["", *notes]
    for row in rows:
        if row.lost:
            lines += ["", f"Lost, {row.family}, {row.what}:", ""]
            lines += [f"- {what}" for what in row.lost[:20]]
            if len(row.lost) > 20:
                lines.append(f"- and {len(row.lost) - 20} more")
    return "\n".join([*lines, ""])
