"""Leaves and their values, tree by tree: numbers, dtypes, shapes and kernels."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import (
    GradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge import CompiledForest, InvalidInputError, UnsupportedModelError
from skforge.exceptions import VerificationError
from skforge.forest import leaves
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves
from skforge.modules import methods
from skforge.modules.auto import AutoModule
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import bitsliced_schedule
from skforge.schedule.schedule import Schedule
from tests.comparing import saved
from tests.exactness.checks import assert_same_bits, expected
from tests.exactness.forests import forest
from tests.plain import plain

BITS = bitsliced_schedule(64)
X = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 0.5)


def values_of(made: Forest, rows: Any) -> Any:
    """Return the values of the leaves that the reference walk finds."""
    values = made.leaf_value[made.leaf[reference_leaves(made, rows)]]
    return values if made.vector_leaves else values[:, :, 0]


@pytest.mark.parametrize("name", ["scalar", "multiclass", "vector 3", "one leaf"])
def test_leaves_and_values_are_those_of_the_reference(name: str) -> None:
    made = forest(name)
    rows = expected(name)[0][:200]
    module = compile_forest(made, BITS if made.n_predicates else None)
    numbers = made.source_node[reference_leaves(made, rows)]
    values = values_of(made, rows)
    for n in (0, 1, 7, 200):
        for n_jobs in (None, 2):
            assert_same_bits(module.apply(rows[:n], n_jobs=n_jobs), numbers[:n], n)
            found = module.predict_per_tree(rows[:n], n_jobs=n_jobs)
            assert_same_bits(found, values[:n], n)
    for _ in range(4):  # small batches get an entry
        assert_same_bits(module.apply(rows[:1]), numbers[:1], "entry")
    other = pickle.loads(pickle.dumps(module))
    assert_same_bits(other.predict_per_tree(rows), values, "pickled")
    both = AutoModule(module, module, 10)
    assert_same_bits(both.predict_per_tree(rows), values, "two targets")


def test_negative_zeros_and_the_leaf_without_a_number_stay() -> None:
    made = forest("scalar")
    numbers = np.where(made.source_node % 2, made.source_node, -1)
    odd = replace(
        made, leaf_value=np.full_like(made.leaf_value, -0.0), source_node=numbers
    )
    module, rows = compile_forest(odd, BITS), expected("scalar")[0][:70]
    wanted = numbers[reference_leaves(made, rows)].astype(np.int32)
    assert_same_bits(module.predict_per_tree(rows), values_of(odd, rows), "zeros")
    assert (wanted == -1).any()
    assert_same_bits(module.apply(rows), wanted, "numbers")


def test_rows_too_large_for_floats_are_doubles(monkeypatch: Any) -> None:
    made, rows = forest("scalar"), expected("scalar")[0][:70]
    wanted = made.leaf[reference_leaves(made, rows)]
    for first, dtype in (((1 << 23) + 1, np.float32), (1, np.float64)):
        monkeypatch.setattr(leaves, "_ZERO", np.float32(first))
        module = compile_forest(made, BITS)
        assert_same_bits(module.run("leaf_rows", rows), wanted, "rows")
        assert module.finder("row").forest.leaf_value.dtype == dtype


@pytest.mark.parametrize("most", [(1 << 23) - 1, 1 << 23, (1 << 31) - 1])
@pytest.mark.parametrize("least", [-1, -2, -(1 << 31)])
def test_numbers_of_any_size(most: int, least: int) -> None:
    made, rows = forest("scalar"), expected("scalar")[0][:70]
    numbers = np.resize(np.array([most, least, 0, 1], np.int32), made.n_nodes)
    module = compile_forest(replace(made, source_node=numbers), BITS)
    wanted = numbers[reference_leaves(made, rows)]
    assert {most, least} <= {*wanted.ravel()}
    assert_same_bits(module.apply(rows), wanted, "numbers")
    fit = most < 1 << 23 and least == -1
    values = module.finder("number").forest.leaf_value
    assert values.dtype == (np.float32 if fit else np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_of_all_kinds_keep_their_bits(dtype: Any) -> None:
    info, made = np.finfo(dtype), forest("scalar")
    kinds = [-0.0, 0.0, info.smallest_subnormal, -info.tiny, info.max, 1 / 3]
    values = np.resize(np.array(kinds, dtype), made.leaf_value.shape)
    odd, rows = replace(made, leaf_value=values), expected("scalar")[0][:70]
    wanted = values_of(odd, rows)
    assert len({*wanted.ravel()}) == len(kinds) - 1  # zeros are equal
    found = compile_forest(odd, BITS).predict_per_tree(rows)
    assert_same_bits(found, wanted, "values")


def test_threads_that_ask_at_once_get_one_finder() -> None:
    module = compile_forest(forest("scalar"), BITS)
    kinds: list[leaves.Found] = ["row", "number", "value"]
    with ThreadPoolExecutor(16) as pool:
        made = [*pool.map(module.finder, kinds * 16)]
    assert len({*map(id, made)}) == 3


def test_schedules_that_walk_find_leaves() -> None:
    module = compile_forest(forest("scalar"), Schedule())
    module.warm_up()
    assert module._walks_to_leaves and not module._finders


def test_no_trees() -> None:
    module, rows = compile_forest(forest("no trees")), expected("no trees")[0][:9]
    assert module.predict_per_tree(rows).shape == module.apply(rows).shape == (9, 0)


# ------------------------------------------------------------------- estimators


def test_estimators_answer_and_keep_it_in_files(tmp_path: Any) -> None:
    model = RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, Y)
    fast = plain(model).fit(X[:50])
    wanted = np.stack([tree.predict_proba(X) for tree in model.estimators_], axis=1)
    assert_same_bits(fast.predict_per_tree(X), wanted, "live")
    assert fast.counters()["kernel"]["rows"] == 300
    skforge.save(fast, tmp_path / "a.skforge")
    loaded = skforge.load(tmp_path / "a.skforge")
    assert_same_bits(loaded.predict_per_tree(X.tolist()), wanted, "loaded")
    copied = pickle.loads(pickle.dumps(fast))
    assert_same_bits(copied.predict_per_tree(X), wanted, "pickled")


def test_sparse_rows_and_frames_have_values() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    pandas = pytest.importorskip("pandas")
    model = DecisionTreeRegressor(max_depth=3).fit(X, Y)
    fast = plain(model).fit(X[:50])
    wanted = fast.predict_per_tree(X)
    assert_same_bits(fast.predict_per_tree(sparse.csr_matrix(X)), wanted, "sparse")
    assert_same_bits(fast.predict_per_tree(pandas.DataFrame(X)), wanted, "frame")
    assert_same_bits(wanted[:, 0], model.predict(X), "tree")


def test_models_of_several_forests_have_none() -> None:
    members = [(name, RandomForestClassifier(2, max_depth=2)) for name in "ab"]
    model = VotingClassifier(members, voting="hard").fit(X, Y)
    fast = CompiledForest(model, tuning="off").fit(X[:50])
    with pytest.raises(UnsupportedModelError) as error:
        fast.predict_per_tree(X)
    assert str(error.value) == (
        "VotingClassifier computes its predictions from the raw scores of several "
        "forests, for which the values of single trees are not defined; compile one "
        "of its estimators."
    )


def test_kernels_of_trees_are_compared_before_they_answer(monkeypatch: Any) -> None:
    model = DecisionTreeRegressor(max_depth=3).fit(X, Y)
    fast = CompiledForest(model, tuning="off").fit(X[:50])
    fast.predict_per_tree(X)
    trees = fast._compiled().module.finder("value")
    checks = trees.kernels.arrives
    assert checks is not None and checks._agreed
    wrong = checks.sample()._replace(expected=X[:64, 0])
    monkeypatch.setattr(checks, "_again", None)
    monkeypatch.setattr(checks, "_sample", wrong)
    with pytest.raises(VerificationError):
        checks(trees.kernels, 0, trees.kernels.kernel(0))


def test_rows_on_a_gpu_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(methods, "is_device_array", lambda X: True)
    with pytest.raises(InvalidInputError) as error:
        compile_forest(forest("scalar")).predict_per_tree(X)
    assert str(error.value) == (
        "the values of single trees need rows in host memory, but these are on a GPU; "
        "pass a NumPy array."
    )


@pytest.mark.parametrize("kind", [DecisionTreeRegressor, RandomForestClassifier])
def test_decision_paths_are_the_models_own(kind: Any, tmp_path: Any) -> None:
    model = kind(max_depth=3, random_state=0).fit(X, Y)
    fast = plain(model).fit(X)
    found, wanted = (each.decision_path(X[:9]) for each in (fast, model))
    if kind is RandomForestClassifier:
        assert_same_bits(found[1], wanted[1], "places of trees")
        found, wanted = found[0], wanted[0]
    assert type(found) is type(wanted)
    for part in ("data", "indices", "indptr"):
        assert_same_bits(getattr(found, part), getattr(wanted, part), part)
    assert fast.counters()["library"] == {"calls": 1, "rows": 9}
    with pytest.raises(skforge.exceptions.SourceNeededError, match="decision_path"):
        saved(fast, tmp_path).decision_path(X)
    none = plain(GradientBoostingClassifier(n_estimators=1).fit(X, Y)).fit(X)
    assert not hasattr(none, "decision_path")
