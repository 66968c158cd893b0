"""``reproducible``: one answer for all schedules and threads; ``fast``: a bound."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from skforge.forest.forest import Forest
from skforge.forest.reference import reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, assert_sums, expected, raw_of
from tests.exactness.families import FAMILIES
from tests.exactness.forests import drawn, forest

FORESTS = ("mixed trees", "multiclass many", "vector 3", "averaged")
THREADED = [name for name, s in FAMILIES.items() if "parallel" in repr(s)]
N = 65


@cache
def reproducible(name: str) -> np.ndarray:
    """Return what one schedule answers; all others must answer the same."""
    module = compile_forest(forest(name), Schedule(), reduction="reproducible")
    return raw_of(module, expected(name)[0][:N])


def within(got: np.ndarray, name: str, what: object) -> None:
    assert_sums(got, forest(name), expected(name)[0][: len(got)], "fast", what)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("family", FAMILIES)
def test_reproducible_is_the_same_bits_for_every_schedule(family: str) -> None:
    name = FORESTS[list(FAMILIES).index(family) % len(FORESTS)]
    module = compile_forest(forest(name), FAMILIES[family], reduction="reproducible")
    rows, wanted = expected(name)[0], reproducible(name)
    for n_jobs, n in ((1, 1), (1, 3), (1, N), (2, N), (8, 17)):
        got = raw_of(module, rows[:n], n_jobs)
        assert_same_bits(got, wanted[:n], (family, n_jobs, n))


@pytest.mark.parametrize("name", FORESTS)
def test_reproducible_is_within_the_rounding_of_the_source(name: str) -> None:
    got = reproducible(name)
    within(got, name, "reproducible")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reproducible_is_the_exact_sum_rounded_once(dtype: str) -> None:
    """Values that are multiples of 2**-10 sum without error in fixed point."""
    made = _with_leaves(drawn(50, 4, sums=dtype, seed=3), scale=2.0**-10)
    rows = np.random.default_rng(1).standard_normal((40, 5)).astype(np.float32)
    exact = reference_raw(_in_double(made), rows).astype(dtype)
    got = raw_of(compile_forest(made, reduction="reproducible"), rows)
    assert_same_bits(got, exact, dtype)


def _with_leaves(made: Forest, scale: float) -> Forest:
    random = np.random.default_rng(0)
    whole = random.integers(-(1 << 20), 1 << 20, size=made.leaf_value.shape)
    base = np.full(made.n_outputs, 3 * scale)
    return replace(
        made, leaf_value=(whole * scale).astype(made.leaf_value.dtype), base=base
    )


def _in_double(made: Forest) -> Forest:
    return replace(made, leaf_value=made.leaf_value.astype(np.float64))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("family", FAMILIES)
def test_fast_is_within_its_bound(family: str) -> None:
    name = FORESTS[list(FAMILIES).index(family) % len(FORESTS)]
    module = compile_forest(forest(name), FAMILIES[family], reduction="fast")
    rows = expected(name)[0]
    for n_jobs, n in ((1, 0), (1, 1), (1, N), (2, N), (8, 17)):
        within(raw_of(module, rows[:n], n_jobs), name, (family, n_jobs, n))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("reduction", ["fast", "reproducible"])
@pytest.mark.parametrize(
    "name", ["vector 100", "double extremes", "no trees", "leaves"]
)
def test_other_forests_in_these_modes(name: str, reduction: str) -> None:
    kinds = (
        "vector reduce",
        "parallel both",
        "atomic",
        "atomic lanes",
        "vectorize all",
    )
    for family in kinds:
        module = compile_forest(forest(name), FAMILIES[family], reduction=reduction)
        rows = expected(name)[0]
        for n in (1, N):
            within(raw_of(module, rows[:n], 2), name, (family, reduction, n))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("family", THREADED)
def test_no_slot_is_left_over_from_the_call_before(family: str) -> None:
    """Scratch is cleared: the same call again gives the same sums."""
    module = compile_forest(forest("multiclass"), FAMILIES[family], reduction="fast")
    rows = expected("multiclass")[0][:17]
    first = raw_of(module, rows)
    for _ in range(3):
        assert_same_bits(raw_of(module, rows), first, family)
