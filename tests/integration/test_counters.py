"""Calls and rows are counted by the code that answered them."""

from __future__ import annotations

import copy
import pickle
import re
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skforge.prediction.counters import ROUTES
from tests.plain import plain

X, Y = make_classification(300, 6, n_informative=4, random_state=0)
X = X.astype(np.float32)
FOREST = RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, Y)
ZERO = {route: {"calls": 0, "rows": 0} for route in ROUTES}


def counted(fast, **routes):
    """Tell whether these calls and rows were counted, and no others."""
    wanted = {route: routes.get(route, (0, 0)) for route in ZERO}
    found = {k: (v["calls"], v["rows"]) for k, v in fast.counters().items()}
    assert found == wanted


def test_fit_starts_from_zero():
    fast = plain(FOREST).fit(X)
    assert fast.counters() == ZERO
    fast.predict(X)
    assert fast.fit(X).counters() == ZERO
    with pytest.raises(NotFittedError):
        plain(FOREST).counters()


def test_an_entry_counts_by_itself_and_rows_in_python_do_too():
    fast = plain(FOREST).fit(X)
    for _ in range(10):
        fast.predict(X[:3])
    counted(fast, entry=(10, 30))
    fast.predict_proba(X[:2])  # its entry was compiled by fit
    fast.predict(X[:4].tolist())  # converted for the entry
    counted(fast, entry=(12, 36))
    fast.apply(X[:5])
    fast.predict(csr_matrix(np.tile(X, (300, 1))))
    counted(fast, entry=(12, 36), kernel=(2, 90_005))
    fast.set_params(n_jobs=2)  # other entries
    fast.predict(X[:3])
    assert sum(route["rows"] for route in fast.counters().values()) == 90_044


def test_a_bound_method_counts():
    fast = plain(FOREST).fit(X)
    fast.predict(X[:1])
    bound = fast.predict
    assert "builtin" in str(type(bound.__func__))
    for _ in range(7):
        bound(X[:1])
    counted(fast, entry=(8, 8))


def test_the_model_itself_counts():
    model = make_pipeline(StandardScaler(), RandomForestClassifier(3, random_state=0))
    fast = plain(model.fit(X, Y)).fit(X.astype(float))
    frame = pd.DataFrame(X.astype(float))
    fast.predict(frame)
    frame[0] = pd.arrays.SparseArray(frame[0])
    fast.predict(frame)
    fast.predict_proba(frame[:7])
    counts = fast.counters()
    assert counts["library"] == {"calls": 2, "rows": 307}
    assert counts["entry"]["rows"] + counts["kernel"]["rows"] == 300
    with pytest.raises(ValueError, match="infinity"):
        fast.predict(np.full((1, 6), np.inf))
    assert fast.counters() == counts


def test_answers_of_all_shapes_count_their_rows():
    targets = np.c_[Y, Y[::-1]]
    both = plain(RandomForestClassifier(3, random_state=0).fit(X, targets)).fit(X)
    rows = csr_matrix(np.r_[X, X])
    proba = both._predictor.ask("predict_proba", rows)
    assert len(proba) == 2 and both.counters()["library"]["rows"] == 600
    booster = pytest.importorskip("xgboost").XGBClassifier(n_estimators=2).fit(X, Y)
    fast = plain(booster).fit(X)
    fast.predict(X[:7], iteration_range=(0, 1))
    fast.predict(X[:7], output_margin=True)
    counted(fast, kernel=(1, 7), library=(1, 7))


def test_forms_of_rows_and_wrappers_count_once():
    model = make_pipeline(StandardScaler(), RandomForestClassifier(3, random_state=0))
    fast = plain(model.fit(X, Y)).fit(X.astype(float))
    for _ in range(3):
        fast.predict(X)  # float32: a forest of its own
    votes = VotingClassifier([("a", FOREST), ("b", model)], voting="soft")
    voted = plain(votes.fit(X, Y)).fit(X.astype(float))
    for _ in range(3):
        voted.predict_proba(X.astype(float))
    for one in (fast, voted):
        counts = one.counters()
        assert counts["library"] == ZERO["library"]
        assert counts["entry"]["calls"] + counts["kernel"]["calls"] == 3
        assert counts["entry"]["rows"] + counts["kernel"]["rows"] == 900


def test_large_rows_count_once(monkeypatch):
    monkeypatch.setattr("skforge.prediction.blocks.MOST_VALUES", 1000)
    fast = plain(FOREST).fit(X[:100])
    fast.predict_raw(pd.DataFrame(X.astype(float)))
    counted(fast, kernel=(1, 300))


def test_copies_and_pickles_start_from_zero():
    fast = plain(FOREST).fit(X)
    fast.predict(X)
    for other in (pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast)):
        assert other.counters() == ZERO
        other.predict(X[:2])
        assert sum(route["rows"] for route in other.counters().values()) == 2


def test_threads_lose_no_count():
    fast = plain(FOREST).fit(X)
    fast.predict(X[:2])
    before = fast.counters()

    def calls(_):
        for _ in range(200):
            fast.predict(X[:2])
            fast.apply(X[:1])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(calls, range(16)))
    after = fast.counters()
    for route, rows in ("entry", 2), ("kernel", 1):
        grown = {k: after[route][k] - before[route][k] for k in ("calls", "rows")}
        assert grown == {"calls": 3200, "rows": 3200 * rows}


class _Family:
    """Stands for prometheus_client's, which may not be installed."""

    def __init__(self, name, documentation, labels):
        self.name, self.samples = name, {}
        assert documentation and labels == ["route"]

    def add_metric(self, labels, value):
        self.samples[tuple(labels)] = value


def test_the_collector_of_the_docs_exports_them(monkeypatch):
    registered = []
    core = types.ModuleType("prometheus_client.core")
    core.REGISTRY = types.SimpleNamespace(register=registered.append)
    core.CounterMetricFamily = _Family
    registry = types.ModuleType("prometheus_client.registry")
    registry.Collector = object
    for module in (types.ModuleType("prometheus_client"), core, registry):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    page = Path(__file__).parents[2] / "docs" / "monitoring.md"
    blocks = re.findall(r"^```py\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    namespace = {}
    exec(next(one for one in blocks if "metrics.py" in one), namespace)
    fast = plain(FOREST).fit(X)
    namespace["export"](lambda: fast)
    fast.predict(X[:3])
    calls, rows = registered[0].collect()
    assert (calls.name, rows.name) == ("skforge_calls", "skforge_rows")
    none = {("kernel",): 0, ("steps",): 0, ("library",): 0}
    assert calls.samples == {("entry",): 1} | none
    assert rows.samples == {("entry",): 3} | none
