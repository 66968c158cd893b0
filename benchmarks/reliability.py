"""The page of what ``python -m tests.reliability`` tries and counts."""

from __future__ import annotations

from typing import Any

from harness import Document, paragraphs, table
from machine import in_words


def page(document: Document) -> str:
    """Return the table of all families, then notes, then a line for each thing lost."""
    families = [*document.values()]
    minutes = sum(family["minutes"] for family in families)
    quick = " A quick run: a few of each." if any(f["quick"] for f in families) else ""
    rows = [row for family in families for row in family["rows"]]
    heads = ["family", "what was tried", "tried", "survived", "lost"]
    counts = [
        [r["family"], r["what"]]
        + [f"{n:,}" for n in (r["tried"], r["survived"], len(r["lost"]))]
        for r in rows
    ]
    notes = [
        f"- **{row['family']}, {row['what']}**: "
        + (f"not tried: {row['left_out']}" if row["left_out"] else row["notes"])
        for row in rows
        if row["left_out"] or row["notes"]
    ]
    where = in_words(families[0]["machine"])
    parts: list[Any] = [
        "# Reliability",
        f"{where} {minutes:.0f} minutes in all.{quick}",
    ]
    parts += [table(heads, counts, texts=2), notes]
    for row in rows:
        if lost := row["lost"]:
            more = [f"- and {len(lost) - 20} more"] if len(lost) > 20 else []
            parts.append(f"Lost, {row['family']}, {row['what']}:")
            parts.append([*(f"- {what}" for what in lost[:20]), *more])
    return paragraphs(*parts)
