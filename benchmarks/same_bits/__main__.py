"""Run all scripts and write the table: ``python -m benchmarks.same_bits``.

    python benchmarks/environments.py         # lleaves, Hummingbird, ONNX Runtime 1.26
    python -m benchmarks.same_bits --output benchmarks/results
    python -m benchmarks.same_bits borders --converters lignum,treelite

Each script runs in a process of its own, and in its converter's environment if that was
made. The exit status is 1 if an answer of skforge's differs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import harness
import typer
from environments import python_of
from harness import rows_a_call
from machine import PACKAGES, in_words, machine
from remote import without_paths

from benchmarks.same_bits.compose import CELLS, cells
from benchmarks.same_bits.converters import CONVERTERS
from benchmarks.same_bits.traits import TRAITS

ROOT = CELLS.parents[2]
COUNTS = re.compile(
    r"(\d+) of (\d+) rows differ, by (\S+) at most\n"
    r"(\d+) by more than rounding; the greatest answer is (\S+)\n"
)
NAMES = {"onnxruntime": "ONNX Runtime", "hummingbird": "Hummingbird"}
PINNED = (
    "`pip install lleaves` takes a newer llvmlite, 0.50, with which lleaves 1.3.0 "
    "compiles no model: `AttributeError: module 'llvmlite.binding' has no attribute "
    "'PassManagerBuilder'`. Hummingbird 0.4.12 reads no model of XGBoost 3.1 or "
    "later. With protobuf 7, skl2onnx 1.20 converts no histogram gradient boosting."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What a script printed: how many rows differ, or why there is no answer.

    ``more`` of them differ by more than rounding, by ``most`` at most.
    """

    trait: str
    converter: str
    differ: int = 0
    more: int = 0
    rows: int = 0
    most: float | None = 0.0
    greatest: float = 0.0
    cannot: str = ""


def environment(trait: str, converter: str) -> str:
    """Return the environment that a script needs; empty for this Python."""
    if release := TRAITS[trait].release:
        return f"{converter}-{release.rpartition('.')[0]}"
    if converter == "onnxruntime" and TRAITS[trait].histogram:
        return "onnxruntime-protobuf"
    return converter if converter in ("lleaves", "hummingbird") else ""


def run(file: Path, python: Path, seconds: float) -> tuple[str, str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory(prefix="same-bits-") as folder:
        try:
            done = subprocess.run(
                [str(python), "-W", "ignore", str(file)],
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "", f"no answer within {seconds:g} s"
    if done.returncode == 0:
        return done.stdout, ""
    return "", reason(done.stderr) or f"ended with status {done.returncode}"


def reason(traceback: str) -> str:
    """Return the error of a traceback, short and without folders.

    >>> reason("Traceback:\\n  File x\\na.b.OneError: no [12:00:00] /x/y.cc:3: tree")
    'OneError: no y.cc:3: tree'
    """
    found = re.findall(r"^[\w.]*?(\w+): (.*)", traceback, re.MULTILINE)
    errors = [f"{kind}: {text}" for kind, text in found if kind[0].isupper()]
    if not errors:
        return ""
    text = re.sub(r"\[[\d:]{8}\] ", "", " ".join(errors[-1].split()))
    return without_paths(text, 160)


def measured(trait: str, converter: str, seconds: float, folder: Path = CELLS) -> Cell:
    needed = environment(trait, converter)
    python = python_of(needed) if needed else Path(sys.executable)
    if python is None:
        return Cell(trait, converter, cannot="its environment is not made")
    output, why = run(folder / f"{trait}__{converter}.py", python, seconds)
    counts = COUNTS.search(output)
    if counts is None:
        return Cell(trait, converter, cannot=why or "it printed no counts")
    differ, rows, most, more, greatest = counts.groups()
    numbers = map(int, (differ, more, rows))
    return Cell(trait, converter, *numbers, float(most), float(greatest))


# ------------------------------------------------------------ the page


def page(document: harness.Document) -> str:
    found = harness.records(Cell, document["cells"])
    parts: list[Any] = [
        "# The same bits?",
        "A small model is trained with a fixed seed, converted, and predicts "
        f"{max(cell.rows for cell in found):,} rows. A cell is the number of rows for "
        "which a bit of the converter's answer differs from the library's; it links to "
        "the script, which runs alone. Answers are compared as float64: a converter "
        "may return another dtype. Each converter has the setting nearest to the "
        "library: one thread, the library's dtype where it takes it, ONNX with split "
        "sums. Nothing here is about speed.",
        "<!-- summary -->",
        _summary(found),
        "*Rounding* is a difference of up to a 10,000th of the greatest answer. A line "
        "is a trait of a model; converters get the lines whose library they read.",
        "<!-- table -->",
        _lines(found),
        "†: of these by more than rounding; most of them reached other leaves. "
        "*cannot*: the converter raises an error. –: it does not read this library. "
        "ONNX Runtime and Hummingbird answer in float32: beside a library that answers "
        "in float64 most rows differ. FIL and nvForest need a GPU and are not here.",
        "## More than rounding, without an error",
        _silent(found),
        "## Cannot",
        _refused(found),
        "## Versions",
        in_words(document["facts"]),
    ]
    for name, facts in document["environments"].items():
        versions = ", ".join(f"{p} {v}" for p, v in facts["packages"].items())
        parts += [f"{name} ran in its own: Python {facts['python']}, {versions}."]
    return harness.paragraphs(*parts, PINNED)


def _title(converter: str) -> str:
    return NAMES.get(converter, converter)


def _columns(found: list[Cell]) -> list[str]:
    return [name for name in CONVERTERS if any(c.converter == name for c in found)]


def _summary(found: list[Cell]) -> list[str]:
    rows = []
    for converter in _columns(found):
        some = [
            cell
            for cell in found
            if cell.converter == converter and not TRAITS[cell.trait].release
        ]
        answered = [cell for cell in some if not cell.cannot]
        same = sum(cell.differ == 0 for cell in answered)
        more = sum(cell.more > 0 for cell in answered)
        counts = (same, len(answered) - same - more, more, len(some) - len(answered))
        rows.append([_title(converter), len(some), *counts])
    heads = ["converter", "lines", "same bits", "rounding", "more", "cannot"]
    return harness.table(heads, rows)


def _lines(found: list[Cell]) -> list[str]:
    columns = _columns(found)
    by_place = {(cell.trait, cell.converter): cell for cell in found}
    rows, group = [], ""
    for name, trait in TRAITS.items():
        if not any(cell.trait == name for cell in found):
            continue
        shown = [_shown(by_place.get((name, converter))) for converter in columns]
        rows.append(["" if trait.group == group else trait.group, trait.title, *shown])
        group = trait.group
    return harness.table(["trait", "model", *map(_title, columns)], rows, 2)


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    text = "cannot" if cell.cannot else f"{cell.differ:,}"
    link = f"[{text}](../same_bits/cells/{cell.trait}__{cell.converter}.py)"
    return f"{link} ({cell.more:,} †)" if cell.more else link


def _silent(found: list[Cell]) -> list[str]:
    lines = []
    for converter in _columns(found):
        some = [
            f"{_model(cell)} ({rows_a_call(cell.more)}, by {_size(cell)} at most)"
            for cell in found
            if cell.converter == converter and cell.more
        ]
        if some:
            lines.append(f"- **{_title(converter)}**: {'; '.join(some)}.")
    return lines


def _size(cell: Cell) -> str:
    if cell.most is None:
        return "NaN"
    return f"{cell.most:.2g} of {cell.greatest:.2g}"


def _model(cell: Cell) -> str:
    trait = TRAITS[cell.trait]
    return f"{trait.group}, {trait.title}"


def _refused(found: list[Cell]) -> list[str]:
    lines: dict[tuple[str, str], list[str]] = {}
    for cell in found:
        if cell.cannot:
            lines.setdefault((cell.converter, cell.cannot), []).append(_model(cell))
    return [
        f"- **{_title(converter)}**: {'; '.join(models)}: `{why.replace('`', '')}`"
        for converter in CONVERTERS
        for (of, why), models in lines.items()
        if of == converter
    ]


# ------------------------------------------------------------ the run

_VERSIONS = """
import importlib.metadata as m, json, platform
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
found = {name: v for name in NAMES if (v := version(name))}
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""


def versions(python: Path) -> dict[str, Any]:
    names = (*PACKAGES, "lleaves", "protobuf")
    code = _VERSIONS.replace("NAMES", repr(names))
    output = subprocess.check_output([str(python), "-c", code], text=True)
    return dict(json.loads(output))


def main(
    traits: harness.Names = None,
    converters: harness.Parts = "",
    seconds: Annotated[float, typer.Option(help="Limit of a script.")] = 300.0,
    output: harness.Output = None,
    merge: harness.Merge = False,
) -> None:
    """Run scripts, print what each found, and write same_bits.json and same_bits.md."""
    before = harness.stored(output, "same_bits") if merge and output else {}
    found = {
        (cell.trait, cell.converter): cell
        for cell in harness.records(Cell, before.get("cells", []))
    }
    facts = machine()
    environments: dict[str, Any] = before.get("environments", {})
    for name in cells():
        trait, _, converter = name.partition("__")
        if not harness.chosen(trait, traits or ()) or not harness.chosen(
            converter, harness.parts(converters)
        ):
            continue
        cell = measured(trait, converter, seconds)
        found[trait, converter] = cell
        count = f"{cell.differ} of {cell.rows}, by {cell.most}"
        print(f"{name}: {cell.cannot or count}", flush=True)
        needed = environment(trait, converter)
        python = python_of(needed) if needed else None
        if python and needed not in environments:
            environments[needed] = versions(python)
    document = {
        "facts": facts,
        "environments": environments,
        "cells": [
            found[place] for place in product(TRAITS, CONVERTERS) if place in found
        ],
    }
    harness.publish(output, "same_bits", harness.rounded(document), page, "trait")
    if any(cell.converter == "skforge" and cell.differ for cell in found.values()):
        sys.exit("an answer of skforge's differs; see above")


if __name__ == "__main__":
    typer.run(main)
