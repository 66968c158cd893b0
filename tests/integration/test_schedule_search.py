"""``ScheduleSearch``: scikit-learn's form of a search, alone and inside others."""

from __future__ import annotations

import pickle
from contextlib import nullcontext

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skforge import CompiledForest, Schedule, Target, load_forest
from skforge.compiler.defaults.cpu import default_schedules
from skforge.exceptions import (
    InvalidInputError,
    ScheduleError,
    TuningError,
    TuningWarning,
)
from skforge.search import _best_by_score
from skforge.tuning import (
    Candidate,
    ScheduleSearch,
    ScheduleSpace,
    Trial,
    Tuner,
    TuningResult,
)

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(200, 5)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
MODEL = RandomForestClassifier(8, max_depth=4, random_state=0).fit(X, Y)
GRID = {"walk": ["trees"], "in_flight": [1, 10], "hops": ["checked", "unroll"]}


@pytest.fixture(scope="module")
def search():
    return ScheduleSearch(MODEL, GRID, batch_sizes=[1, 16], random_state=0).fit(X)


def test_results_are_shaped_like_those_of_a_grid_search(search):
    results = search.results_
    n = len(results["params"])
    defaults = set(default_schedules(load_forest(MODEL), Target.host()).values())
    tried = {s for s in results["schedule"] if s in defaults}
    assert n == 4 + len(tried) and 1 <= len(tried) <= 2  # of one row, and of sixteen
    assert all(len(column) == n for column in results.values())
    assert {"param_walk", "param_in_flight", "seconds_1", "score_16"} <= set(results)
    assert results["params"][0] == {"schedule": results["schedule"][0]}
    assert results["param_walk"].mask[0] and not results["param_schedule"].mask[0]
    assert results["rank_score"][search.best_index_] == 1
    assert results["schedule"][search.best_index_] == search.best_schedule_
    assert search.best_params_ == results["params"][search.best_index_]
    assert search.best_score_ == np.nanmax(results["mean_score"]) < 0
    assert set(search.schedules_) <= {(1, 1), (2, None), (1, None)}


def test_it_predicts(search):
    assert np.array_equal(search.predict(X), MODEL.predict(X))
    assert np.array_equal(search.predict_proba(X), MODEL.predict_proba(X))
    assert search.score(X, Y) == MODEL.score(X, Y)
    assert list(search.classes_) == [0, 1]
    assert is_classifier(search)
    assert not hasattr(search, "decision_function")
    again = pickle.loads(pickle.dumps(search))
    assert np.array_equal(again.predict(X), MODEL.predict(X))


def test_without_refit_there_are_only_results():
    search = ScheduleSearch(MODEL, GRID, batch_sizes=[4], refit=False).fit(X)
    assert isinstance(search.best_schedule_, Schedule)
    with pytest.raises(AttributeError, match="predicts only with refit=True"):
        search.predict(X)


def test_throughput_and_scores_of_ones_own():
    throughput = ScheduleSearch(MODEL, GRID, batch_sizes=[4], scoring="throughput").fit(
        X
    )
    assert throughput.best_score_ > 0

    def prefers_checks(trial):
        return float(trial.candidate.params.get("hops") == "checked")

    own = ScheduleSearch(MODEL, GRID, batch_sizes=[4], scoring=prefers_checks).fit(X)
    assert own.best_score_ == 1.0
    assert own.best_params_["hops"] == "checked"
    (chosen,) = own.schedules_.values()
    assert dict(own.best_estimator_.schedule_) == own.schedules_
    assert "unroll_walk" not in repr(chosen)
    assert np.array_equal(own.predict(X), MODEL.predict(X))


def test_scores_of_other_sizes_do_not_choose():
    """Finalists are timed at the ends of a range, too, where a call takes longer."""
    fast, slow = Schedule().interleave("tree", 2), Schedule().interleave("tree", 4)
    default = Schedule()
    times = {
        (default, 5): 3.0, (fast, 5): 1.0, (slow, 5): 2.0,
        (default, 9): 0.5, (slow, 9): 0.1,
    }  # fmt: skip
    trials = tuple(
        Trial((2, 9), n, Candidate(one), "measured", "", (seconds,), 1.0)
        for (one, n), seconds in times.items()
    )
    result = TuningResult({(2, 9): default}, trials, "listed", "cpu")
    assert _best_by_score(result, lambda t: -t.seconds) == {(2, 9): fast}


def test_schedules_and_presets_are_a_space():
    mine = Schedule().interleave("tree", 4)
    search = ScheduleSearch(MODEL, [mine, "xgboost"], batch_sizes=[4]).fit(X)
    assert mine in list(search.results_["schedule"])
    assert "xgboost" in list(search.results_["param_schedule"])


def test_an_unfitted_model_is_trained():
    model = RandomForestRegressor(4, max_depth=3, random_state=0)
    search = ScheduleSearch(CompiledForest(model), GRID, batch_sizes=[4]).fit(X, Y)
    assert np.array_equal(search.predict(X), clone(model).fit(X, Y).predict(X))


def test_in_a_pipeline_and_a_grid_search():
    inner = ScheduleSearch(
        RandomForestClassifier(4, max_depth=3, random_state=0),
        {"walk": ["trees"], "in_flight": [10]},
        batch_sizes=[4],
    )
    pipeline = make_pipeline(StandardScaler(), inner).fit(X, Y)
    assert pipeline.score(X, Y) > 0.5
    outer = GridSearchCV(inner, {"estimator__max_depth": [2, 3]}, cv=2).fit(X, Y)
    assert outer.best_params_["estimator__max_depth"] in (2, 3)
    assert outer.predict(X).shape == Y.shape


def test_a_default_that_wins_has_a_point_as_well():
    """So that ``CompiledForest(model, **search.best_params_)`` is the winner."""
    slow = {"schedule": [Schedule().represent("array")]}
    worst = ScheduleSearch(
        MODEL, slow, batch_sizes=[1], scoring=lambda t: t.candidate.origin == "default"
    ).fit(X)
    assert worst.best_params_ == {"schedule": worst.best_schedule_}
    fast = CompiledForest(MODEL, **worst.best_params_).fit(X)
    assert set(fast.schedule_.values()) == {worst.best_schedule_}


def test_warnings_point_at_the_line_that_calls_fit(monkeypatch):
    # searches of other processes, such as tests beside these, would be waited for
    monkeypatch.setattr("skforge.tuning.tuner.alone", lambda _: nullcontext(True))
    for short in (
        CompiledForest(MODEL, tuning=Tuner(budget=1e-9)),
        ScheduleSearch(MODEL, budget=1e-9),
        make_pipeline(
            StandardScaler(), CompiledForest(MODEL, tuning=Tuner(budget=1e-9))
        ),
    ):
        with pytest.warns(TuningWarning) as seen:
            short.fit(X)
        assert [w.filename for w in seen] == [__file__]


def test_records_answer_the_next_search(tmp_path):
    options = {"batch_sizes": [4], "records": tmp_path / "records.jsonl"}
    first = ScheduleSearch(MODEL, GRID, **options).fit(X)
    again = ScheduleSearch(MODEL, GRID, **options).fit(X)
    assert again.schedules_ == first.schedules_
    assert again.tuning_result_.trials == ()
    assert again.best_params_ == {"schedule": again.best_schedule_}
    assert np.array_equal(again.predict(X), MODEL.predict(X))


@pytest.mark.parametrize(
    ("space", "error", "text"),
    [
        ({}, InvalidInputError, "the grid is empty"),
        ({"block": 3}, InvalidInputError, "must be a list. Got 3 instead"),
        ({"size": [3]}, InvalidInputError, "'size', which do not belong to one space"),
        ({"walk": ["run"]}, InvalidInputError, "walk must be one of bitsliced"),
        ({"block": []}, InvalidInputError, "'block' of the space has no values"),
        ({"walk": ["rows"], "codes": [True]}, TuningError, "'grid' is empty"),
        ([3], InvalidInputError, "Schedules or names of presets. Got int"),
        ([Schedule().unroll("batch")], TuningError, "none of the 1 schedules tried"),
        (["nothing"], TuningError, "'nothing' is not a preset"),
        (ScheduleSpace.gpu(), TuningError, "is legal for this"),
    ],
)
def test_bad_spaces_are_refused(space, error, text):
    options = {"strategy": "exhaustive", "budget": 60.0}
    if isinstance(space, ScheduleSpace):
        space = space.with_values(tree_threads=[2], representation=["sparse"])
        space = space.with_values(rows_per_block=[8], rows_per_thread=[1])
    with pytest.raises(error, match=text):
        ScheduleSearch(MODEL, space, batch_sizes=[4], **options).fit(X)


def test_errors_of_the_language_are_rows():
    bad, good = Schedule().unroll("batch"), Schedule().interleave("tree", 2)
    search = ScheduleSearch(MODEL, [bad, good], batch_sizes=[4]).fit(X)
    row = list(search.results_["schedule"]).index(bad)
    assert search.results_["status"][row] == "illegal"
    assert "depends on the batch" in search.results_["reason"][row]
    with pytest.raises(ScheduleError):
        CompiledForest(MODEL, schedule=bad).fit(X)
