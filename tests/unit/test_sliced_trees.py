"""Bit-sliced code by count: operations a node, no gathers, length free of the model."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.binning.search import Registers
from skforge.compiler.binning.transpose import RUN, WIDE_PART
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts.bitsliced.sliced_layout import OPS_A_TURN
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from tests.exactness.forests import drawn, forest_of, tree
from tests.exactness.sliced import counted, grown, sliced

V4 = Target.x86_64("v4")
LEVELS = ("v2", "v3", "v4")


def lowered(made: Forest, block: int = 512, target: Target = V4) -> lir.Function:
    hir = driver.build_hir(made, sliced(block), "exact")
    return driver.lower(hir, target).kernel.function


def operations(function: lir.Function) -> int:
    """Return how many statements there are, without constants, some of which agree."""
    every = list(statements(function.body))
    return len(every) - len(lets(function.body, lir.Const))


def lets(body: lir.Body, kind: type) -> list:
    return [
        (s.value, s.op)
        for s in statements(body)
        if isinstance(s, lir.Let) and isinstance(s.op, kind)
    ]


def loops(function: lir.Function, hint: str) -> list[lir.For]:
    found = [s for s in statements(function.body) if isinstance(s, lir.For)]
    return [loop for loop in found if loop.var.name.startswith(f"{hint}.")]


def float_compares(body: lir.Body) -> int:
    return sum(
        isinstance(op.a.type, lir.Vec) and op.a.type.element.is_float
        for _, op in lets(body, lir.Compare)
    )


# ------------------------------------------------------------ trees


@pytest.mark.parametrize("depth", range(9))
def test_a_fold_is_one_operation_a_node_below_each_level(depth: int) -> None:
    """Level l chooses among 2**l lines by 2**l - 1 operations."""
    made = drawn(3, depth, shape="full") if depth else _stump_and_leaf()
    function = lowered(made)
    muxes = len(lets(function.body, lir.PlaneMux))
    # a leaf joins the class of its neighbour, the stump
    assert muxes == max(0, (1 << depth) - 1 - depth)
    (loop,) = loops(function, "part") or [None]
    inside = function.body if loop is None else loop.body
    assert len(lets(inside, lir.PlaneMux)) == muxes


def _stump_and_leaf() -> Forest:
    random = np.random.default_rng(0)
    return forest_of([tree("full", 0, random), tree("full", 1, random)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", LEVELS)
def test_code_does_not_grow_with_the_forest(level: str) -> None:
    target = Target.x86_64(level)

    def size(n_trees: int) -> int:
        made = counted((3, 20, 200), n_trees=n_trees)
        return operations(lowered(made, target=target))

    assert size(4) == size(300)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sums", ["float32", "float64"])
def test_code_does_not_grow_with_the_outputs_of_a_leaf(level: str, sums: str) -> None:
    """A random forest of 400 classes took a minute and a half to compile."""
    target = Target.x86_64(level)

    def size(outputs: int) -> int:
        made = drawn(3, 8, n_outputs=outputs, vector=True, sums=sums)
        return operations(lowered(made, target=target))

    assert size(24) == size(400)


def test_code_of_a_list_does_not_grow_with_its_operations() -> None:
    random = np.random.default_rng(2)

    def lines(*leaves: int) -> int:
        made = forest_of([grown(n, random) for n in leaves], n_features=3)
        (loop,) = loops(lowered(made), "tree")
        assert len(lets(loop.body, lir.PlaneMux)) == OPS_A_TURN
        return len(list(statements(loop.body)))

    assert lines(140, 150) == lines(*[200] * 20)


# ------------------------------------------------------------ predicates


def test_few_thresholds_compare_directly() -> None:
    """One splat and a compare for each vector of the block's rows."""
    function = lowered(counted((9, 1, 4)))
    (loop,) = loops(function, "threshold")
    assert float_compares(loop.body) == 512 // 16
    assert not loops(function, "rows")


@pytest.mark.parametrize(
    ("count", "levels"),
    [(10, 4), (15, 4), (16, 5), (31, 5), (32, 6), (64, 7), (128, 8), (255, 8)],
)
def test_many_thresholds_are_searched(count: int, levels: int) -> None:
    """As many compares a row as the number of thresholds has bits, not thresholds."""
    function = lowered(counted((count,)))
    (loop,) = loops(function, "rows")
    together = Registers.of(V4, np.dtype("f4")).lockstep
    assert float_compares(loop.body) == together * levels
    # The first level has one pivot; a permute takes two registers of 16 of them.
    permutes = sum(max(1, (1 << level) // 32) for level in range(1, levels))
    assert len(lets(loop.body, lir.Permute)) == together * permutes
    # Among its permutes a level chooses by answers that are there already.
    chosen = sum(max(1, (1 << level) // 32) - 1 for level in range(levels))
    assert len(lets(loop.body, lir.Select)) == together * (chosen + levels - 1)
    assert not loops(function, "threshold")


def test_without_permutes_every_threshold_is_compared() -> None:
    function = lowered(counted((200, 3)), target=Target.x86_64("v2"))
    assert not loops(function, "rows")
    (loop,) = loops(function, "threshold")
    assert float_compares(loop.body) == 512 // 4


@pytest.mark.parametrize(("level", "rows"), [("v2", 4), ("v3", 32), ("v4", 16)])
def test_answers_of_a_threshold_become_bits_together(level: str, rows: int) -> None:
    function = lowered(counted((9,)), target=Target.x86_64(level))
    (loop,) = loops(function, "threshold")
    assert len(lets(loop.body, lir.MaskBits)) == 512 // rows


def test_wide_rows_are_taken_in_parts() -> None:
    function = lowered(drawn(9, 6, n_features=501))
    columns = [
        s
        for s in statements(function.body)
        if isinstance(s, lir.Alloc) and s.buffer.name.startswith("columns")
    ]
    sizes = {v.name: op.value for v, op in lets(function.body, lir.Const)}
    assert [sizes[s.size.name] for s in columns] == [RUN * WIDE_PART]
