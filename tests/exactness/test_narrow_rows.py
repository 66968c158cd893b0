"""float64 rows compared as float32: ties with rounded thresholds are exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skforge import compile_forest
from skforge.compiler.target import Target
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.predicates import round_thresholds
from skforge.forest.reference import reference_raw
from tests.exactness.checks import cpu, interpreted, lowered
from tests.exactness.forests import EXTREMES, drawn
from tests.exactness.sliced import sliced
from tests.turns import in_turns

V3 = Target.x86_64("v3")
FLOATS = st.floats(width=64, allow_nan=True)


def doubles(missing: Missing, n_features: int = 4, extremes: bool = False) -> Forest:
    """Return a forest of many float64 thresholds a feature, some of them float32."""
    kind = {"thresholds": EXTREMES} if extremes else {}
    made = drawn(
        30,
        6,
        comparisons=(Comparison.LE,),
        missing=(missing,),
        dtype="float64",
        n_features=n_features,
        **kind,
    )
    return made


def rows_near(made: Forest, n: int, seed: int) -> np.ndarray:
    """Return thresholds, their neighbours of both types, and values between."""
    random = np.random.default_rng(seed)
    t = random.choice(made.threshold, (n, made.n_features))
    with np.errstate(over="ignore", under="ignore"):
        single = t.astype(np.float32)
        choices = [
            t,
            np.nextafter(t, np.inf),
            np.nextafter(t, -np.inf),
            single.astype(np.float64),
            np.nextafter(single, np.float32(np.inf)).astype(np.float64),
            np.nextafter(single, np.float32(-np.inf)).astype(np.float64),
            random.standard_normal(t.shape),
            np.full(t.shape, np.nan),
            random.choice([0.0, -0.0, 1e300, -1e300, 1e-300, -1e-300, np.inf], t.shape),
        ]
    picked = random.integers(0, len(choices), t.shape)
    return np.choose(picked, choices)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("missing", "level"), in_turns(Missing, ["v2", "v3", "v4"], often=2)
)
@pytest.mark.parametrize("extremes", [False, True])
def test_ties(missing: Missing, level: str, extremes: bool) -> None:
    made = doubles(missing, extremes=extremes)
    rows = rows_near(made, 700, 3)
    raw = reference_raw(made, rows)
    for block in (64, 512):
        module = compile_forest(made, schedule=sliced(block), target=cpu(level))
        for n in (1, 63, 513, 700):
            got = module.predict_raw(rows[:n]).reshape(n, -1)
            np.testing.assert_array_equal(got, raw[:n])
        # a row's ties were settled where another row of the block had some
        alone = [module.predict_raw(row[None]).ravel() for row in rows[:200]]
        np.testing.assert_array_equal(alone, raw[:200])


@pytest.mark.parametrize("near", [1e-9, 1e-8, 1e-7])
@pytest.mark.parametrize("centre", [1.0, -1.0, 0.0, 1.7e9])
def test_ties_with_many_thresholds(near: float, centre: float) -> None:
    """A value may tie with dozens of thresholds, of which float32 tells few apart."""
    scale = max(1.0, abs(centre))
    some = [centre + scale * near * k for k in range(-20, 20)]
    far = [centre + scale * 0.1 * k for k in range(-20, 20)]
    made = drawn(
        40,
        6,
        comparisons=(Comparison.LE,),
        missing=(Missing.NAN,),
        dtype="float64",
        n_features=2,
        thresholds=some + far,
    )
    rows = rows_near(made, 200, 8)
    rows[100:] = np.random.default_rng(1).choice(some, (100, 2))
    got = compile_forest(made, schedule=sliced(64)).predict_raw(rows)
    np.testing.assert_array_equal(got.reshape(200, -1), reference_raw(made, rows))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("block", [1024, 2048, 4096])
def test_ties_in_blocks_that_are_taken_in_parts(block: int) -> None:
    """Ties of the second part of a block were settled in the lines of the first."""
    made = doubles(Missing.NAN)
    rows = rows_near(made, block + 37, 6)
    got = compile_forest(made, schedule=sliced(block)).predict_raw(rows)
    np.testing.assert_array_equal(got.reshape(len(rows), -1), reference_raw(made, rows))


@pytest.mark.parametrize("missing", Missing)
def test_ties_of_wide_rows(missing: Missing) -> None:
    """Rows are read in two runs; the second begins at its own columns."""
    near = doubles(missing, n_features=40)
    made = replace(near, feature=near.feature * 20, n_features=800)
    rows = rows_near(made, 300, 7)
    raw = reference_raw(made, rows)
    for block in (64, 128):
        got = compile_forest(made, schedule=sliced(block)).predict_raw(rows)
        np.testing.assert_array_equal(got.reshape(len(rows), -1), raw)


def test_rows_of_float32_need_nothing_more() -> None:
    made = doubles(Missing.NAN)
    with np.errstate(over="ignore"):
        rows = rows_near(made, 600, 4).astype(np.float32).astype(np.float64)
    got = compile_forest(made, schedule=sliced(512)).predict_raw(rows)
    np.testing.assert_array_equal(got.reshape(600, -1), reference_raw(made, rows))


def test_the_interpreter_settles_ties_alike() -> None:
    made = doubles(Missing.NAN)
    rows = rows_near(made, 70, 5)
    data = lowered(made, sliced(64), V3).data
    assert any(item.buffer.name == "exact_thresholds" for item in data)
    got = interpreted(made, sliced(64), rows, target=V3)
    np.testing.assert_array_equal(got, reference_raw(made, rows))


@settings(max_examples=500)
@given(FLOATS, FLOATS.filter(lambda t: t == t), st.integers(-2, 2))
def test_what_is_no_tie_is_right(x: float, t: float, steps: int) -> None:
    """The comparison of float32 is exact, or x is another number and near."""
    with np.errstate(over="ignore", under="ignore"):
        around = np.array([x, t, np.nextafter(t, np.inf), np.nextafter(t, -np.inf)])
        single = around.astype(np.float32)
        moved = single.astype(float) + steps * np.spacing(single)
        pivot = round_thresholds(np.array([t]), Comparison.LE, np.float32)
        for values in (around, moved):
            narrow = values.astype(np.float32)
            apart = narrow.view(np.uint32) + np.uint32(1) - pivot.view(np.uint32)
            tie = (apart <= 2) & (narrow.astype(float) != values)
            assert (tie | ((narrow > pivot) == (values > t))).all()
