"""Every family's LIR in the interpreter, which stops at any access out of bounds."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.target import Target
from tests import toy_representation
from tests.exactness.checks import (
    assert_same_bits,
    assert_sums,
    expected,
    interpreted,
)
from tests.exactness.families import FAMILIES
from tests.exactness.forests import drawn, forest

REPRESENTATIONS = ("sparse", "array", "reorg", toy_representation.Toy.name)
KINDS = ("scalar", "multiclass", "vector 3", "categories", "double extremes")
SIZES = (0, 1, 2, 7, 19)


def turn(family: str, representation: str) -> int:
    return list(FAMILIES).index(family) + REPRESENTATIONS.index(representation)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_lir(family: str, representation: str) -> None:
    schedule = FAMILIES[family].represent(representation)
    if representation == "reorg" and "tile_nodes" in repr(schedule):
        return
    at = turn(family, representation)
    name = KINDS[at % len(KINDS)]
    rows, raw, leaves = expected(name)
    made = forest(name)
    for n in SIZES:
        # rows further apart than they are wide, parallel iterations in any order
        got = interpreted(made, schedule, rows[:n], extra_stride=n % 3, shuffle=n)
        assert_same_bits(got, raw[:n], (name, n))
    found = interpreted(made, schedule, rows[:7], element="leaf_number", shuffle=1)
    assert_same_bits(found, leaves[:7], ("apply", name))
    for reduction in ("fast", "reproducible"):
        got = interpreted(made, schedule, rows[:7], reduction=reduction, shuffle=at)
        assert_sums(got, made, rows[:7], reduction, (name, reduction))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", ["no trees", "leaves", "one leaf", "chains"])
@pytest.mark.parametrize(
    "family",
    [
        "rows",
        "interleave trees",
        "unroll walk deep",
        "specialize",
        "vectorize",
        "cache trees",
        "likely tiles 3",
        "pad and unroll",
        "parallel nested trees",
    ],
)
def test_forests_of_odd_shapes(name: str, family: str) -> None:
    rows, raw, _ = expected(name)
    for n in (0, 3):
        got = interpreted(forest(name), FAMILIES[family], rows[:n], shuffle=n)
        assert_same_bits(got, raw[:n], (name, n))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("level", ["v2", "v3", "v4", "aarch64"])
@pytest.mark.parametrize("family", ["vectorize", "vectorize and unroll walk", "rows"])
def test_lir_of_other_vector_widths(level: str, family: str) -> None:
    """The lanes differ by target; the interpreter needs no such machine."""
    target = Target.aarch64() if level == "aarch64" else Target.x86_64(level)
    rows, raw, _ = expected("multiclass")
    for n in (1, 17, 19):
        made, schedule = forest("multiclass"), FAMILIES[family]
        got = interpreted(made, schedule, rows[:n], target=target)
        assert_same_bits(got, raw[:n], (level, n))


def test_the_last_row_is_not_read_past_its_end() -> None:
    """The last row of a matrix with a wide stride has nothing behind it."""
    made = drawn(3, 3)
    rows = np.ones((5, made.n_features), np.float32)
    for family in ("vectorize", "cache rows", "interleave rows", "node tiles 8"):
        interpreted(made, FAMILIES[family], rows, extra_stride=100)
