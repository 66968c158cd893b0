"""Measure exported libraries: calls from C, sizes, seconds to make, beside peers'.

Programs in C call the libraries, in turns and in several rounds. A time is the median
of all samples, in CPU time of the process, on one thread. Every answer is compared with
the source's. A run ends if one bit of skforge's answers differs.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import harness
import numpy as np
import typer
from cases import Case, cases
from export_systems import SYSTEMS, Built, answers, run
from machine import in_words, machine
from measure import compare
from numpy.typing import NDArray
from systems import NotForModelError

import skforge
from skforge.forest.reference import draw_rows

MODELS = ("airline.json", "year_prediction_msd.json", "lightgbm/NYC_taxi.txt")
BATCHES = (1, 64, 4096)
ROUNDS, SAMPLES, SECONDS = 9, 3, 0.02
IN_PROCESS = "skforge in Python, `predict_raw`"

#: What sizes are shown of: kind, target, options.
SIZES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("x86-64-v4", "object", "x86-64-v4", {}),
    ("x86-64-v3", "object", "x86-64-v3", {}),
    ("x86-64-v2", "object", "x86-64-v2", {}),
    ("aarch64", "object", "aarch64", {}),
    ("x86-64: all three", "object", "x86-64", {}),
    ("x86-64, `batch_sizes=[1]`", "object", "x86-64", {"batch_sizes": [1]}),
    ("x86-64-v3, `batch_sizes=[1]`", "object", "x86-64-v3", {"batch_sizes": [1]}),
    ("x86-64-v3, `batch_sizes=[64]`", "object", "x86-64-v3", {"batch_sizes": [64]}),
    ("x86-64-v3, `apply=True`", "object", "x86-64-v3", {"apply": True}),
    ('`kind="c"`, gcc -Os', "c", "cpu", {}),
)


@dataclass(slots=True)
class Line:
    """One system on one model; seconds of a call by its number of rows."""

    model: str
    system: str
    seconds: dict[int, float] = field(default_factory=dict)
    bytes: int | None = None  # of the library, stripped
    made_in: float | None = None  # CPU seconds
    answers: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of one export by their kind."""

    model: str
    what: str
    trees: int
    code: int
    constants: int
    scratch: int


def main(
    names: harness.Names = None,
    output: harness.Output = None,
    rounds: Annotated[int, typer.Option(help="Turns of each program.")] = ROUNDS,
) -> None:
    """Measure, print, and write results where asked."""
    facts, lines, sizes = machine(), [], []
    for case in cases(names or list(MODELS)):
        with tempfile.TemporaryDirectory(prefix="skforge-bench-") as folder:
            lines += _measured(case, Path(folder), rounds)
            sizes += _sizes(case, Path(folder))
        document = {"machine": facts, "lines": lines, "sizes": sizes}
        text = harness.publish(output, "export", document, page)
    print(text)


# ------------------------------------------------------------ calls


def _measured(case: Case, folder: Path, rounds: int) -> list[Line]:
    """Build every system, compare its answers, and time calls in turns."""
    most = max(BATCHES)
    # With the model's own thresholds: real rows are mostly far from them.
    rows = np.concatenate([case.rows[: most // 2], draw_rows(case.forest, most, 3)])
    rows = np.ascontiguousarray(rows[:most], case.forest.input_dtype)
    lines, programs = [], {}
    wanted: NDArray[Any] | None = None
    names = sorted(SYSTEMS, key=lambda name: name != "the source's C interface")
    for name in names:
        line = Line(case.name, name)
        place = folder / str(len(lines))
        place.mkdir()
        print(f"{case.name}: {name}", file=sys.stderr)
        try:
            built = SYSTEMS[name](case, place)
        except NotForModelError as error:
            line.why_not = str(error)
        else:
            found = answers(built, rows)
            if wanted is None:
                wanted = found
            line.answers = _compared(found, wanted)
            if name.startswith("skforge") and line.answers != "same bits":
                sys.exit(f"{name}, {case.name}: {line.answers}")
            if built.library is not None:
                line.bytes, line.made_in = _stripped(built.library), built.seconds
            programs[name] = built
        lines.append(line)
    module = skforge.compile_forest(case.forest)
    module.compile_all()
    lines.append(Line(case.name, IN_PROCESS, answers="same bits"))
    by_name = {line.system: line for line in lines}
    for batch in BATCHES:
        calls = {
            name: partial(_timed, built, len(rows), batch)
            for name, built in programs.items()
        }
        calls[IN_PROCESS] = partial(_timed_here, module, rows, batch)
        for name, found in harness.take_turns(calls, rounds).items():
            by_name[name].seconds[batch] = median(chain.from_iterable(found))
    order = [*SYSTEMS, IN_PROCESS]
    return sorted(lines, key=lambda line: order.index(line.system))


def _compared(found: NDArray[Any], wanted: NDArray[Any]) -> str:
    difference, same = compare(found, wanted)
    if same:
        return "same bits"
    return f"{np.mean(found != wanted):.2%} differ, by {difference:.2g} at most"


def _timed(built: Built, many: int, batch: int) -> list[float]:
    command = [built.program, "rows.bin", many, "time", batch]
    words = run([*command, SAMPLES, SECONDS], built.program.parent).split()
    return list(map(float, words))


def _timed_here(module: Any, rows: NDArray[Any], batch: int) -> list[float]:
    """Time the same calls from Python, with one thread."""
    parts = [rows[k : k + batch] for k in range(0, len(rows), batch)]
    call, samples = module.predict_raw, []
    for _ in range(1 + SAMPLES):
        calls, start = 0, time.process_time()
        while time.process_time() - start < SECONDS:
            for part in parts:
                call(part)
            calls += len(parts)
        samples.append((time.process_time() - start) / calls)
    return samples[1:]


# ------------------------------------------------------------ sizes


def _stripped(library: Path) -> int:
    copy = library.with_name("stripped")
    shutil.copy(library, copy)
    run(["strip", "--strip-unneeded", copy], copy.parent)
    return copy.stat().st_size


def _sizes(case: Case, folder: Path) -> list[Size]:
    sizes = []
    for what, kind, target, options in SIZES:
        place = folder / "size"
        skforge.export(
            case.forest, place, kind, target, name="model", overwrite=True, **options
        )
        facts = json.loads((place / "model.json").read_text("utf-8"))
        if kind == "c":
            run(["gcc", "-Os", "-c", "model.c"], place)
        code, constants = _sections(place / "model.o")
        scratch = facts["sizes"]["scratch_per_thread"]
        trees = case.forest.n_trees
        sizes.append(Size(case.name, what, trees, code, constants, scratch))
    return sizes


def _sections(file: Path) -> tuple[int, int]:
    """Return the bytes of code and of data that are loaded, by ``size -A``."""
    code = data = 0
    for line in run(["size", "-A", "-d", file], file.parent).splitlines():
        words = line.split()
        if len(words) == 3 and words[0].startswith(".text"):
            code += int(words[1])
        elif len(words) == 3 and words[0].startswith((".rodata", ".data", ".bss")):
            data += int(words[1])
    return code, data


# ------------------------------------------------------------ report


def page(document: harness.Document) -> str:
    lines, sizes = (
        harness.records(kind, document[key])
        for kind, key in ((Line, "lines"), (Size, "sizes"))
    )
    parts = ["# Exported libraries, called from C", __doc__.split("\n\n", 1)[1]]
    parts += [in_words(document["machine"]), *document.get("notes", ())]
    heads = ["system", *(f"{harness.rows_a_call(batch)}, µs" for batch in BATCHES)]
    heads += ["library, KB", "CPU seconds to make", "answers"]
    for model in dict.fromkeys(line.model for line in lines):
        rows = [_cells(line) for line in lines if line.model == model]
        aligned = harness.table(heads, rows)
        aligned[1] = "|---|" + "---:|" * (len(BATCHES) + 2) + "---|"
        parts += [f"## {model}", aligned]
    return harness.paragraphs(*parts, "## Sizes", _size_table(sizes))


def _cells(line: Line) -> list[str]:
    if line.why_not:
        return [line.system, *[""] * (len(BATCHES) + 2), line.why_not]
    size = "" if line.bytes is None else f"{line.bytes / 1000:,.0f}"
    made = "" if line.made_in is None else f"{line.made_in:.1f}"
    times = [_three(1e6 * line.seconds[b]) for b in BATCHES]
    return [line.system, *times, size, made, line.answers]


def _size_table(sizes: Sequence[Size]) -> str:
    """Return bytes a tree: of code, of constants, and of both."""
    models = list(dict.fromkeys(size.model for size in sizes))
    rows = []
    for what, *_ in SIZES:
        cells = []
        for model in models:
            (size,) = (s for s in sizes if (s.model, s.what) == (model, what))
            code, data = (n / size.trees for n in (size.code, size.constants))
            cells.append(f"{code:,.0f} + {data:,.0f} = {code + data:,.0f}")
        rows.append([what, *cells])
    heads = [Path(model).stem for model in models]
    lines = harness.table(["bytes a tree: code + constants = both", *heads], rows)
    lines[1] = lines[1].replace("--:", "---:")
    return "\n".join(lines)


def _three(value: float) -> str:
    """Return a number with three digits, as many zeros as it needs."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


if __name__ == "__main__":
    typer.run(main)
