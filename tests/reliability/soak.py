"""A long run: many threads predict while others fit, save and load.

Every answer is compared with the source library's own, bit by bit. Meanwhile the
process's memory, open files and threads are counted, and a line is fitted to each. A
process of its own does it: ``python -m tests.reliability.soak CALLS FOLDER``.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import skforge
from skforge import CompiledForest
from tests.reliability.processes import module, said
from tests.reliability.rows import Row

THREADS = 16
#: Part of the calls that comes before the line is fitted: buffers grow, code is made.
WARM = 0.2
SAMPLES = 400
#: Bytes a call of growth above which memory counts as lost: no object is smaller.
LEAK = 16.0
MOST_ROWS = 1000
_ALL = 4096


def run(calls: int, folder: Path) -> list[Row]:
    """Run the soak in a process of its own; return its rows."""
    changes = {"SKFORGE_CACHE_DIR": str(folder / "soak-cache")}
    done = module("soak", str(calls), str(folder), changes=changes)
    if done.returncode:
        row = Row("soak", "the process")
        row.count(False, said(done.returncode, done.stderr))
        return [row]
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


@dataclass(slots=True)
class _Subject:
    """A compiled model and, for all rows, what its source answers."""

    name: str
    model: CompiledForest
    rows: list[Any]  # the same rows in several types and layouts
    expected: dict[str, Any]
    make: Callable[[], CompiledForest]


@dataclass(slots=True)
class _State:
    calls: int
    wrong: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    churned: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)


def soak(
    calls: int,
    folder: Path,
    threads: int = THREADS,
    subjects: list[_Subject] | None = None,
) -> list[Row]:
    """Predict ``calls`` times from threads; fit, save and load meanwhile."""
    warnings.simplefilter("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    subjects = _subjects() if subjects is None else subjects
    state = _State(calls)
    numbers = itertools.count()
    samples: list[tuple[int, float, int, int]] = []
    every = max(1, calls // SAMPLES)

    def predict(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for number in iter(lambda: next(numbers), None):
            if number >= calls:
                return
            one = subjects[int(draw.integers(len(subjects)))]
            _call(one, draw, state)
            if number % every == 0:
                samples.append((number, *_usage()))

    workers = [
        threading.Thread(target=_guarded, args=(state, predict, k))
        for k in range(threads)
    ]
    churn = threading.Thread(
        target=_guarded, args=(state, lambda _: _churn(subjects, state, folder), 0)
    )
    start = time.monotonic()
    for thread in [*workers, churn]:
        thread.start()
    for thread in workers:
        thread.join()
    state.stop.set()
    churn.join()
    return _rows(state, subjects, sorted(samples), time.monotonic() - start, threads)


def _guarded(state: _State, work: Callable[[int], None], number: int) -> None:
    try:
        work(number)
    except Exception as error:  # noqa: BLE001 - a thread that ends is a loss
        state.wrong.append(f"a thread ended: {type(error).__name__}: {error}")


def _call(one: _Subject, draw: Any, state: _State) -> None:
    method = str(draw.choice(list(one.expected)))
    n = int(MOST_ROWS ** draw.random())
    at = int(draw.integers(_ALL - n))
    rows = one.rows[int(draw.integers(len(one.rows)))][at : at + n]
    found = getattr(one.model, method)(rows)
    expected = one.expected[method][at : at + n]
    same = found.dtype == expected.dtype and found.shape == expected.shape
    state.done[one.name] += 1
    if not (same and found.tobytes() == expected.tobytes()):
        state.wrong.append(f"{one.name}.{method} of {n} rows from {at}")


def _churn(subjects: list[_Subject], state: _State, folder: Path) -> None:
    """Fit, save and load without pause, and check what comes of it."""
    for round_ in itertools.count():
        if state.stop.is_set():
            return
        one = subjects[round_ % len(subjects)]
        fitted = one.make()
        state.churned["fits"] += 1
        path = folder / f"soak-{round_ % 3}.skforge"
        skforge.save(fitted, path)
        state.churned["saves"] += 1
        loaded = skforge.load(path)
        state.churned["loads"] += 1
        for model in (fitted, loaded):
            for method, expected in one.expected.items():
                found = getattr(model, method)(one.rows[0][:300])
                if found.tobytes() != np.ascontiguousarray(expected[:300]).tobytes():
                    state.wrong.append(f"{one.name}.{method} after a fit or load")


def _subjects() -> list[_Subject]:
    """Return the models of the soak, each compiled."""
    from lightgbm import LGBMRegressor
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from xgboost import XGBClassifier

    random = np.random.default_rng(0)
    X = np.round(random.standard_normal((_ALL, 12)), 2).astype(np.float32)
    worn = X.copy()
    worn[random.random(X.shape) < 0.05] = np.nan
    score = X[:, :4].sum(axis=1) + random.normal(size=_ALL)
    labels = np.digitize(score, [-1, 1])
    words = np.array(["ash", "elm", "oak"])[labels]
    models: dict[str, tuple[Any, Any, Any]] = {
        "XGBoost": (
            XGBClassifier(n_estimators=40, max_depth=6, n_jobs=1),
            *(worn, labels > 0),
        ),
        "LightGBM": (
            LGBMRegressor(n_estimators=60, num_leaves=31, n_jobs=1, verbose=-1),
            *(worn, score),
        ),
        "deep random forest": (RandomForestClassifier(30, random_state=0), X, words),
        "histogram boosting": (
            HistGradientBoostingClassifier(max_iter=15, random_state=0),
            *(worn, words),
        ),
    }
    few = slice(0, 1500)
    return [
        _subject(name, model.fit(rows[few], y[few]), rows)
        for name, (model, rows, y) in models.items()
    ]


def _subject(name: str, source: Any, X: Any) -> _Subject:
    asked = [m for m in ("predict", "predict_proba") if hasattr(source, m)]
    expected = {method: getattr(source, method)(X) for method in asked}
    raw = {"xgboost": "output_margin", "lightgbm": "raw_score"}
    library = type(source).__module__.partition(".")[0]
    if library in raw:
        expected["predict_raw"] = source.predict(X, **{raw[library]: True})
    wide = np.zeros((len(X), X.shape[1] + 3), np.float32)
    wide[:, 1 : 1 + X.shape[1]] = X
    layouts = [X, X.astype(np.float64), np.asfortranarray(X)]
    layouts.append(wide[:, 1 : 1 + X.shape[1]])

    def make() -> CompiledForest:
        return CompiledForest(source, tuning="off", n_jobs=2).fit(X[:50])

    return _Subject(name, make(), layouts, expected, make)


def _usage() -> tuple[float, int, int]:
    """Return kB of resident memory, open files and threads of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    kb = pages * os.sysconf("SC_PAGE_SIZE") / 1024
    return kb, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def slope(samples: Any, column: int) -> tuple[float, float]:
    """Return growth for 10⁵ calls, and its standard error, by least squares.

    >>> line = [(k, 1000 + 0.01 * k, 5, 3) for k in range(0, 1000, 10)]
    >>> [round(value, 6) for value in slope(line, 1)]
    [1000.0, 0.0]
    """
    calls, values = (np.array([s[k] for s in samples], float) for k in (0, column))
    x = (calls - calls.mean()) / 1e5
    gain = float((x * (values - values.mean())).sum() / (x * x).sum())
    rest = values - values.mean() - gain * x
    error = float(np.sqrt((rest @ rest) / max(1, len(x) - 2) / (x @ x)))
    return gain, error


def _rows(
    state: _State, subjects: list[_Subject], samples: Any, seconds: float, threads: int
) -> list[Row]:
    calls = Row("soak", f"predict calls from {threads} threads, 1 to {MOST_ROWS} rows")
    calls.tried = sum(state.done.values())
    calls.lost = state.wrong[:1000]
    calls.survived = calls.tried - len(state.wrong)
    churned = ", ".join(f"{n:,} {what}" for what, n in state.churned.items())
    models = ", ".join(f"{n:,} {name}" for name, n in sorted(state.done.items()))
    calls.notes = (
        f"{models}; every answer has the source's bits; meanwhile {churned}, "
        f"checked too; {seconds / 60:.1f} minutes"
    )
    late = [s for s in samples if s[0] >= WARM * state.calls]
    calls.facts = {
        "samples": [list(s) for s in samples],
        "churned": dict(state.churned),
    }
    memory = Row("soak", "memory, files and threads while that ran")
    gain, error = slope(late, 1)
    limit = LEAK * 1e5 / 1024
    memory.count(gain < limit, f"memory grows by {gain:.0f} kB in 10⁵ calls")
    for column, what in ((2, "open files"), (3, "threads")):
        first, last = late[0][column], late[-1][column]
        grows = slope(late, column)[0] * state.calls / 1e5
        memory.count(grows < 8, f"{what} grow from {first} to {last}")
    memory.notes = (
        f"resident memory {late[0][1] / 1024:.0f} MB after the first fifth, "
        f"{late[-1][1] / 1024:.0f} MB at the end: {gain:+.0f} ± {error:.0f} kB in 10⁵ "
        f"calls with the fits meanwhile (lost from {limit:,.0f} kB, {LEAK:.0f} bytes a "
        f"call); open files {late[0][2]} → {late[-1][2]}, threads {late[0][3]} → "
        f"{late[-1][3]}"
    )
    return [calls, memory]


if __name__ == "__main__":
    from dataclasses import asdict

    found = soak(int(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps([asdict(row) for row in found]))
