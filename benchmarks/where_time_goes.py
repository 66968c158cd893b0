"""Say where the time of one model's kernel goes, part by part, and how far each is
from the least it could take.

A kernel is one function. What is measured are kernels made from it that stop after a
part (``kernel_cuts.py``), all in interleaved rounds of one process: a part takes what
its kernel takes longer than the one before. What leaving only this part out saves
stands beside it: where the two differ, parts overlap or share. Differences of times
need quiet ones: of many short rounds, the fastest counts. The bytes that a part loads
and stores are counted (``moved.py``), and the size of the arrays where they lie says
which cache they come from.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from assembly import describe, mnemonics
from cases import Case, cases
from counters import count
from floors import BEYOND, Floor, clock_ghz, floors
from harness import Batches, numbers, table
from kernel_cuts import Cuts
from moved import RUNS, Counting, grown
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from skforge import Target, compile_forest
from skforge.cli.report import describe_difference, interleave
from skforge.compiler.cost.estimate import CostEstimate, plan_of
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.driver import Lowered
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.types import dtype_of
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.lowering.kernel import BufferData
from skforge.compiler.passes.lir.simplify import constants_of
from skforge.engine.cpu.jit import emit_assembly
from skforge.engine.kernels import Kernel, KernelCache
from skforge.forest.forest import Forest

#: Names of calls that are timed beside the kernels.
_CALL, _NOTHING, _WITHOUT = "predict_raw", "no rows", "without "

#: Calls before the clock starts: small batches compile their entry at the third.
WARM_UP = 5

#: Seconds of a sample: most end before another process gets the core.
SAMPLE = 0.002

#: A part this many times its floor has a line that says why.
FAR = 3

#: A part that takes less than minus this share of the kernel says that none did.
BUSY = 0.03


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    ns_row: float
    left_out_ns_row: float | None  # what the kernel without it saves
    floor_ns_row: float | None
    distance: float | None  # how many times the floor, parts without one included
    floor: str
    instructions: str  # that stand in its assembly, not that run
    bytes_row: float | None  # loaded and stored; None for the call
    arrays_kib: float | None  # of all arrays that they belong to


@dataclass(frozen=True, slots=True)
class Profile:
    """A model's kernel for one batch size, taken apart."""

    model: str
    rows: int
    target: str
    schedule: str
    trees: int
    ghz: float
    kernel_ns_row: float
    parts: tuple[Part, ...]
    counted: str  # by the hardware, or why not


def main(
    models: Annotated[list[str], typer.Argument(help="Parts of names of models.")],
    batch_sizes: Batches = "4096",
    target: Annotated[str, typer.Option(help="As compile_forest's target.")] = "cpu",
    walk: Annotated[bool, typer.Option(help="The walking schedule instead.")] = False,
    seconds: Annotated[float, typer.Option(help="A model and batch.")] = 6.0,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write tables here.")] = None,
) -> None:
    """Print a table for each model and batch size: one thread, default schedule."""
    profiles, load = [], os.getloadavg()[0]
    for case in cases(models):
        for size in numbers(batch_sizes):
            made = profile(case, size, Target.parse(target), walk, seconds)
            profiles.append(made)
            print(to_markdown(made), flush=True)
    print(f"Load average {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end.")
    if json_file is not None:
        document = [asdict(made) for made in profiles]
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if markdown is not None:
        text = "\n".join(map(to_markdown, profiles))
        markdown.write_text(text, encoding="utf-8")


def profile(
    case: Case, size: int, target: Target, walk: bool = False, seconds: float = 6.0
) -> Profile:
    """Take the kernel of a model for one batch size apart; the target has to run here.

    ``walk`` takes the default walking schedule instead of the default one.
    """
    forest = case.forest
    walks: Any = walking_schedules(forest, target) if walk else None
    module = compile_forest(forest, walks, target)
    schedule = module.schedule_for(size)
    lowered = KernelCache(forest, target, "exact").lowered(schedule, "accumulator")
    rows = np.ascontiguousarray(np.resize(case.rows, (size, forest.n_features)))
    result = np.empty((size, forest.n_outputs), forest.accumulator_dtype)
    cuts, compiled = Cuts(lowered.kernel.function), partial(_kernel, lowered, target)
    prefixes = cuts.prefixes()
    code = {part: mnemonics(emit_assembly(f, target)) for part, f in prefixes.items()}
    moved = {
        part: _moved(lowered, target, f, rows, result) for part, f in prefixes.items()
    }
    upto = {part: compiled(f, size) for part, f in prefixes.items()}
    alone = {_WITHOUT + p: compiled(f, size) for p, f in cuts.without_each().items()}
    last = upto[cuts.parts[-1]]
    last(rows, result, 1)
    # The kernel that is taken apart is the one that predicts.
    for _ in range(WARM_UP):
        _same(module.predict_raw(rows), result, forest.divisor)
    calls: dict[str, Any] = {
        name: lambda k=kernel: k(rows, result, 1)
        for name, kernel in {**upto, **alone}.items()
    }
    calls[_CALL] = lambda: module.predict_raw(rows)
    calls[_NOTHING] = partial(last, rows[:0], result[:0], 1)
    with threadpool_limits(limits=1):
        rounds = max(5, int(seconds / SAMPLE / len(calls)))
        times = interleave(calls, seconds=seconds, rounds=rounds)
    sizes = {"rows": rows.nbytes, "result": result.nbytes}
    sizes |= _sizes(lowered, size)
    ghz = clock_ghz(target)
    plan = plan_of(schedule)
    least = plan and floors(CostEstimate(forest, target), plan, size, ghz)
    return Profile(
        case.name,
        size,
        str(target),
        repr(schedule),
        forest.n_trees,
        ghz,
        _fastest(times[cuts.parts[-1]], size) - _fastest(times[_NOTHING], size),
        tuple(_parts(code, times, least or {}, size, moved, sizes)),
        _counted(last, rows, result, forest),
    )


def _kernel(
    lowered: Lowered,
    target: Target,
    function: lir.Function,
    n_rows: int,
    more: tuple[BufferData, ...] = (),
) -> Kernel:
    """Compile a kernel that is cut, with room for scratch that became a parameter."""
    kernel, data = lowered.kernel, [*lowered.kernel.data]
    known = constants_of(kernel.function, {"n_rows": n_rows})
    for stmt in statements(kernel.function.body):
        if isinstance(stmt, lir.Alloc) and (buffer := stmt.buffer) in function.params:
            room = np.zeros(known[stmt.size.name] + 64, dtype_of(buffer.element))
            data.append(BufferData(buffer, room))
    kernel = replace(kernel, function=function, data=(*data, *more))
    return Kernel(replace(lowered, kernel=kernel), target)


def _moved(
    lowered: Lowered,
    target: Target,
    function: lir.Function,
    rows: NDArray[Any],
    result: NDArray[Any],
) -> Counter[str]:
    """Return the bytes of each buffer that one call of a kernel loads and stores."""
    counting = Counting.of(function)
    runs = BufferData(RUNS, np.zeros(len(counting.of_body), np.int64))
    kernel = _kernel(lowered, target, counting.function, len(rows), (runs,))
    kernel(rows, result, 1)
    return counting.bytes(kernel.stored().data[RUNS.name])


def _sizes(lowered: Lowered, n_rows: int) -> dict[str, int]:
    """Return the bytes of a kernel's arrays: the model's, and scratch of a thread."""
    function = lowered.kernel.function
    known = constants_of(function, {"n_rows": n_rows})
    sizes = {held.buffer.name: held.data.nbytes for held in lowered.kernel.data}
    for stmt in statements(function.body):
        if isinstance(stmt, lir.Alloc) and stmt.size.name in known:
            size = known[stmt.size.name] * stmt.buffer.element.bytes
            sizes[stmt.buffer.name] = size
    return sizes


def _same(found: NDArray[Any], result: NDArray[Any], divisor: int) -> None:
    expected = result / divisor if divisor != 1 else result
    difference = describe_difference(
        found.reshape(result.shape), expected.astype(result.dtype)
    )
    if difference is not None:
        raise SystemExit(f"the kernel taken apart is another: {difference}")


def _parts(
    code_upto: dict[str, Counter[str]],
    times: dict[str, NDArray[np.float64]],
    floors: dict[str, Floor],
    size: int,
    moved_upto: dict[str, Counter[str]],
    sizes: dict[str, int],
) -> list[Part]:
    """Return what each part adds to the kernel up to the one before."""
    names, code, parts = list(code_upto), list(code_upto.values()), []
    ns = {name: _fastest(samples, size) for name, samples in times.items()}
    spent = 0.0
    for i, name in enumerate(names):
        before = names[i - 1] if i else None
        own = code[i] - code[i - 1] if before else code[i]
        moved = grown(moved_upto[name], moved_upto.get(before or "", {}))
        took = ns[name] - ns[before or _NOTHING]
        without, floor = ns.get(_WITHOUT + name), floors.get(name)
        spent += took
        parts.append(
            Part(
                name,
                took,
                None if without is None else ns[names[-1]] - without,
                floor.ns_row if floor else None,
                # A part without a floor is a way to what the next part has to do.
                spent / floor.ns_row if floor else None,
                floor.formula if floor else "",
                describe(own),
                moved.total() / size,
                sum(sizes.get(buffer, 0) for buffer in moved) / 1024,
            )
        )
        spent = 0.0 if floor else spent
    call = ns[_CALL] - ns[names[-1]] + ns[_NOTHING]
    parts.append(Part("call", call, None, None, None, "", "", None, None))
    return parts


def _fastest(samples: NDArray[np.float64], size: int) -> float:
    """Return nanoseconds a row of the fastest round."""
    return float(samples.min()) / size * 1e9


def _counted(
    kernel: Kernel, rows: NDArray[Any], result: NDArray[Any], forest: Forest
) -> str:
    calls = max(1, 20_000 // len(rows))

    def work() -> None:
        for _ in range(calls):
            kernel(rows, result, 1)

    counts, reason = count(work)
    if not counts:
        return reason
    each = calls * len(rows) * forest.n_trees
    found = ", ".join(f"{n / each:.3g} {name}" for name, n in counts.items())
    return f"A row and tree: {found}."


HEADS = ("part", "ns a row", "ps a row and tree", "share", "saved without", "floor, ns",
         "× floor", "bytes a row", "of arrays, KiB", "of floor",
         "instructions")  # fmt: skip


def to_markdown(made: Profile) -> str:
    lines = [
        f"### {made.model}, {made.rows:,} rows, {made.target}\n",
        f"`{made.schedule}`; {made.kernel_ns_row:.1f} ns a row, "
        f"{made.kernel_ns_row / made.trees * 1e3:.0f} ps a row and tree; "
        f"{made.ghz:.2f} GHz. {made.counted}\n",
    ]
    rows = []
    for part in made.parts:
        times = [f"{part.ns_row:.2f}", f"{part.ns_row / made.trees * 1e3:.0f}"]
        times.append(f"{part.ns_row / made.kernel_ns_row:.0%}")
        floors = [_number(part.left_out_ns_row), _number(part.floor_ns_row)]
        floors += [_number(part.distance, 1), _number(part.bytes_row, 0)]
        floors += [_number(part.arrays_kib, 0), part.floor, part.instructions]
        rows.append([part.name, *times, *floors])
    lines += table(HEADS, rows, kinds="tnnnnnnnntt")
    far = [part for part in made.parts if (part.distance or 0) > FAR]
    for part in far:
        why = BEYOND.get(part.name, "Nobody has looked into this.")
        lines.append(f"\n*{part.name}*, {part.distance:.1f} times its floor. {why}")
    if min(part.ns_row for part in made.parts) < -BUSY * made.kernel_ns_row:
        lines.append("\nA part below zero: the machine was busy, measure again.")
    return "\n".join(lines) + "\n"


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    typer.run(main)
