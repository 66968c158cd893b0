"""The page of what ``python -m tests.reliability`` tries and counts."""

from __future__ import annotations

from harness import Document, table
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
    lines = [
        *("# Reliability", ""),
        f"{in_words(families[0]['machine'])} {minutes:.0f} minutes in all.{quick}",
        *("", *table(heads, counts, texts=2)),
    ]
    notes = [
        f"- **{row['family']}, {row['what']}**: "
        + (f"not tried: {row['left_out']}" if row["left_out"] else row["notes"])
        for row in rows
        if row["left_out"] or row["notes"]
    ]
    if notes:
        lines += ["", *notes]
    for row in rows:
        if row["lost"]:
            lines += ["", f"Lost, {row['family']}, {row['what']}:", ""]
            lines += [f"- {what}" for what in row["lost"][:20]]
            if len(row["lost"]) > 20:
                lines.append(f"- and {len(row['lost']) - 20} more")
    return "\n".join([*lines, ""])
