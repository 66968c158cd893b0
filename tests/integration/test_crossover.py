"""From how many rows a batch goes to the GPU: found by calls that are counted.

The GPU is the emulated one, which runs what it is given, and what calls take is by a
clock of the test's own.
"""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from skforge import CompiledForest, compile_forest
from skforge.compiler.target import Target
from skforge.forest.reference import reference_raw
from skforge.modules import auto as module_auto
from skforge.modules.auto import CALLS, TRIED_ROWS, AutoModule
from skforge.modules.compiled import CompiledModule
from skforge.tuning import Tuner
from tests.exactness.forests import drawn

FOREST = drawn(12, 4)


@pytest.fixture
def machines(monkeypatch):
    """A clock that calls move on; ``cost`` has what they take, ``calls`` the calls."""
    made = SimpleNamespace(now=0.0, cost={}, calls=[], parts=[])
    predict_raw, run = CompiledModule.predict_raw, CompiledModule.run

    def timed(self, X, *, n_jobs=None, out=None):
        made.calls.append((self.target.kind, len(X)))
        made.now += made.cost[self.target.kind](len(X))
        return predict_raw(self, X, n_jobs=n_jobs)

    def ran(self, what, rows, *given, **options):
        made.parts.append((self.target.kind, len(rows)))
        return run(self, what, rows, *given, **options)

    monkeypatch.setattr(CompiledModule, "predict_raw", timed)
    monkeypatch.setattr(CompiledModule, "run", ran)
    clock = SimpleNamespace(perf_counter=lambda: made.now)
    monkeypatch.setattr(module_auto, "time", clock)
    return made


def auto():
    return AutoModule(compile_forest(FOREST), compile_forest(FOREST, target="emulated"))


@pytest.mark.parametrize(
    ("launch", "wanted"),
    [(0.0, TRIED_ROWS[0]), (TRIED_ROWS[2] - 0.5, TRIED_ROWS[2]), (1e9, None)],
)
def test_batches_go_to_the_gpu_from_where_it_is_faster(machines, launch, wanted):
    machines.cost = {"cpu": lambda n: n, "emulated": lambda n: launch + n / 1e6}
    module = auto()
    found = module.find_crossover()
    # Where it never is, only batches that nobody tried are the GPU's.
    wanted = wanted or 2 * TRIED_ROWS[-1]
    assert found == module.gpu_min_rows == wanted
    turns = [("cpu", "emulated")] * CALLS
    counted = [(kind, n) for n in TRIED_ROWS for turn in turns for kind in turn]
    assert machines.calls == counted
    machines.parts.clear()
    rows = np.zeros((min(wanted, 5000), FOREST.n_features), FOREST.input_dtype)
    for n in (len(rows) - 1, len(rows)):
        np.testing.assert_array_equal(
            module.predict_raw(rows[:n]), reference_raw(FOREST, rows[:n]).ravel()
        )
    kind = "emulated" if wanted <= 5000 else "cpu"
    assert machines.parts == [("cpu", len(rows) - 1), (kind, len(rows))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["cpu", "emulated"])
@pytest.mark.parametrize("slow", [TRIED_ROWS[0], TRIED_ROWS[6], TRIED_ROWS[-1]])
def test_one_size_that_was_timed_in_a_bad_second_does_not_decide(machines, kind, slow):
    usual = {"cpu": lambda n: n, "emulated": lambda n: TRIED_ROWS[2] - 0.5 + n / 1e6}
    machines.cost = dict(usual)
    machines.cost[kind] = lambda n: usual[kind](n) * (999 if n == slow else 1)
    assert auto().find_crossover() == TRIED_ROWS[2]


def test_one_slow_call_does_not_count(machines):
    usual = {"cpu": lambda n: n, "emulated": lambda n: TRIED_ROWS[2] - 0.5 + n / 1e6}
    slow = {7, 20, 41, 60}
    machines.cost = {
        kind: lambda n, one=one: one(n) * (99 if len(machines.calls) in slow else 1)
        for kind, one in usual.items()
    }
    assert auto().find_crossover() == TRIED_ROWS[2]


@pytest.mark.filterwarnings("ignore:A budget of")
def test_fit_measures_the_crossover_of_what_it_found(machines, monkeypatch):
    monkeypatch.setattr(
        "skforge.prediction.choose_targets.device_here",
        lambda: Target.parse("emulated"),
    )
    limit = TRIED_ROWS[2]
    machines.cost = {"cpu": lambda n: n, "emulated": lambda n: limit - 0.5}
    random = np.random.default_rng(0)
    X = random.normal(size=(limit + 10, 4)).astype(np.float32)
    model = RandomForestRegressor(9, max_depth=4, random_state=0).fit(X, X[:, 0])
    fast = CompiledForest(
        model, target="auto", tuning=Tuner("random", budget=1.0), random_state=0
    ).fit(X[:200])
    assert fast.gpu_min_rows_ == limit
    kinds = {t.machine for t in fast.tuning_result_.trials}
    assert kinds == {"cpu", "emulated"}
    starts = [first for (first, _), one in fast.schedule_.items() if one.kind == "gpu"]
    assert min(starts) == limit
    machines.parts.clear()
    np.testing.assert_array_equal(fast.predict(X), model.predict(X))
    assert [kind for kind, _ in machines.parts] == ["emulated"]
    given = fast.set_params(tuning=Tuner("random", budget=0.01), gpu_min_rows=7)
    assert given.fit(X[:50]).gpu_min_rows_ == 7


def unpickled(module):
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("copied", [copy.deepcopy, unpickled])
def test_both_are_copied_with_their_crossover(copied):
    module, rows = auto(), np.zeros((20, FOREST.n_features), FOREST.input_dtype)
    module.gpu_min_rows = 10
    wanted = [module.predict_raw(rows[:n]) for n in (1, 1, 1, 1, 20)]
    other = copied(module)
    assert other.gpu_min_rows == 10
    for n, answer in zip((1, 1, 1, 1, 20), wanted, strict=True):
        np.testing.assert_array_equal(other.predict_raw(rows[:n]), answer)
