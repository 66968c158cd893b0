"""Parts of ``accelerate()``: tallies, the report, and which methods change Boosters."""

from __future__ import annotations

from importlib import import_module
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

from skforge.acceleration import shared_counts
from skforge.acceleration import tally as tally_of
from skforge.acceleration.estimate import seconds_to_compile, simple_is_faster
from skforge.acceleration.libraries import LIBRARIES
from skforge.acceleration.report import AccelerationReport, MethodReport
from skforge.acceleration.shared_counts import SharedCounts, counted_in
from skforge.acceleration.tally import Tally
from skforge.acceleration.watching import Watch

#: Methods that change no prediction of their Booster.
READING: dict[str, set[str]] = {
    "xgboost": {
        *("copy", "save_config", "attr", "attributes", "eval", "eval_set"),
        *("save_model", "save_raw", "num_boosted_rounds"),
        *("num_features", "dump_model", "get_dump", "get_fscore", "get_score"),
        *("trees_to_dataframe", "get_split_value_histogram", "get_categories"),
        *("save_rabit_checkpoint", "__copy__", "__deepcopy__", "__getstate__"),
        *("__getitem__", "__iter__", "__init__", "__del__"),
    },
    "lightgbm": {
        *("free_dataset", "trees_to_dataframe", "current_iteration", "num_trees"),
        *("num_model_per_iteration", "upper_bound", "lower_bound", "eval"),
        *("eval_train", "eval_valid", "save_model", "model_to_string", "dump_model"),
        *("get_leaf_output", "num_feature", "feature_name", "feature_importance"),
        *("get_split_value_histogram", "__init__", "__del__", "__copy__"),
        *("__deepcopy__", "__getstate__"),
    },
}


@pytest.mark.parametrize(
    ("library", "module"), [("xgboost", "xgboost.core"), ("lightgbm", "lightgbm.basic")]
)
def test_every_method_of_a_booster_is_known_to_change_it_or_not(library, module):
    pytest.importorskip(library)
    (plan,) = LIBRARIES[library][module]
    kind = import_module(module).Booster
    public = {
        name
        for name, value in vars(kind).items()
        if isinstance(value, FunctionType)
        and (not name.startswith("_") or name.endswith("__"))
    }
    known = {*plan.answers, *plan.changes, *dict(plan.declines)} | READING[library]
    assert public - known == set(), "say whether they change what a Booster predicts"
    setters = {
        name
        for name, value in vars(kind).items()
        if isinstance(value, property) and value.fset is not None
    }
    assert setters - {"best_score"} <= {*plan.settings}


def test_kernels_answer_the_sizes_for_which_they_are_faster():
    tally = Tally()
    assert tally.pays(8, 1.0)  # nothing is known
    tally.library(8, 0.5, "too few calls so far")
    assert tally.pays(8, 0.4) and not tally.pays(8, 0.6)
    assert tally.pays(1000, 0.4) and not tally.pays(1000, 0.6)  # it takes no less
    assert tally.pays(1, 0.6)  # nothing is known of fewer rows
    for _ in range(3):
        tally.kernels(9, 0.7)
    assert not tally.pays(8, 0.4)
    tally.kernels(9, 0.1), tally.kernels(9, 0.1), tally.kernels(9, 0.1)
    assert tally.pays(8, 0.6)
    assert tally.saved() == pytest.approx(6 * 0.5 - 2.4)


def test_tallies_add_up():
    tally, other = Tally(), Tally()
    for each in (tally, other):
        each.library(3, 0.5, "a")
        each.kernels(3, 0.25)
    other.library(3, 0.5, "b")
    other.differed = 1
    tally.add(other)
    assert tally.by_library == {2: [3, 9, 1.5]}
    assert tally.by_kernels == {2: [2, 6, 0.5]}
    assert (tally.differed, tally.whys) == (1, {"a": 2, "b": 1})


def _no_listeners(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep what is counted from others' folders."""
    listeners: list[Any] = []
    for module in (tally_of, shared_counts):
        monkeypatch.setattr(module, "LISTENERS", listeners)
    return listeners


def test_what_is_counted_in_a_folder_is_the_tally(tmp_path, monkeypatch):
    _no_listeners(monkeypatch)
    counts = SharedCounts()
    counts.begin(tmp_path)
    counts.begin(tmp_path)  # as after a fork
    tally = Tally(("Forest", "predict"))
    why = "a reason, " * 50
    for rows in (0, 1, 1000, 1000):
        tally.library(rows, 0.5, why[:150])
        tally.kernels(rows, 0.25)
        tally.untimed(rows, "")
    tally.differs()
    processes, totals = counted_in(tmp_path)
    (read,) = totals.values()
    assert processes == 1 and [*totals] == [("Forest", "predict")]
    for name in ("by_library", "by_kernels", "alone", "differed", "whys"):
        assert getattr(read, name) == getattr(tally, name), name
    counts.begin(tmp_path)
    tally.library(1, 0.5, why)  # longer than its place
    assert counted_in(tmp_path)[0] == 2
    assert counted_in(tmp_path / "none") == (0, {})


def test_a_folder_that_is_gone_ends_the_counting(tmp_path, monkeypatch):
    listeners = _no_listeners(monkeypatch)
    counts = SharedCounts()
    counts.begin(tmp_path / "gone")
    assert len(listeners) == 1
    assert Tally().library(1, 0.5, "") == 1
    assert listeners == []


def test_another_kernel_is_measured_anew():
    tally = Tally()
    tally.library(8, 0.5, "")
    for _ in range(3):
        tally.kernels(8, 0.7)
    assert not tally.pays(8, 0.1)
    assert tally.spent(8, 0.1) == pytest.approx(0.5 + 3 * 0.6)
    assert tally.left_to_save(0.1) == pytest.approx(3 * 0.6)
    tally.slower.add(4)
    assert tally.left_to_save(0.1) == pytest.approx(0.5 + 3 * 0.6)
    tally.renew()
    assert tally.pays(8, 0.1) and tally.spent(8, 0.1) == 0.5
    assert tally.saved() == pytest.approx(1.5 - 2.1)
    total = Tally()
    total.add(tally)
    assert (total.before[:2], total.saved()) == ([3, 24], tally.saved())


def test_the_report_is_a_table():
    rows: list[Any] = [
        ("Forest", "predict", 1200, 5000, 0.1, 3, 9, 2.0, 41.25, 0, {"too few": 3}),
        ("Booster", "predict", 0, 0, 0.0, 1, 1, 0.1, 0.0, 0, {}),
    ]
    assert str(AccelerationReport(MethodReport(*row) for row in rows)) == (
        "model    method   by kernels               by library       seconds saved\n"
        "Forest   predict  1,200 calls, 5,000 rows  3 calls, 9 rows  41.25\n"
        "    3 calls: too few\n"
        "Booster  predict  0 calls, 0 rows          1 calls, 1 rows  0.00"
    )


def test_the_time_to_compile_counts_the_trees_of_each_library() -> None:
    xgb, lgb = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    X = np.random.default_rng(0).normal(size=(50, 2))
    y = (X[:, 0] > 0) * 1
    some, quiet = {"n_estimators": 3}, {"verbose": -1, "n_jobs": 1}
    xgboost = xgb.XGBClassifier(**some, max_depth=2, n_jobs=1).fit(X, y)
    lightgbm = lgb.LGBMClassifier(**some, **quiet).fit(X, y)
    forest = RandomForestClassifier(3, max_depth=1).fit(X, y)
    five = SimpleNamespace(nodes=range(5))  # fitting would count cores by a process
    histogram = SimpleNamespace(_predictors=[[five]] * 3)
    for model, count in [
        (xgboost, 3 * 2**2),
        (xgboost.get_booster(), 3 * 2**6),  # which does not say how deep trees are
        (lightgbm, 3 * 62),
        (lightgbm.booster_, 3 * 62),
        (forest, 3 * 3),
        (GradientBoostingClassifier(**some, max_depth=1).fit(X, y), 3 * 3),
        (histogram, 3 * 5),
        (SimpleNamespace(tree_count_=3), 3 * 128),
        (SimpleNamespace(steps=[("forest", forest)]), 3 * 3),
    ]:
        seconds = 3 * 4e-4 + count * 8e-6
        known = seconds_to_compile(model, True, False)
        assert known == pytest.approx(0.2 + seconds), model
        assert seconds_to_compile(model, False, False) == pytest.approx(0.35 + known)
        assert seconds_to_compile(model, True, True) < known / 5
        assert simple_is_faster(model, 100, 7e-5)
        assert not simple_is_faster(model, 100, 5e-5)


def _other_dict(tree: Any) -> None:
    tree.__dict__ = dict(tree.__dict__)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param(_other_dict, False, id="other dictionary"),
        pytest.param(lambda tree: setattr(tree, "new_", 1), False, id="added"),
        pytest.param(lambda tree: delattr(tree, "n_outputs_"), False, id="deleted"),
        pytest.param(lambda tree: setattr(tree, "n_outputs_", 2), False, id="set"),
        pytest.param(lambda tree: tree.classes_.fill(5), False, id="array"),
        pytest.param(lambda tree: tree.tree_.value.fill(0.5), False, id="values"),
        # No prediction reads it.
        pytest.param(lambda tree: setattr(tree, "random_state", 3), True, id="seed"),
    ],
)
def test_a_changed_member_is_seen(change, same):
    model = RandomForestClassifier(2, max_depth=1, random_state=0)
    watch = Watch(model.fit([[0.0], [1.0]] * 4, [0, 1] * 4))
    assert watch.same(model)
    change(model.estimators_[1])
    assert watch.same(model) is same
