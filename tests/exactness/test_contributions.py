"""Contributions against their definitions: all subsets of features, in long doubles.

Bounds are shares of the sum of all |contributions| of a row, the bias included: 1e-6 in
float32, 1e-12 in float64. Where trees cancel, contributions are smaller than what was
added: the largest leaves of all trees have one unit of rounding more.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from skforge import Schedule, compile_forest
from skforge.compiler.target import Target
from skforge.engine.explanations.contributions import ContributionKernels
from skforge.forest.forest import Forest
from tests.exactness.checks import assert_same_bits, interpreted, levels
from tests.exactness.forests import drawn, forest_of
from tests.oracles import shap_values as oracle
from tests.strategies_forest import edge_rows, random_forest
from tests.turns import random_test

#: Rows of a block: one row has its points in lanes, more rows are the lanes.
BLOCKS = (1, 16, 32, 64)
BOUND = {"float32": 1e-6, "float64": 1e-12}
#: Units of rounding of the sum of |contributions| by which a row may miss its margin.
ULPS = {"float32": 4, "float64": 64}

# ------------------------------------------------------------ forests


def with_covers(forest: Forest, seed: int, empty: float = 0.0) -> Forest:
    """Return the forest with new covers; a share of its leaves has none."""
    random = np.random.default_rng(seed)
    cover = random.integers(1, 50, size=forest.n_nodes).astype(np.float64)
    cover[random.random(forest.n_nodes) < empty] = 0.0
    pending, inner = list(forest.tree_offset[:-1]), []
    for node in pending:
        if forest.left[node] >= 0:
            inner.append(node)
            pending += [forest.left[node], forest.right[node]]
    for node in reversed(inner):
        cover[node] = cover[forest.left[node]] + cover[forest.right[node]]
    return replace(forest, cover=cover)


@st.composite
def forests(draw: st.DrawFn, **changes: Any) -> Forest:
    """Draw a forest with covers; some have leaves and nodes without any."""
    made = draw(random_forest(**changes))
    return with_covers(
        made, draw(st.integers(0, 99)), draw(st.sampled_from([0.0, 0.3]))
    )


# ------------------------------------------------------------ comparisons


def in_blocks(block: int, represent: str = "contributions") -> Schedule:
    """Return the schedule of contributions for blocks of some rows."""
    made = Schedule().tile("batch", "b0", "b1", block).reorder("b0", "tree", "b1")
    return made.parallel("b0").vectorize("b1").represent(represent)


def scale_of(wanted: np.ndarray, axes: int = 1) -> np.ndarray:
    """Return the sum of all |contributions| of each row and output."""
    made: np.ndarray = np.abs(wanted).sum(axis=(-1, -2)[:axes], keepdims=True)
    return made


def leaves_of(made: Forest) -> np.ndarray:
    """Return the sum over trees of the largest |leaf| of each output."""
    size = np.zeros(made.n_outputs)
    tree = np.repeat(np.arange(made.n_trees), np.diff(made.tree_offset))
    for number, output in enumerate(made.tree_output):
        leaves = made.leaf[(tree == number) & (made.leaf >= 0)]
        largest = np.abs(made.leaf_value[leaves]).max(axis=0)
        if output < 0:
            size += largest
        else:
            size[output] += largest[0]
    return size / made.divisor


def assert_close(
    got: np.ndarray,
    wanted: np.ndarray,
    what: object = "",
    axes: int = 1,
    made: Forest | None = None,
) -> None:
    """Assert that contributions are as near as promised; pairs lie on 2 axes."""
    wanted = wanted.reshape(got.shape)
    bound = BOUND[got.dtype.name] * scale_of(wanted, axes)
    if made is not None:
        room = np.finfo(got.dtype).eps * leaves_of(made)
        bound = bound + room.reshape(-1, *(1,) * axes)
    error = np.abs(got - wanted)
    assert (error <= bound).all(), (what, float((error - bound).max()), got, wanted)


def assert_sums(
    got: np.ndarray, margins: np.ndarray, what: object = "", made: Forest | None = None
) -> None:
    """Assert that contributions add up to the margins."""
    got = got.reshape(*margins.shape, -1)
    scale = np.abs(got).sum(axis=-1, dtype=np.longdouble)
    if made is not None:
        scale += leaves_of(made)
    limit = ULPS[got.dtype.name] * np.finfo(got.dtype).eps * scale
    gap = np.abs(got.sum(axis=-1, dtype=np.longdouble) - margins)
    assert (gap <= limit).all(), (what, float((gap - limit).max()))


# ------------------------------------------------------------ random forests


def check_values(made: Forest, seed: int) -> None:
    """Compare one forest's values with all subsets, on all targets and blocks."""
    rows = edge_rows(made, 5, seed)
    wanted = oracle.shap_values(made, rows)
    got = compile_forest(made).predict_contribs(rows)
    assert got.dtype == made.leaf_value.dtype
    assert_close(got, wanted, made=made)
    assert_sums(got, oracle.margins(made, rows), made=made)
    ways = list(levels().values())
    way, block = ways[seed % len(ways)], BLOCKS[seed // 3 % 4]
    other = ContributionKernels(made, way, {(1, None): in_blocks(block)}).values(
        rows, 1
    )
    assert_close(other, wanted, (way, block), made=made)
    if way.has_fma == Target.host().has_fma:
        assert_same_bits(other.reshape(got.shape), got, (way, block))


test_random_forests = random_test(
    check_values, 4, 300, forests(max_features=7), st.integers(0, 11)
)


def test_nodes_without_cover() -> None:
    """A row that meets a node that no training row met; worked out by hand."""
    made = forest_of([(np.array([1, 3, -1, -1, -1]), np.array([2, 4, -1, -1, -1]))])
    made = replace(
        made,
        n_features=2,
        predicate=np.array([0, 1, -1, -1, -1], np.int32),
        feature=np.array([0, 1], np.int32),
        threshold=np.zeros(2, np.float32),
        leaf=np.array([-1, -1, 0, 1, 2], np.int32),
        leaf_value=np.array([[-3], [1], [5]], np.float32),
        base=np.zeros(1, np.float32),
        cover=np.array([10.0, 0, 10, 0, 0]),
    )
    # worths: -3 of {} and {1}; 3 of {0}, as half goes each way below; 1 of {0, 1}
    got = compile_forest(made).predict_contribs(np.full((1, 2), -1, np.float32))
    assert_same_bits(got, np.array([[5, -1, -3]], np.float32), "by hand")


@pytest.mark.parametrize("interactions", [False, True])
def test_no_rows_of_a_leaf(interactions: bool) -> None:
    leaf = np.full(1, -1)
    made = replace(forest_of([(leaf, leaf)]), n_features=2, cover=np.ones(1))
    compiled = compile_forest(made)
    for n in (0, 3):
        rows = np.zeros((n, 2), np.float32)
        found = compiled.predict_contribs(rows, interactions=interactions)
        assert found.shape == (n, *(2 if interactions else 1) * (3,))
        total = found.sum(axis=tuple(range(1, found.ndim)))
        assert_same_bits(total, compiled.predict_raw(rows).reshape(n), "the bias")


@pytest.mark.parametrize("rare", [1e-8, 0.0])
def test_probabilities_of_a_rare_class(rare: float) -> None:
    """No class has digits only beside a likelier one."""
    made = drawn(4, 4, covers=True, n_outputs=4, vector=True, sums="float64", divisor=4)
    value = np.random.default_rng(0).random(made.leaf_value.shape)
    value[:, -1] *= rare
    value /= value.sum(axis=1, keepdims=True)
    made = replace(made, leaf_value=value, base=np.zeros(4))
    rows = edge_rows(made, 5, seed=1)
    got = compile_forest(made).predict_contribs(rows)
    assert_close(got, oracle.shap_values(made, rows))


# ------------------------------------------------------------ the same bits

#: Scalar and vector leaves, categories, missing values, odd trees.
KINDS: dict[str, Forest] = {
    "scalar": drawn(9, 6, covers=True),
    "several": drawn(7, 5, covers=True, n_outputs=3, sums="float64"),
    "vector": drawn(4, 5, covers=True, n_outputs=3, vector=True, sums="float64"),
    "categories": drawn(6, 6, covers=True, category_words=4),
    "double": drawn(5, 6, covers=True, dtype="float64", sums="float64", divisor=5),
    "deep": drawn(2, 20, covers=True, shape="chain", n_features=40),
}


#: Those that are compiled for all levels in a default run.
FEW = ("scalar", "vector")

#: Batches where not all are tried.
SIZES = (0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 129, 200)


@cache
def answers(name: str, option: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Return rows, and their contributions as compiled by default."""
    rows = edge_rows(KINDS[name], 200, seed=5)
    options = {option: True} if option else {}
    return rows, compile_forest(KINDS[name]).predict_contribs(rows, **options)


@pytest.mark.parametrize(
    "name",
    [
        name if name in FEW else pytest.param(name, marks=pytest.mark.slow)
        for name in KINDS
    ],
)
def test_bits_of_every_block_and_level(name: str) -> None:
    """Levels with fused multiply-add share their bits, and so do those without."""
    made = KINDS[name]
    rows, _ = answers(name)
    values: dict[bool, np.ndarray] = {}
    pairs: dict[bool, np.ndarray] = {}
    for level, target in levels().items():
        for block in BLOCKS if level == "v4" else BLOCKS[:2]:
            schedules = {(1, None): in_blocks(block)}
            got = ContributionKernels(made, target, schedules).values(rows, 1)
            wanted = values.setdefault(target.has_fma, got)
            assert_same_bits(got, wanted, (level, block))
        got = ContributionKernels(made, target).interactions(rows[:20], 1)
        assert_same_bits(got, pairs.setdefault(target.has_fma, got), level)
    own, few = answers(name), answers(name, "interactions")
    for found, default in ((values, own[1]), (pairs, few[1][:20])):
        here = found[Target.host().has_fma]
        assert_same_bits(here.reshape(default.shape), default, "default")
        for other in found.values():
            assert_close(other, here.astype(np.longdouble), axes=1 + (found is pairs))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("option", ["", "interactions", "approximate"])
@pytest.mark.parametrize("name", KINDS)
def test_bits_of_every_batch_and_number_of_threads(name: str, option: str) -> None:
    module = compile_forest(KINDS[name])
    rows, wanted = answers(name, option)
    options = {option: True} if option else {}
    for n in range(201) if name == "scalar" and not option else SIZES:
        first = 200 - n
        got = module.predict_contribs(rows[first:], **options)
        assert_same_bits(got, wanted[first:], n)
    for n_jobs in (1, 2, 3):
        got = module.predict_contribs(rows, n_jobs=n_jobs, **options)
        assert_same_bits(got, wanted, ("threads", n_jobs))


@pytest.mark.parametrize("name", KINDS)
def test_rows_that_are_not_contiguous(name: str) -> None:
    module = compile_forest(KINDS[name])
    rows, wanted = answers(name)
    wide = np.full((2 * len(rows), 2 * rows.shape[1] + 3), np.nan, rows.dtype)
    wide[::2, : rows.shape[1]] = rows
    spread = np.full_like(wide, np.nan)
    spread[: len(rows), : 2 * rows.shape[1] : 2] = rows
    for what, same in {
        "wide": wide[::2, : rows.shape[1]],
        "spread": spread[: len(rows), : 2 * rows.shape[1] : 2],
        "by columns": np.asfortranarray(rows),
        "upwards": rows[::-1].copy()[::-1],
    }.items():
        assert_same_bits(module.predict_contribs(same), wanted, what)


# ------------------------------------------------------------ the interpreter


@pytest.mark.sampled(3)
@pytest.mark.parametrize("block", [1, 16, 64])
@pytest.mark.parametrize("name", ["scalar", "vector", "categories"])
def test_the_interpreter_is_compiled_code(name: str, block: int) -> None:
    """It stops at any access out of bounds; the rows lie apart."""
    rows, wanted = answers(name)
    for n in (0, 1, 17):
        got = interpreted(
            KINDS[name],
            in_blocks(block),
            rows[:n],
            element="contribution",
            extra_stride=n % 3,
        )
        assert_same_bits(got.reshape(wanted[:n].shape), wanted[:n], (name, n))


def test_the_interpreter_of_interactions() -> None:
    rows, wanted = answers("scalar", "interactions")
    schedule = in_blocks(16, "interactions")
    got = interpreted(KINDS["scalar"], schedule, rows[:5], element="interaction")
    assert_same_bits(got.reshape(wanted[:5].shape), wanted[:5], "interactions")


# ------------------------------------------------------------ other kinds


def check_interactions(made: Forest, seed: int) -> None:
    """Compare one forest's interactions with all subsets, and with its own values."""
    rows = edge_rows(made, 3, seed)
    module = compile_forest(made)
    got = module.predict_contribs(rows, interactions=True)
    wanted = oracle.shap_interactions(made, rows).reshape(got.shape)
    assert_close(got, wanted, axes=2, made=made)
    values = oracle.shap_values(made, rows)
    assert_close(got.sum(axis=-1), values, "sums of rows", made=made)
    assert_same_bits(got.swapaxes(-1, -2).copy(), got, "symmetric")


def check_approximate(made: Forest, seed: int) -> None:
    rows = edge_rows(made, 5, seed)
    got = compile_forest(made).predict_contribs(rows, approximate=True)
    assert_close(got, oracle.saabas_values(made, rows), made=made)
    assert_sums(got, oracle.margins(made, rows), made=made)


test_interactions = random_test(
    check_interactions, 4, 300, forests(max_features=7), st.integers(0, 11)
)
test_approximate_values = random_test(
    check_approximate, 4, 300, forests(max_features=7), st.integers(0, 11)
)
