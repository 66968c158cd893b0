"""The user's store: a search is made once for forests of one shape on one machine."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from skforge import CompiledForest
from skforge.compiler.target import Target
from skforge.engine import machine
from skforge.runtime import object_cache
from skforge.schedule.schedule import Schedule
from skforge.tuning import Tuner, cpu, records
from skforge.tuning.measure.measure import KernelMeasurer
from skforge.tuning.records import MOST_ENTRIES, Record, RecordKey, UserStore, alone
from skforge.tuning.search import heuristic
from tests.noted import calls_of
from tests.tuning_tools import Stated

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(600, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
#: A search of few schedules ends by itself; the budget is for a machine that is busy.
OPTIONS = {"tuning": Tuner(budget=60.0), "batch_sizes": [8], "target": "cpu"}


def forest(rows=slice(None), n_trees=6):
    made = RandomForestClassifier(n_trees, max_depth=4, random_state=0)
    return made.fit(X[rows], Y[rows])


@pytest.fixture
def builds(monkeypatch, tmp_path):
    """An own store, an estimate that cannot tell, and a count of what is built."""
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu, "estimate_of", lambda problem: Stated())
    monkeypatch.setattr(heuristic, "neighbours", lambda point, problem: ())
    return calls_of(monkeypatch, KernelMeasurer, "build")


def fit(model, **options):
    return CompiledForest(model, **{**OPTIONS, **options}).fit(X).tuning_result_


def test_folds_of_a_cross_validation_share_a_search(builds):
    first = fit(forest(slice(100, None)))
    assert builds and first.trials
    builds.clear()
    model = forest(slice(0, 500))
    fast = CompiledForest(model, **OPTIONS).fit(X)
    result = fast.tuning_result_
    assert builds == [] and result.trials == () and result.strategy == "record"
    assert result.notes[0].startswith("reused from a search of ")
    assert result.table.keys() == first.table.keys()
    assert np.array_equal(fast.predict_proba(X), model.predict_proba(X))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "change",
    [
        {"model": forest(n_trees=8)},
        {"tuning": Tuner(budget=61.0)},
        {"batch_sizes": [9]},
        {"reduction": "fast"},
        {"n_jobs": 2},
        {"tuning": Tuner(budget=60.0, records=None)},
    ],
    ids=["model", "budget", "batch_sizes", "reduction", "n_jobs", "records"],
)
def test_what_differs_is_searched_anew(change, builds):
    fit(forest())
    builds.clear()
    fit(**{"model": forest(), **change})
    assert builds


def test_without_a_cache_there_is_no_store(builds, monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    fit(forest())
    builds.clear()
    assert fit(forest()).trials and builds


def entries(tmp_path):
    folder = tmp_path / "cache" / "objects"
    return [p for p in folder.iterdir() if b"strategy" in p.read_bytes()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", ["text", "entries", "schedule", "empty"])
def test_damage_is_not_used(damage, builds, tmp_path):
    first = fit(forest())
    (path,) = entries(tmp_path)
    content = {
        "text": b"{",
        "entries": b'[[1], {"a": 2}, 3]',
        "empty": b"[]",
        "schedule": json.dumps(
            [
                [sizes, line.replace("heuristic", "x").replace("default", "x"), end]
                for sizes, line, end in json.loads(object_cache.find(path.name))
            ]
        )
        .replace('tile\\"', 'nothing\\"')
        .replace('interleave\\"', 'nothing\\"')
        .replace('unroll_walk\\"', 'nothing\\"')
        .replace('represent\\"', 'nothing\\"')
        .encode(),
    }[damage]
    object_cache.store(path.name, content)
    builds.clear()
    again = fit(forest())
    assert builds and again.table.keys() == first.table.keys()


def test_a_schedule_that_does_not_fit_is_not_used(builds, tmp_path):
    """A layout that another forest of these sizes allows, and this one refuses."""
    result = fit(forest())
    (path,) = entries(tmp_path)
    illegal = Schedule().unroll("batch")
    kept = []
    for sizes, line, end in json.loads(object_cache.find(path.name)):
        record = Record.from_line(line)
        table = dict.fromkeys(result.table, illegal)
        made = Record(record.key, table, "heuristic", True, 1.0, "here")
        kept.append((sizes, made.to_line(), end))
    object_cache.store(path.name, json.dumps(kept).encode())
    builds.clear()
    assert illegal not in fit(forest()).table.values() and builds


# ------------------------------------------------------------------- later evidence

DAY = 86400


@pytest.fixture
def now(monkeypatch):
    """A clock of days, on a machine without other work."""
    clock = SimpleNamespace(day=0.0)
    module = SimpleNamespace(time=lambda: clock.day * DAY, monotonic=time.monotonic)
    module.sleep = time.sleep
    monkeypatch.setattr(records, "time", module)
    monkeypatch.setattr(machine, "load_average", lambda: 0.5)
    return clock


def test_a_result_counts_for_months(builds, now):
    fit(forest())
    builds.clear()
    now.day = 89
    assert fit(forest()).strategy == "record" and not builds
    now.day = 91
    assert fit(forest()).trials and builds


def test_a_search_beside_other_work_is_repeated_a_day_later(builds, now, monkeypatch):
    monkeypatch.setattr(machine, "load_average", lambda: 99.0)
    fit(forest())
    builds.clear()
    now.day = 0.9
    assert fit(forest()).strategy == "record" and not builds
    now.day = 1.1
    assert fit(forest()).trials and builds


def table_of(batch):
    return {(1, None): Schedule().interleave("tree", batch)}


def test_a_doubtful_result_is_confirmed_by_an_equal_one(now, monkeypatch, tmp_path):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    key = RecordKey("shape", "machine", "exact", 1, (), "1")
    results = [Record(key, table_of(n), "x", True, n, "here") for n in (2, 4, 4)]
    user_store = UserStore(key, (100, 2.5))
    found = []
    for day, record in enumerate(results):
        now.day = 2 * day
        user_store.add(record, doubtful=True)
        now.day += 1.5
        found.append(user_store.find(lambda record: True))
    assert found == [None, None, results[2]]


def test_a_search_with_another_profile_of_the_machine_is_not_used(builds, monkeypatch):
    fit(forest())
    profile = machine.machine_profile(Target.host())
    for change, searched in ((1.1, False), (1.5, True)):
        builds.clear()
        changed = replace(profile, mux=profile.mux * change)
        monkeypatch.setattr(machine, "machine_profile", lambda _, made=changed: made)
        assert bool(fit(forest()).trials) == bool(builds) == searched


def test_entries_of_older_releases_are_not_used(builds, tmp_path):
    fit(forest())
    (path,) = entries(tmp_path)
    old = [entry[:2] for entry in json.loads(object_cache.find(path.name))]
    object_cache.store(path.name, json.dumps(old).encode())
    builds.clear()
    assert fit(forest()).trials and builds


def test_a_process_waits_for_others_and_then_takes_the_defaults(builds):
    with alone(0.0) as quiet:
        assert quiet
        result = fit(forest(), tuning=Tuner(budget=0.1))
    assert builds == [] and not result.complete
    assert result.notes == (
        "other processes on this machine were searching for 0.1 s: nothing was "
        "measured",
    )
    with alone(0.0) as quiet:
        assert quiet  # it was given back


def lock(folder):
    """Return the path of the lock that a search takes."""
    with alone(0.0):
        (path,) = folder.rglob("*.lock")
    return path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX")
@pytest.mark.parametrize("trap", ["pipe", "link", "folder", "theirs"])
def test_a_lock_that_is_a_trap_is_not_taken(trap, builds, tmp_path):
    path, target = lock(tmp_path / "cache"), tmp_path / "victim"
    path.unlink()
    if trap == "pipe":
        os.mkfifo(path)
    elif trap == "link":
        path.symlink_to(target)
    elif trap == "folder":
        path.mkdir()
    else:
        path.touch()
        path.chmod(0o666)
    quiet = []

    def search():
        with alone(0.0) as held, alone(0.0) as again:
            quiet.extend((held, again))  # nobody waits for what is no lock

    thread = Thread(target=search, daemon=True)  # a pipe would hold it for ever
    thread.start()
    thread.join(60)
    assert quiet == [True, True]
    assert not target.exists()


def test_a_lock_is_taken_once(builds, tmp_path):
    path = lock(tmp_path / "cache")
    assert path.stat().st_mode & 0o777 == 0o600
    with alone(0.0) as held, alone(0.0) as again:
        assert (held, again) == (True, False)


def _add(number):
    key = RecordKey("shape", "machine", "exact", 1, (), "1")
    record = Record(key, {(1, None): Schedule()}, "heuristic", True, number, "here")
    UserStore(key, (number + 100,)).add(record)


def test_many_writers_leave_an_intact_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        list(pool.map(_add, range(40)))
    key = RecordKey("shape", "machine", "exact", 1, (), "1")
    found = UserStore(key, (139,)).find(lambda record: True)
    assert found is not None and found.seconds > 10
    (path,) = entries(tmp_path)
    assert len(json.loads(object_cache.find(path.name))) <= MOST_ENTRIES
    assert os.stat(path).st_mode & 0o077 == 0
    assert UserStore(key, (300,)).find(lambda record: True) is None
