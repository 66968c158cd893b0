"""Many threads, forks and workers: right answers, and nobody waits for ever."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

from skforge import CompiledForest
from tests.comparing import in_child

X, Y = make_classification(3000, 8, n_informative=4, random_state=0)
SOURCE = RandomForestClassifier(20, random_state=0).fit(X[:500], Y[:500])
EXPECTED = SOURCE.predict_proba(X)
SIZES = (1, 2, 17, 130, 3000)


def compiled(n_jobs=None):
    return CompiledForest(SOURCE, n_jobs=n_jobs).fit(X[:100])


def right(model):
    return all(np.array_equal(model.predict_proba(X[:n]), EXPECTED[:n]) for n in SIZES)


@pytest.mark.sampled(2)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("n_jobs", [None, 2])
@pytest.mark.parametrize("fresh", [False, True], ids=["compiled", "unpickled"])
def test_sixteen_threads(n_jobs, fresh):
    model = compiled(n_jobs)
    if fresh:  # the first calls compile, all at once
        model = pickle.loads(pickle.dumps(model))
    barrier = Barrier(16)

    def work(_):
        barrier.wait(60)
        return all(right(model) for _ in range(3))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


@pytest.mark.timeout(150)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("n_jobs", [None, 2])
def test_forked_children_predict(n_jobs):
    model = compiled(n_jobs)
    assert right(model)
    assert in_child(lambda: right(model)) == 0
    lazy = pickle.loads(pickle.dumps(model))
    assert in_child(lambda: right(lazy)) == 0
    assert in_child(lambda: right(compiled(n_jobs))) == 0
    assert right(model)
    assert right(lazy)
