"""Results on disk: JSON that can be read again, Markdown and a picture."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import Cell, Prepared, Result
from models import names
from plot import heat_map
from report import to_markdown


def write(results: Sequence[Result], facts: dict[str, Any], folder: Path) -> None:
    """Write results.json, results.md and results.svg.

    Parameters
    ----------
    results : sequence of Result
        Of all models.
    facts : dict
        What ``machine.machine`` returned when the run began.
    folder : Path
        Made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    document = {"machine": facts, "models": [asdict(result) for result in results]}
    text = json.dumps(rounded(document), separators=(",", ":"))
    # A line for each model, system and cell: small, and readable in a diff.
    text = re.sub(r"(?<=[\[,])\{\"(?=(?:system|threads|model)\")", '\n{"', text)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    report = to_markdown(results, facts)
    (folder / "results.md").write_text(report, encoding="utf-8")
    heat_map(results, folder / "results.svg")


def read(folder: Path, name: str = "results") -> list[Result]:
    """Return what ``write`` or ``weak_cells.py`` wrote; nothing if there is no file."""
    file = folder / f"{name}.json"
    if not file.exists():
        return []
    document = json.loads(file.read_text(encoding="utf-8"))
    found = []
    for model in document["models"]:
        systems = [Prepared(**system) for system in model.pop("systems")]
        cells = [Cell(**cell) for cell in model.pop("cells")]
        found.append(Result(**model, systems=systems, cells=cells))
    return found


def merged(old: Sequence[Result], new: Sequence[Result]) -> list[Result]:
    """Return results of all models, new ones in place of old, in the usual order."""
    by_name = {result.model: result for result in [*old, *new]}
    order = {name: number for number, name in enumerate(names())}
    last = len(order)
    return sorted(by_name.values(), key=lambda result: order.get(result.model, last))


def rounded(value: Any) -> Any:
    """Return plain JSON with floats of four digits, None for NaN.

    >>> rounded({"seconds": [1.23456789e-06, 2]})
    {'seconds': [1.235e-06, 2]}
    """
    match value:
        case float():
            return float(f"{value:.4g}") if math.isfinite(value) else None
        case dict():
            return {key: rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [rounded(item) for item in value]
        case _:
            return value
