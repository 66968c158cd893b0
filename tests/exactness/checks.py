"""Compile, run and compare: what every exactness test does."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.lowering.kernel import LoweringState
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import emit_assembly, emit_object
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.modules.compiled import CompiledModule, compile_forest
from skforge.schedule.directives import ScheduleKind
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest, rows_for
from tests.llvm_kernels import targets
from tests.oracles.lir_interpreter import interpret_lir

BATCHES = (0, 1, 2, 3, 63, 64, 65, 1000)
FEW = (0, 1, 2, 3, 17)


def batches_for(name: str) -> tuple[int, ...]:
    """Return the batch sizes to try; rows of a million features are many bytes."""
    return (0, 1, 3) if name == "wide records" else BATCHES


@cache
def expected(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a named forest's rows, raw scores and leaves in the source's numbers."""
    made = forest(name)
    rows = rows_for(name, max(batches_for(name)))
    leaves = made.source_node[reference_leaves(made, rows)]
    return rows, reference_raw(made, rows), leaves


def assert_same_bits(got: np.ndarray, wanted: np.ndarray, what: object) -> None:
    """Assert equal dtype, shape and bytes, so that -0.0 is not 0.0."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), what
    same = np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(wanted).tobytes()
    assert same, f"{what}: {got} is not {wanted}"


def raw_of(
    module: CompiledModule, rows: np.ndarray, n_jobs: int | None = None
) -> np.ndarray:
    """Return raw scores as (n_rows, n_outputs) for any forest."""
    raw = module.predict_raw(rows, n_jobs=n_jobs)
    return raw.reshape(len(rows), module.forest.n_outputs)


def check_exact(
    name: str,
    schedule: Schedule | None,
    *,
    target: str | Target = "cpu",
    n_jobs: int | None = None,
    apply: bool = False,
    batches: tuple[int, ...] | None = None,
) -> None:
    """Compile a named forest and compare every batch size with the reference."""
    module = compile_forest(forest(name), schedule, target)
    rows, raw, leaves = expected(name)
    for n in batches or batches_for(name):
        assert_same_bits(raw_of(module, rows[:n], n_jobs), raw[:n], (name, n))
        if apply:
            found = module.apply(rows[:n], n_jobs=n_jobs)
            assert_same_bits(found, leaves[:n], ("apply", name, n))


def rounding_bound(made: Forest, rows: np.ndarray) -> np.ndarray:
    """Return n_trees x 2**-23 x sum of |leaf| over the leaves each row reaches."""
    leaf = made.leaf[reference_leaves(made, rows)]
    total = np.zeros((len(rows), made.n_outputs))
    for tree, output in enumerate(made.tree_output):
        values = np.abs(made.leaf_value[leaf[:, tree]].astype(np.float64))
        if output < 0:
            total += values
        else:
            total[:, output] += values[:, 0]
    # the base is one more number in the sum
    total += np.abs(made.base.astype(np.float64))
    bound: np.ndarray = max(made.n_trees, 1) * 2.0**-23 * total / made.divisor
    return bound


def assert_sums(
    got: np.ndarray, made: Forest, rows: np.ndarray, reduction: Reduction, what: object
) -> None:
    """Assert the bits of the reference, or a distance within the bound of rounding."""
    raw = reference_raw(made, rows)
    if reduction == "exact":
        assert_same_bits(got, raw, what)
        return
    error = np.abs(got.astype(np.float64) - raw)
    bound = rounding_bound(made, rows)
    assert (error <= bound).all(), (what, error.max(), bound[error > bound])


@lru_cache(maxsize=4)
def lowered(
    made: Forest,
    schedule: Schedule,
    target: Target,
    reduction: Reduction = "exact",
    element: Element = "accumulator",
) -> LoweringState:
    """Return a kernel in LIR; calls of a test share it, tests do not (conftest)."""
    kind: ScheduleKind = "gpu" if target.is_gpu else "cpu"
    hir = driver.build_hir(made, schedule, reduction, kind=kind, element=element)
    return driver.lower(hir, target, element=element).kernel


def interpreted(
    made: Forest,
    schedule: Schedule,
    rows: np.ndarray,
    *,
    reduction: Reduction = "exact",
    element: Element = "accumulator",
    target: Target | None = None,
    shuffle: int | None = None,
    extra_stride: int = 0,
) -> np.ndarray:
    """Run a kernel's LIR in the interpreter, which stops at any access out of bounds.

    ``extra_stride`` elements lie between one row and the next; they are NaN.
    """
    target = target or Target.host()
    kernel = lowered(made, schedule, target, reduction, element)
    n, width = rows.shape
    padded = np.full((n, width + extra_stride), np.nan, rows.dtype)
    padded[:, :width] = rows
    flat = padded.reshape(-1)[: max(0, n * (width + extra_stride) - extra_stride)]
    columns = {
        "accumulator": made.n_outputs,
        "contribution": made.n_outputs * (made.n_features + 1),
        "interaction": made.n_outputs * (made.n_features + 1) ** 2,
    }.get(element, made.n_trees)
    numbers = np.int32 if element == "leaf_number" else made.leaf_value.dtype
    result = np.full((n, columns), 77, numbers)
    interpret_lir(
        kernel.function,
        {
            "rows": np.ascontiguousarray(flat),
            "n_rows": n,
            "row_stride": width + extra_stride,
            "result": result,
            **{item.buffer.name: item.data for item in kernel.data},
        },
        shuffle=shuffle,
    )
    if element == "accumulator" and made.divisor != 1:
        result /= made.divisor
    return result


def emitted(made: Forest, schedule: Schedule, target: Target) -> tuple[str, bytes]:
    """Return a kernel's assembly and object code; the target need not run here."""
    function = lowered(made, schedule, target).function
    return emit_assembly(function, target), emit_object(function, target)


def levels() -> dict[str, Target]:
    """Return the plain CPUs whose code runs here: x86-64 levels, or aarch64."""
    return {name: target for name, target in targets().items() if name != "host"}


def cpu(level: str) -> Target:
    """Return a CPU by name, "host" among them, or skip the test."""
    if level not in targets():
        pytest.skip(f"this machine does not run x86-64-{level}")
    return targets()[level]
