"""Kernels are compared before their first answer; these are functions of Python."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from skforge.engine.entry.entry import _labels
from skforge.engine.kernels import RangeKernels
from skforge.exceptions import VerificationError, VerificationWarning
from skforge.forest.reference import draw_rows, reference_raw
from skforge.frontends import load_forest
from skforge.prediction.kernel_checks import ADVICE, KernelChecks, Sample
from skforge.prediction.made_rows import Known, known_columns, made_rows
from skforge.prediction.predictor import ForestPredictor
from skforge.schedule.schedule import Schedule
from skforge.sources.row_facts import RowFacts
from skforge.sources.stored_model.declined import first_refused

X = np.random.default_rng(0).normal(size=(80, 3))
FOREST = load_forest(DecisionTreeRegressor(max_depth=3).fit(X, X[:, 0]))
ROWS = draw_rows(FOREST, 40, 0)
#: A schedule for each range, by which kernels are known.
RANGES = [(1, 7), (8, 63), (64, None)]
TABLE = {
    batch: Schedule().tile("batch", "b0", "b1", 2**i) for i, batch in enumerate(RANGES)
}


def honest(rows: Any, raw: Any, threads: int) -> None:
    raw[:] = reference_raw(FOREST, rows)


def lying(rows: Any, raw: Any, threads: int) -> None:
    honest(rows, raw, threads)
    raw[-1] += 1


def checked(*kernels: Any) -> tuple[RangeKernels, list[int]]:
    """Return kernels that are compared, and what notes that a sample is made."""
    by_schedule = dict(zip(TABLE.values(), kernels, strict=True))
    cache = SimpleNamespace(kernel=lambda schedule, element: by_schedule[schedule])
    found, made = RangeKernels(TABLE, cache, "score"), []

    def sample() -> Sample:
        made.append(1)
        names = [f"row {i}" for i in range(len(ROWS))]
        return Sample(ROWS, names, reference_raw(FOREST, ROWS)[:, 0])

    module: Any = SimpleNamespace(forest=FOREST, reduction="exact")
    found.arrives = KernelChecks(module, sample)
    return found, made


def test_the_sample_is_made_once_and_freed_when_all_kernels_agree():
    kernels, made = checked(honest, honest, honest)
    assert not made
    for number in (1, 0):
        assert kernels.kernel(number) is honest
        assert kernels.arrives is not None
    assert kernels.kernel(2) is honest
    assert kernels.arrives is None
    assert made == [1]


def test_the_first_kernel_answers_for_a_later_one_that_differs():
    kernels, _ = checked(honest, honest, lying)
    assert kernels.kernel(1) is honest
    with pytest.warns(VerificationWarning) as said:
        assert kernels.kernel(2) is honest
    right = float(reference_raw(FOREST, ROWS)[23, 0])  # batches of 64 have it last
    assert str(said[0].message) == (
        f"row 23: the compiled code gives {right + 1!r}, but the model gives "
        f"{right!r}, with batches of 64 and the schedule {TABLE[64, None]!r}. {ADVICE} "
        "The kernel for smaller batches agrees with the model and is used instead."
    )
    assert kernels.kernel(2) is honest


def test_a_first_kernel_that_differs_never_answers():
    kernels, _ = checked(lying, lying, honest)
    for number in (0, 1, 0):
        with pytest.raises(VerificationError, match=r"^row \d+: the compiled code"):
            kernels.kernel(number)
    assert kernels.kernel(2) is honest


# ------------------------------------------------------------ made rows


def made(width: int, form: Any = np.asarray) -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(60, width))
    tree = DecisionTreeRegressor(max_depth=3, random_state=0).fit(X, X @ np.ones(width))
    forest = load_forest(tree)
    return forest, made_rows(form(X), known_columns(forest, {}), None)


@pytest.mark.parametrize(
    ("width", "ordinary"), [(1, 192), (10, 192), (11, 186), (85, 24), (200, 24)]
)
def test_few_columns_get_more_rows_than_many(width: int, ordinary: int) -> None:
    _, (one,) = made(width)
    gaps, infinities = ordinary + 3, ordinary + 5  # after zeros and a large number
    assert one.rows.shape == (infinities + 3, width)
    assert one.ends == (gaps, infinities, infinities + 3)
    ordinary_rows, odd = np.split(one.rows, [ordinary])
    assert np.isfinite(ordinary_rows).all()
    assert (odd[:2] == 0).all()
    assert np.signbit(odd[1]).any() and not np.signbit(odd[0]).any()
    assert np.isnan(odd[4]).all()
    assert np.isinf(odd[5:7]).any() or width == 1
    assert (np.abs(odd[7]) > 1e300).any()


def test_parts_of_lists_are_apart() -> None:
    _, parts = made(2, np.ndarray.tolist)
    assert [len(part.rows) for part in parts] == [195, 2, 3]
    assert [part.ends for part in parts] == [(195,), (2,), (3,)]
    assert all(type(value) is float for row in parts[0].rows for value in row)


def test_nothing_is_made_for_forms_that_are_not_known() -> None:
    forest, _ = made(2)
    assert made_rows(object(), known_columns(forest, {}), None) == []


def test_dictionaries_of_arrow_list_names_in_no_reader_s_order() -> None:
    # a set's order, which varies by process, let a planted fault pass at times
    pa = pytest.importorskip("pyarrow")
    towns = ("bern", "lima", "oslo", "riga", "rome")
    table = pa.table({"town": pa.array(["oslo", None]).dictionary_encode()})
    batches = made_rows(table, {0: Known(labels=towns)}, None)
    ordinary, new = (b.rows["town"].combine_chunks().dictionary for b in batches)
    assert ordinary.to_pylist() == [*towns[::-1]]
    assert len(new) == 2  # one that training had, and one that it had not


# ------------------------------------------------------------ predictor


@pytest.mark.parametrize(
    ("declines", "limit", "accepted", "refused"),
    [
        ("nothing", inf, (1.0, nan, inf), ()),
        ("infinite", inf, (1.0, nan), (inf, -inf)),
        ("infinite", 8.0, (nan, -7.5), (8.0, -8.0)),
        ("not_finite", inf, (1.0, -1e300), (nan, inf, -inf)),
    ],
)
def test_values_decide(declines, limit, accepted, refused) -> None:
    predictor = SimpleNamespace(
        source=SimpleNamespace(facts=RowFacts(declines=declines, limit=limit)),
        forest=SimpleNamespace(whole_columns=()),
        by_members=False,
        _scored=lambda method, rows, n_jobs: rows,
    )
    for value in (*accepted, *refused):
        rows = np.array([[0.5, value], [1.0, 2.0]])
        ask = ForestPredictor.by_certain_rows
        answered = ask(predictor, "predict", None, rows) is rows
        assert answered == (value not in refused), value


# ------------------------------------------------------------ declined


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_the_first_refused_value_is_found_in_few_steps(n: int) -> None:
    for refused in range(n):
        asked = []

        def reads(taken: int, refused: int = refused, asked: list[int] = asked) -> bool:
            assert len(asked) < 6
            asked.append(taken)
            return taken <= refused

        assert first_refused(n, reads) == refused
        assert refused or asked in ([], [1])  # the first one is most often to blame


# ------------------------------------------------------------ entry labels


def test_entries_have_a_label_for_each_class() -> None:
    """Code that chooses one of two classes never reads a table with one label."""
    assert _labels(np.array([5])) is None
    assert _labels(np.array([0])) is None
    assert _labels(np.array([5, 7])) == (5, 7)
