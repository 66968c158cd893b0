"""Searches on this machine: right predictions, kept schedules, artifacts."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV

import skforge
from skforge import CompiledForest, Schedule
from skforge import config as _config
from skforge.tuning import Random, ScheduleSpace, Tuner, TuningResult

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
MODEL = RandomForestClassifier(12, max_depth=5, random_state=0).fit(X, Y)
#: Walks are quick to compile.
WALKS = ScheduleSpace.cpu(threads=False).with_values(walk=["rows", "trees"])


@pytest.fixture(scope="module")
def tuned():
    tuner = Tuner(Random(6), WALKS, budget=600)  # which ends long before
    return CompiledForest(MODEL, tuning=tuner, batch_sizes=[1, 32], random_state=0).fit(
        X
    )


def test_the_result_is_kept_with_the_schedules(tuned):
    result = tuned.tuning_result_
    assert tuned.schedule_ == dict(result.table)
    assert {t.n_rows for t in result.trials} == {1, 32}
    assert {t.status for t in result.trials} <= {"measured", "stopped", "same code"}
    assert all(t.seconds > 0 for t in result.trials)
    assert result.complete
    assert "wrong" not in result.counts()


def test_artifacts_keep_the_result(tuned, tmp_path):
    skforge.save(tuned, tmp_path / "tuned.skforge")
    loaded = skforge.load(tmp_path / "tuned.skforge")
    copied = pickle.loads(pickle.dumps(tuned))
    for one in (loaded, copied):
        assert one.tuning_result_.to_json() == tuned.tuning_result_.to_json()
        assert one.schedule_ == tuned.schedule_
        assert np.array_equal(one.predict_proba(X), MODEL.predict_proba(X))


def test_an_estimator_with_a_tuner_is_cloned(tuned):
    again = clone(tuned)
    assert again.tuning.strategy == Random(6)
    assert not hasattr(again, "tuning_result_")


def test_a_schedule_given_by_hand_is_not_searched():
    compiled = CompiledForest(MODEL, schedule=Schedule(), tuning="random").fit(X)
    assert compiled.tuning_result_ is None


@pytest.mark.filterwarnings("ignore::skforge.exceptions.TuningWarning")
@pytest.mark.parametrize("strategy", ["heuristic", "halving", "random", "exhaustive"])
def test_strategies_by_name(strategy, monkeypatch, tmp_path):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))
    compiled = CompiledForest(
        MODEL, tuning=Tuner(strategy, budget=0.3), batch_sizes=[8]
    ).fit(X)
    result = compiled.tuning_result_
    assert isinstance(result, TuningResult)
    assert result.strategy == strategy
    assert np.array_equal(compiled.predict(X), MODEL.predict(X))


def test_one_row_and_missing_rows_suffice():
    compiled = CompiledForest(
        MODEL, tuning=Tuner(Random(1), WALKS, budget=600), batch_sizes=[4]
    )
    assert "random" in compiled.fit(X[:1]).tuning_result_.notes[0]
    assert np.array_equal(compiled.predict(X), MODEL.predict(X))


@pytest.mark.parametrize("reduction", ["fast", "reproducible"])
def test_other_sums_are_compared_within_rounding(reduction):
    compiled = CompiledForest(
        MODEL,
        reduction=reduction,
        tuning=Tuner(Random(3), WALKS, budget=600),
        batch_sizes=[16],
    ).fit(X)
    assert "wrong" not in compiled.tuning_result_.counts()


@pytest.mark.filterwarnings("ignore::skforge.exceptions.TuningWarning")
def test_a_grid_search_over_ways_to_search():
    grid = {"tuning": ["off", Tuner(Random(1), WALKS, budget=1.0)]}
    search = GridSearchCV(
        CompiledForest(RandomForestClassifier(3, max_depth=3, random_state=0)),
        grid,
        cv=2,
    )
    assert search.fit(X, Y).score(X, Y) > 0.5


def test_the_environment_says_how_long_a_search_takes(monkeypatch, tmp_path):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SKFORGE_TUNING_SECONDS", "0")
    assert CompiledForest(MODEL).fit(X).tuning_result_ is None
    assert CompiledForest(MODEL, tuning="off").fit(X).tuning_result_ is None
    monkeypatch.setenv("SKFORGE_TUNING_SECONDS", "0.6")
    assert CompiledForest(MODEL).fit(X).tuning_result_.budget == 0.6
    monkeypatch.delenv("SKFORGE_TUNING_SECONDS")
    assert CompiledForest(MODEL).fit(X).tuning_result_.budget == 4.0


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-1"])
def test_seconds_that_are_none_are_said(text, monkeypatch):
    monkeypatch.setattr(_config, "_WARNED", set())
    monkeypatch.setenv("SKFORGE_TUNING_SECONDS", text)
    with pytest.warns(UserWarning) as said:
        assert [_config.tuning_seconds(4.0) for _ in range(2)] == [4.0, 4.0]
    assert [str(one.message) for one in said] == [
        f"SKFORGE_TUNING_SECONDS is {text!r}, which is not a number of seconds, 0 or "
        "more; it is ignored."
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, None) for text in ("", " ")),
        *((t, False) for t in (" OFF ", "off", "0", "no", "false", "disabled", "none")),
        *((text, True) for text in ("1", "on", "Yes", "true", "enabled")),
    ],
)
def test_switches_take_the_same_words(text, said, monkeypatch):
    for name in ("VERIFY", "GRAPHS", "CACHE"):
        monkeypatch.setenv(f"SKFORGE_{name}", text)
    assert _config.verify_every_pass() is (said is True)
    for is_on in (_config.launch_graphs, _config.cache_switched_on):
        assert is_on() is (said is not False)


def test_a_search_that_times_nothing_says_so(monkeypatch, capfd):
    monkeypatch.delenv("SKFORGE_TUNING_SECONDS", raising=False)
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    model = RandomForestClassifier(1, max_depth=1, random_state=0).fit(X, Y)
    how = {"batch_sizes": [7, 8]}
    notes = CompiledForest(model, verbose=1, **how).fit(X).tuning_result_.notes
    assert any(note.endswith("nothing was measured there") for note in notes)
    told = [f"tuning: {note}" for note in notes]
    assert capfd.readouterr().err.splitlines()[-len(told) :] == told
    CompiledForest(model, **how).fit(X)
    assert capfd.readouterr().err == ""
