"""Draws architecture.svg from the package's imports: ``python docs/architecture.py``.

A box is a part of the package, an arrow an import. Arrows that follow from others are
left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PICTURE = Path(__file__).with_suffix(".svg")


@dataclass(frozen=True)
class Part:
    """A box: what it holds, and where it stands in a grid of four columns."""

    title: str
    what: str
    modules: tuple[str, ...]
    row: int
    left: int
    right: int  # the last column


# A module belongs to the part that names the folder nearest above it.
PARTS = (
    Part(
        "Command line",
        "demo, bench, predict, inspect, tune, warm, doctor",
        ("skforge", "skforge.__main__", "skforge.cli"),
        *(0, 0, 1),
    ),
    Part(
        "Distributed",
        "Dask, Spark, Ray, Polars",
        ("skforge.distributed", "skforge.polars"),
        *(0, 2, 3),
    ),
    Part(
        "Files and libraries",
        "save, load, export, ScheduleSearch",
        ("skforge.persistence", "skforge.exporters", "skforge.search"),
        *(1, 0, 3),
    ),
    Part(
        "Estimator",
        "CompiledForest, and what users see of it",
        ("skforge.estimators", "skforge.display"),
        *(2, 0, 1),
    ),
    Part(
        "Acceleration",
        "programs that nobody edits",
        ("skforge.acceleration",),
        *(2, 2, 3),
    ),
    Part(
        "Prediction",
        "rows in, answers out, the check in fit",
        ("skforge.prediction",),
        *(3, 0, 3),
    ),
    Part(
        "Tuning",
        "spaces, strategies, costs, measuring",
        (
            "skforge.tuning",
            "skforge.gpu.cost_model",
            "skforge.gpu.search",
            "skforge.gpu.space",
        ),
        *(4, 2, 3),
    ),
    Part(
        "Sources",
        "each library's rows",
        ("skforge.sources",),
        *(4, 0, 1),
    ),
    Part(
        "Rows",
        "readers of users' rows, and modules that have one",
        ("skforge.rows", "skforge.modules"),
        *(5, 0, 3),
    ),
    Part(
        "Engine",
        "kernels, threads, entries, GPUs",
        ("skforge.engine", "skforge.gpu", "skforge.gpu.runtime"),
        *(6, 0, 3),
    ),
    Part(
        "Pipeline",
        "the order of the passes",
        ("skforge.compiler.driver", "skforge.compiler.backend"),
        *(7, 1, 3),
    ),
    Part(
        "Lowering and defaults",
        "MIR to LIR; what schedules cost, and which are default",
        (
            "skforge.compiler.lowering",
            "skforge.compiler.cost",
            "skforge.compiler.defaults",
            "skforge.gpu.cost",
            "skforge.gpu.defaults",
            "skforge.gpu.lowering",
        ),
        *(8, 1, 2),
    ),
    Part(
        "Passes",
        "one rewrite of IR a file",
        ("skforge.compiler.passes", "skforge.gpu.nest", "skforge.gpu.passes"),
        *(9, 1, 2),
    ),
    Part(
        "Layouts",
        "how trees lie in memory",
        ("skforge.compiler.layouts", "skforge.gpu.layouts"),
        *(10, 1, 2),
    ),
    Part(
        "Binning",
        "values to bin codes",
        ("skforge.compiler.binning",),
        *(11, 1, 2),
    ),
    Part(
        "Code generation",
        "LLVM, CUDA and HIP text",
        ("skforge.compiler.codegen", "skforge.gpu.codegen"),
        *(10, 3, 3),
    ),
    Part(
        "Intermediate representations",
        "HIR, MIR, LIR: nodes, printers, verifiers",
        ("skforge.compiler.ir",),
        *(12, 1, 3),
    ),
    Part(
        "Scheduling language",
        "directives, loop nests, presets",
        ("skforge.schedule",),
        *(13, 3, 3),
    ),
    Part(
        "Frontends",
        "models of other libraries",
        ("skforge.frontends",),
        *(12, 0, 0),
    ),
    Part(
        "Outputs",
        "scores to answers",
        ("skforge.outputs",),
        *(13, 0, 2),
    ),
    Part(
        "Forest",
        "arrays of nodes, rows, targets, files, the linker, errors",
        (
            "skforge.compiler",
            "skforge.forest",
            "skforge.compiler.target",
            "skforge.exceptions",
            "skforge.config",
            "skforge._compat",
            "skforge._docs",
            "skforge._version",
            "skforge._container",
            "skforge.runtime",
        ),
        *(14, 0, 3),
    ),
)

COLUMN, ROW, GAP, HEIGHT = 236, 92, 16, 60


def modules() -> dict[str, Path]:
    """Return the file of each module of the package, by name."""
    found = {}
    for file in sorted((ROOT / "skforge").rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def part_of(module: str, package: bool) -> Part:
    """Return the part that a module belongs to.

    Raises
    ------
    SystemExit
        If no part names this package.
    """
    named = {name: part for part in PARTS for name in part.modules}
    above = module
    while above not in named:
        above = above.rpartition(".")[0]
    if package and above in ("skforge", "skforge.compiler") and above != module:
        raise SystemExit(
            f"the package {module} is in no part: name it in PARTS of "
            f"docs/{Path(__file__).name} and run that"
        )
    return named[above]


def imported(file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module


def homes() -> dict[str, Part]:
    """Return the part of each module."""
    return {m: part_of(m, f.name == "__init__.py") for m, f in modules().items()}


def inhabited() -> list[Part]:
    """Return the parts that have modules, in order."""
    found = set(homes().values())
    return [part for part in PARTS if part in found]


@cache
def arrows() -> list[tuple[Part, Part]]:
    """Return which part imports which, without what follows from other arrows."""
    known, home = modules(), homes()
    below: dict[Part, set[Part]] = {part: set() for part in PARTS}
    for module, file in known.items():
        for name in imported(file, known):
            part, other = home[module], home[name]
            if part is not other and part.row == other.row:
                raise SystemExit(f"{module} imports {name}: give their parts two rows")
            if part.row < other.row:
                below[part].add(other)

    def reached(part: Part) -> set[Part]:
        return below[part].union(*(reached(other) for other in below[part]))

    return [
        (part, other)
        for part in PARTS
        for other in PARTS
        if other in below[part]
        and not any(other in reached(way) for way in below[part])
    ]


def box(part: Part) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a part's box."""
    width = (part.right - part.left + 1) * COLUMN - GAP
    return GAP + part.left * COLUMN, GAP + part.row * ROW, width, HEIGHT


def ends(upper: Part, lower: Part) -> tuple[float, float, float, float]:
    """Return where an arrow begins and ends: straight down if boxes are above."""
    (x1, y1, w1, h1), (x2, y2, w2, _) = box(upper), box(lower)
    first, last = max(x1, x2), min(x1 + w1, x2 + w2)
    if first < last:
        return (first + last) / 2, y1 + h1, (first + last) / 2, y2
    return x1 + w1 / 2, y1 + h1, x2 + w2 / 2, y2


def draw() -> str:
    """Return the picture as the text of an SVG file."""
    width = GAP + 4 * COLUMN
    height = 2 * GAP + max(part.row for part in PARTS) * ROW + HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" text-anchor="middle">',
        "<title>The parts of skforge; an arrow is an import</title>",
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>',
    ]
    for upper, lower in arrows():
        x1, y1, x2, y2 = ends(upper, lower)
        lines.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="#555" '
            'stroke-width="1.5" marker-end="url(#tip)"/>'
        )
    for part in inhabited():
        x, y, w, h = box(part)
        middle = x + w / 2
        lines += [
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" '
            'fill="#eef3fb" stroke="#4a6fa5"/>',
            f'<text x="{middle:g}" y="{y + 25}" font-size="16" font-weight="bold" '
            f'fill="#1b2a41">{escape(part.title)}</text>',
            f'<text x="{middle:g}" y="{y + 46}" font-size="13" '
            f'fill="#33475b">{escape(part.what)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {PICTURE}")
