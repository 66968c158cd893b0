"""What graphs compute of scores, as machine code, for batches that no entry takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from skforge._typing import Array
from skforge.engine import graph_trees, mlas_routine
from skforge.engine.routines import routine
from skforge.exceptions import CompilerError, InvalidModelError, UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.outputs import graph
from skforge.outputs.steps import UntracedError

if TYPE_CHECKING:
    from skforge.engine.cpu.jit import JitSource


def install() -> None:
    """Let graphs compute with machine code from now on."""
    mlas_routine.install()
    graph_trees.install()
    graph.MACHINE_CODE["of"] = _code


def load(forest: Forest) -> None:
    """Compile what a forest's graph computes, or read it from the cache."""
    runner = graph.runner_of(forest.outputs.graph)
    raw = np.zeros((2, forest.n_outputs), forest.accumulator_dtype)
    program = runner.program
    graph_trees.load(forest.outputs.graph)
    for wanted in (program.scores, (program.places,)):
        if wanted != (-1,) and runner.code(wanted, raw) is None:
            mlas_routine.load()


def _code(
    runner: graph.GraphRunner, wanted: tuple[int, ...], raw: Array
) -> Callable[[Array], list[Array] | None] | None:
    """Return what computes values of rows like these; None if only arrays do."""
    facts = runner.program.text, wanted, raw.shape[1], str(raw.dtype)
    try:
        made = runner(np.zeros((2, raw.shape[1]), raw.dtype), wanted)
        run = routine(_sources, *facts)
    except (CompilerError, InvalidModelError, UnsupportedModelError, UntracedError):
        return None
    like = [(array.shape[1:], array.dtype) for array in made]

    def computed(raw: Array) -> list[Array] | None:
        n, unknown = len(raw), np.zeros(1, np.int64)
        arrays = [np.empty((n, *shape), dtype) for shape, dtype in like]
        run(1, n, np.ascontiguousarray(raw), unknown, *arrays)
        return None if unknown[0] else arrays

    return computed


def _sources(
    text: str, wanted: tuple[int, ...], n_outputs: int, dtype: str
) -> list[JitSource]:
    from skforge.compiler.ir.lir.builder import Builder
    from skforge.compiler.ir.lir.nodes import I64, Buffer, Function, Value
    from skforge.compiler.ir.lir.types import scalar_of
    from skforge.engine.entry.graph_code import GraphCode

    code = GraphCode(text, wanted, n_outputs, dtype)
    n, flag = Value("n", I64), Buffer("unknown", I64)
    raw, shapes = Buffer("raw", scalar_of(np.dtype(dtype))), code.traced.shapes
    outs = [
        Buffer(f"out{k}", scalar_of(np.dtype(kind)))
        for k, (_, kind) in enumerate(shapes)
    ]

    def store(i: Value, k: int, values: Sequence[Value]) -> None:
        for j, value in enumerate(values):
            outs[k][i * len(values) + j] = value

    with Builder() as b:
        flag[0] = code.write(raw, n, store).to(I64)
    function = Function("skf_graph", (n, raw, flag, *outs), b.finish())
    return [function, *code.tables]
