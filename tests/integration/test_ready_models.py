"""Loaded models that answer from the cache, before they are whole."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import threading
import types
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    RandomForestClassifier,
    RandomForestRegressor,
    StackingRegressor,
)
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import skforge
from skforge import CompiledForest, Schedule
from skforge._container import content_of, identity
from skforge.engine.entry import mappings
from skforge.persistence import note, ready
from skforge.persistence.ready import ReadyForest
from skforge.runtime import object_cache, stored_kernels
from skforge.runtime.loading import LoadedCode
from tests import kinds_of_pipelines
from tests.noted import calls_of
from tests.plain import plain
from tests.programs import run_python
from tests.sklearn_rows import same_bits as same

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
NAMES = [*"abcdef"]
TEXTS = pd.DataFrame(X, columns=NAMES).assign(a=RANDOM.choice(["x", "y", "z"], 300))
FOREST = RandomForestClassifier(7, max_depth=5, random_state=0).fit(X, Y)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache."""
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    mappings._reader.cache_clear()  # so that its code comes to this cache
    return tmp_path / "cache"


def saved(model: Any, tmp_path: Path, rows: Any = X, **how: Any) -> Path:
    path = tmp_path / "m.skforge"
    skforge.save(plain(model, **how).fit(rows), path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the file of a forest."""
    return saved(FOREST, tmp_path)


def loaded(path: Path, *methods: str, rows: Any = X[:1]) -> Any:
    """Load a file whose methods were called once in what counts as another process."""
    first = skforge.load(path)
    for method in methods or ("predict_proba",):
        getattr(first, method)(rows)
    return skforge.load(path)


def is_ready(model: Any) -> bool:
    return type(model) is ReadyForest


MODELS: dict[str, Any] = {
    name: kinds_of_pipelines.EVERY[name].fitted
    for name in (
        *("forest of two", "forest of names", "forest of objects", "forest of floats"),
        *("forest of bools", "forest of values", "gb of names", "hist of names"),
        *("xgboost of two", "lightgbm of names", "standard, forest"),
        *("hist of odd", "xgboost, softmax", "isolation"),  # with loops of NumPy
        "catboost of three",  # with a table in the code
    )
}
METHODS = (
    *("predict", "predict_proba", "predict_raw", "decision_function"),
    "score_samples",
)


@pytest.mark.parametrize("kind", MODELS)
def test_answers_are_those_of_the_whole_model(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    path = saved(model, tmp_path)
    whole = skforge.load(path)
    methods = [name for name in METHODS if hasattr(whole, name)]
    fast = loaded(path, *methods, rows=X[:1].astype(np.float64))
    assert not is_ready(whole) and is_ready(fast)
    many = np.tile(X, (15, 1)).astype(np.float64)
    takes_gaps = kind.split()[0] in ("xgboost", "lightgbm", "hist")
    many[::7, 2] = np.nan if takes_gaps and "softmax" not in kind else 0.5
    forms = [many[:1], many[:9], many[:30:3], many, many[:2047]]
    forms += [np.asfortranarray(many), many[:, ::-1], many[::2]]
    forms += (
        [rows.astype(np.float32) for rows in forms]
        if kind != "standard, forest"
        else []
    )
    for method in methods:
        for rows in forms:
            found, wanted = getattr(fast, method)(rows), getattr(whole, method)(rows)
            same(found, wanted)
            assert found.strides == wanted.strides
    calls, n_rows = len(methods) * len(forms), sum(map(len, forms)) * len(methods)
    assert fast.counters()["entry"] == {"calls": calls, "rows": n_rows}
    for method in methods:
        for given in ({"X": many[:9]}, {"X": many[:9].tolist()}):
            same(getattr(fast, method)(**given), getattr(whole, method)(many[:9]))
    assert is_ready(fast)
    for method in methods:
        same(getattr(fast, method)(X[:9]), getattr(whole, method)(X[:9]))
    # in float32, a scaler rounds otherwise, and has a forest of its own
    assert is_ready(fast) == (kind != "standard, forest")


ARRAYS = """
for rows in (1, 1000, 5000):
    for dtype in ("f4", "f8"):
        for order in "CF":
            X = np.zeros((rows, 6), dtype, order)
            fast.predict(X), fast.predict_proba(X), fast.predict_raw(X)
"""
MAPPINGS = """
row = {"a": "x", **dict.fromkeys("bcdef", 0.5)}
for rows in (row, [row], [row] * 1000, {name: [row[name]] * 5000 for name in row}):
    fast.predict(rows), fast.predict_proba(rows)
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("warms", [True, False])
@pytest.mark.parametrize(
    "kind", ["forest of two", "xgboost of two", "lightgbm of names", "mappings"]
)
def test_only_numpy_and_the_runtime_are_imported(
    kind: str, warms: bool, tmp_path: Path
) -> None:
    """After load, whatever comes as arrays or mappings; warm_up adds nothing."""
    if kind == "mappings":
        path, calls = saved(texts_model(), tmp_path, TEXTS), MAPPINGS
    else:
        path, calls = saved(MODELS[kind](), tmp_path), ARRAYS
    code = f"""
import sys, numpy as np
before = {{*sys.modules}}
import skforge
fast = skforge.load({str(path)!r})
if {warms}:
    fast.warm_up(), fast.warm_up([1, 5000])
{calls}
print(fast.predict_proba({"row" if kind == "mappings" else "X[:1]"}).tolist())
print(*sorted({{*sys.modules}} - before))
"""
    outs = [
        run_python(code).splitlines()
        # without warm_up, code for lists of mappings is noted by the second process
        for _ in range(2 if warms or kind != "mappings" else 3)
    ]
    outs = [outs[0], outs[-1]]
    assert outs[0][0] == outs[1][0]
    ours = [name for name in outs[1][1].split() if name.startswith("skforge.")]
    allowed = ("skforge.runtime", "skforge.persistence", "skforge._", "skforge.conf")
    others = [name for name in ours if not name.startswith(allowed)]
    assert others == ["skforge.exceptions"] and len(ours) < 25
    assert any(name.startswith("skforge.compiler") for name in outs[0][1].split())
    theirs = {name.partition(".")[0] for name in outs[1][1].split()}
    assert theirs - {"skforge", "numpy"} <= sys.stdlib_module_names


WAKES: dict[str, Any] = {
    "a list of objects": lambda fast: fast.predict_proba([[None, *X[0].tolist()[1:]]]),
    "a list of whole numbers": lambda fast: fast.predict_proba([[1, 2, 3, 4, 5, 6]]),
    "a frame": lambda fast: fast.predict_proba(pd.DataFrame(X[:1])),
    "half floats": lambda fast: fast.predict_proba(X.astype(np.float16)),
    "another method": lambda fast: fast.apply(X),
    "a method not called before": lambda fast: fast.predict(X),
    "an attribute": lambda fast: fast.classes_,
    "a parameter": lambda fast: fast.n_jobs,
    "setting one": lambda fast: setattr(fast, "n_jobs", 1),
    "repr": repr,
    "dir": dir,
    "vars": vars,
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": pickle.dumps,
    "clone": clone,
    "a test": lambda fast: hasattr(fast, "no_such_thing"),
}


@pytest.mark.parametrize("what", WAKES)
def test_all_else_makes_it_whole(what: str, path: Path) -> None:
    fast = loaded(path)
    wanted = FOREST.predict_proba(X)
    method, method_type = fast.predict_proba, types.MethodType
    same(method(X[:2]), wanted[:2])
    assert is_ready(fast) and isinstance(fast, CompiledForest)
    WAKES[what](fast)
    assert not is_ready(fast) and isinstance(fast, CompiledForest)
    assert type(method) is method_type and method.__self__ is fast
    for rows in (X[:1], X):
        same(method(rows), wanted[: len(rows)])  # kept from before
        same(fast.predict_proba(rows), wanted[: len(rows)])
    again = pickle.loads(pickle.dumps(fast))
    same(again.predict_proba(X), wanted)
    assert {*vars(again)}.isdisjoint({"_before", "_note", "_ready", "_methods"})


def test_the_last_row_of_a_large_batch_is_none_of_its_own(tmp_path: Path) -> None:
    """Linear models of ONNX graphs add a single row's products in another order."""
    skl2onnx = pytest.importorskip("skl2onnx")
    members = [(str(k), RandomForestRegressor(3, max_depth=4)) for k in range(2)]
    stack = StackingRegressor(members, Ridge(), cv=2).fit(X, X[:, 0] + X[:, 1])
    path = saved(skl2onnx.to_onnx(stack, X[:1]), tmp_path)
    rows = np.repeat(X, 5, axis=0)
    fast = loaded(path, "predict")
    for first in range(0, 300, 15):
        some = rows[first : first + 1025]
        assert fast.predict(some)[-1] == fast.predict(some[-2:])[-1]
    assert is_ready(fast)


def test_a_batch_with_a_part_that_is_declined_is_answered_whole(tmp_path: Path) -> None:
    model = MODELS["xgboost of two"]()
    path = saved(model, tmp_path)
    many = np.tile(X, (15, 1)).astype(np.float64)
    many[-1, 0] = 1e300  # which float32 does not hold
    whole, fast = skforge.load(path), loaded(path)
    assert is_ready(fast) and not is_ready(whole)
    results = []
    for each in (fast, whole):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = each.predict_proba(many)
        results.append((answer.tobytes(), [str(warning.message) for warning in caught]))
        counts = each.counters().values()
        assert sum(kind["calls"] for kind in counts) == 1
        assert sum(kind["rows"] for kind in counts) == len(many)
    assert results[0] == results[1]
    assert not is_ready(fast)


def same_error(models: tuple[Any, ...], bad: Any) -> None:
    """Compare the types and texts of what the models raise."""
    texts = []
    for one in models:
        with pytest.raises((ValueError, TypeError)) as caught:
            one.predict_proba(bad)
        texts.append((type(caught.value), str(caught.value)))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("bad", [X[:, :3], X[0], [["a"] * 6], np.full((1, 6), np.inf)])
def test_rows_that_are_refused_have_the_error_of_the_whole_model(
    bad: Any, path: Path
) -> None:
    models = skforge.load(path), loaded(path)
    same_error(models, bad)
    for model in models:
        same(model.predict_proba(X[:1]), FOREST.predict_proba(X[:1]))


def test_other_arguments_and_methods_that_the_model_lacks(tmp_path: Path) -> None:
    path = saved(RandomForestRegressor(3, random_state=0).fit(X, X[:, 0]), tmp_path)
    fast = loaded(path, "predict")
    assert is_ready(fast)
    assert not hasattr(fast, "predict_proba") and not hasattr(fast, "nothing")
    fast = loaded(path, "predict")
    with pytest.raises(TypeError):
        fast.predict()
    with pytest.raises(TypeError):
        fast.predict(X, X)
    with pytest.raises(Exception, match="iteration_range"):
        fast.predict(X, iteration_range=(0, 1))
    fast = loaded(saved(FOREST, tmp_path))
    out = np.empty((4, 2))
    assert fast.predict_proba(X[:4], out=out) is out
    same(out, FOREST.predict_proba(X[:4]))


def test_calls_are_counted_before_and_after(path: Path) -> None:
    fast = loaded(path)
    for rows in (X[:1], X[:3], X[:4].astype(np.float64)):
        fast.predict_proba(rows)
    assert is_ready(fast)
    assert fast.counters()["entry"] == {"calls": 3, "rows": 8}
    assert fast.counters().keys() == {"entry", "kernel", "steps", "library"}
    assert is_ready(fast)
    fast.predict_proba(pd.DataFrame(X[:2]))
    kept = fast.counters()
    assert sum(kept[name]["calls"] for name in kept) == 4
    assert sum(kept[name]["rows"] for name in kept) == 10
    fast.fit(X)
    assert sum(kind["calls"] for kind in fast.counters().values()) == 0


def test_a_method_that_was_kept_follows_a_new_fit(path: Path) -> None:
    fast = loaded(path)
    method = fast.predict_proba
    method(X[:1])
    other = RandomForestClassifier(3, random_state=1).fit(X, 1 - Y)
    fast.estimator = other
    fast.prefit = True
    fast.fit(X)
    same(method(X[:5]), other.predict_proba(X[:5]))


def test_warnings_of_arrays_without_names_are_given(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES)
    path = saved(clone(FOREST).fit(frame, Y), tmp_path, frame)
    for model in (skforge.load(path), loaded(path)):
        for _ in range(2):
            with pytest.warns(UserWarning, match="does not have valid feature names"):
                same(model.predict_proba(X[:1]), FOREST.predict_proba(frame[:1]))


# ------------------------------------------------------------ mappings


def texts_model() -> Any:
    steps = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["a"]), remainder="passthrough"
    )
    return make_pipeline(steps, clone(FOREST)).fit(TEXTS, Y)


def test_mappings_are_answered_and_refused_alike(tmp_path: Path) -> None:
    model = texts_model()
    path = saved(model, tmp_path, TEXTS)
    row = TEXTS.iloc[0].to_dict()
    whole, fast = skforge.load(path), loaded(path, rows=row)
    assert is_ready(fast)
    for given in (row, {**row, "a": "new"}, {**row, "b": np.float32(3)}):
        same(fast.predict_proba(given), model.predict_proba(pd.DataFrame([given])))
        same(fast.predict_proba(X=given), whole.predict_proba(given))
    for bad in ({"a": "x"}, {**row, "b": "three"}, {}):
        same_error((whole, fast), bad)
    assert is_ready(fast)
    columns = TEXTS[:5].to_dict("list")
    same(fast.predict_proba(columns), model.predict_proba(TEXTS[:5]))
    assert is_ready(fast)
    same(fast.predict_proba([row] * 2), model.predict_proba(TEXTS[:1])[[0, 0]])
    for _ in range(2):  # the next process knows of the code that reads lists
        fast = loaded(path, rows=[row])
    for count in (1, 2, 299, 3000):
        rows = (TEXTS.to_dict("records") * 10)[:count]
        rows[-1] = {**rows[-1], "a": "new", "c": None, "d": 1}
        same(fast.predict_proba(rows), whole.predict_proba(rows))
        columns = {name: [row[name] for row in rows] for name in row}
        same(fast.predict_proba(columns), whole.predict_proba(rows))
    for bad in ([row, {"a": "x"}], [{**row, "b": "three"}], [row, {}], [row, 3]):
        same_error((whole, fast), bad)


def test_further_keys_are_told_of_once(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES)
    path = saved(clone(FOREST).fit(frame, Y), tmp_path, frame)
    row = frame.iloc[0].to_dict()
    fast = loaded(path, rows=row)
    assert is_ready(fast)
    with pytest.warns(
        skforge.exceptions.InputWarning, match="has keys that are not columns"
    ):
        fast.predict_proba({**row, "more": 1})
    assert is_ready(fast)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast.predict_proba({**row, "more": 1})
        fast.predict_proba([{**row, "more": 1}])


# ------------------------------------------------------------ warm_up


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as a process that has not imported pandas."""
    honest = ready.takes_whole
    without = [name for name in sys.modules if name.split(".")[0] in ("json", "numpy")]
    monkeypatch.setattr(ready, "takes_whole", lambda modules: honest(without))


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect what is linked."""
    return calls_of(monkeypatch, LoadedCode, "__init__")


TABLE = {(1, 20): Schedule(), (21, None): Schedule().interleave("tree", 2)}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Return the file of a forest of two kernels."""
    model = CompiledForest(FOREST, tuning="off", schedule=TABLE).fit(X)
    skforge.save(model, tmp_path / "m.skforge")
    return tmp_path / "m.skforge"


@pytest.mark.usefixtures("alone")
@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", [*MODELS, "mappings"])
def test_what_was_warmed_up_is_linked_and_nothing_else(
    kind: str, tmp_path: Path, linked: list[Any]
) -> None:
    mapped = kind == "mappings"
    model, rows = (texts_model(), TEXTS) if mapped else (MODELS[kind](), X)
    path = saved(model, tmp_path, rows)
    first = skforge.load(path)
    assert not is_ready(first) and first.warm_up() is first and not is_ready(first)
    fast = skforge.load(path)
    assert is_ready(fast) and fast.warm_up() is fast and is_ready(fast)
    assert fast.warm_up([1, 9]) is fast and is_ready(fast)
    linked.clear()
    methods = [name for name in METHODS if hasattr(first, name)]
    given = TEXTS.to_dict("records") if mapped else X.astype(np.float64)
    for part in (given[0] if mapped else given[:1], given):
        for method in methods:
            same(getattr(fast, method)(part), getattr(first, method)(part))
    assert is_ready(fast) and not linked
    if hasattr(model, "apply"):
        same(fast.apply(X), first.apply(X))
    assert fast.counters()["entry"]["calls"] == 2 * len(methods)


@pytest.mark.usefixtures("alone")
def test_sizes_that_were_not_warmed_up_make_it_whole(two: Path) -> None:
    skforge.load(two).warm_up([1, 5])
    for sizes, stays in (([5], True), (np.array([1]), True), (None, False)):
        fast = skforge.load(two)
        assert is_ready(fast.warm_up(sizes)) == stays
        same(fast.predict_proba(X), FOREST.predict_proba(X))
    for sizes in ([300], [], [1, 5, 300], None):  # as all kernels are known by now
        assert is_ready(skforge.load(two).warm_up(sizes)) == (sizes != [])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("sizes", [[-1], [1.5], ["many"], [True], [None]])
def test_sizes_are_checked_as_by_the_whole_model(sizes: Any, two: Path) -> None:
    first = skforge.load(two).warm_up()
    texts = []
    for model in (first, skforge.load(two)):
        try:
            texts.append(str(model.warm_up(sizes) is model))
        except skforge.InvalidInputError as error:
            texts.append(str(error))
    assert texts[0] == texts[1]


def test_warm_up_is_whole_where_frames_may_come(two: Path) -> None:
    skforge.load(two).warm_up()
    assert "pandas" in sys.modules and not is_ready(skforge.load(two).warm_up())
    for name in ("pandas", "polars", "pyarrow", "scipy.sparse"):
        assert ready.takes_whole(["numpy", name])
    assert not ready.takes_whole(["numpy", "scipy", "json"])


@pytest.mark.usefixtures("alone")
def test_contributions_and_lost_code_make_it_whole(folder: Path, two: Path) -> None:

    def noted() -> tuple[set[Any], set[Any]]:
        """Return the kernels of scores, and all that warm_up used of the cache."""
        stored = object_cache.find(str(ready.key_of(path_digest(two))))
        assert stored is not None
        record = json.loads(stored)
        kernels = {(key, "kernels") for _, key, _ in record["kernels"]}
        return kernels, {*map(tuple, record["warm"]["used"])}

    skforge.load(two).warm_up()
    kernels, used = noted()
    assert is_ready(skforge.load(two).warm_up())
    assert not is_ready(skforge.load(two).warm_up(contribs=True))
    of_contributions = noted()[1] - used
    of_leaves = {entry for entry in used - kernels if entry[1] == "kernels"}
    for key, kind in (min(of_contributions), min(of_leaves)):
        (folder / kind / key).unlink()
        fast = skforge.load(two)
        assert is_ready(fast) and not is_ready(fast.warm_up())
        same(fast.apply(X), FOREST.apply(X))
        assert is_ready(skforge.load(two).warm_up())  # it is there, or not needed


@pytest.mark.usefixtures("alone")
def test_a_kernel_that_comes_later_is_noted(two: Path) -> None:
    first = skforge.load(two)
    first.predict_proba(X[:1])
    first.predict_proba(X)
    fast = skforge.load(two)
    same(fast.predict_proba(X), FOREST.predict_proba(X))
    assert is_ready(fast)


# ------------------------------------------------------------ what is not noted


@pytest.mark.parametrize("kind", ["members", "threads", "module"])
def test_models_that_answer_whole(kind: str, tmp_path: Path) -> None:
    method = "predict"
    if kind == "members":
        model: Any = CalibratedClassifierCV(make_pipeline(StandardScaler(), FOREST))
        path = saved(model.fit(X, Y), tmp_path)
    elif kind == "threads":
        path = saved(FOREST, tmp_path, n_jobs=2)
    else:
        path, method = tmp_path / "m.skforge", "predict_raw"
        skforge.save(skforge.compile_forest(FOREST), path)
    model = loaded(path, method)
    assert not is_ready(model)
    same(getattr(model, method)(X[:3]), getattr(skforge.load(path), method)(X[:3]))


@pytest.mark.parametrize("how", ["off", "verify", "edited"])
def test_processes_that_keep_no_code_or_run_another_one(
    how: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_ready(loaded(path))
    if how == "edited":
        monkeypatch.setattr(object_cache, "sources", lambda: "other code")
    else:
        name, value = {
            "off": ("SKFORGE_CACHE", "off"),
            "verify": ("SKFORGE_VERIFY", "1"),
        }[how]
        monkeypatch.setenv(name, value)
    fast = skforge.load(path)
    assert not is_ready(fast)
    same(fast.predict_proba(X[:2]), FOREST.predict_proba(X[:2]))


def test_a_damaged_file_is_refused(path: Path) -> None:
    assert is_ready(loaded(path))
    content = bytearray(path.read_bytes())
    for at in range(40, len(content), len(content) // 50):
        damaged = bytearray(content)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        try:
            model = skforge.load(path)
        except skforge.InvalidModelError:
            continue
        assert not is_ready(model)  # a byte that pads
        same(model.predict_proba(X[:2]), FOREST.predict_proba(X[:2]))
    assert is_ready(skforge.load(bytes(content)))


def test_an_overwritten_file_does_not_matter_once_it_is_loaded(path: Path) -> None:
    fast = loaded(path)
    path.write_bytes(b"other")
    same(fast.predict_proba(X[:2]), FOREST.predict_proba(X[:2]))
    assert fast.classes_.tolist() == [0, 1]


# ------------------------------------------------------------ the cache


@pytest.fixture
def replace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what puts another model's kernel in place of the only one."""
    monkeypatch.setenv("SKFORGE_CHECK", "off")  # save would make more kernels
    plain(RandomForestClassifier(7, max_depth=5, random_state=9).fit(X, 1 - Y)).fit(X)
    (foreign,) = (folder / "kernels").iterdir()
    content = stored_kernels.find(foreign.name)
    assert content is not None
    foreign.unlink()

    def replaced() -> None:
        (own,) = (folder / "kernels").iterdir()
        assert stored_kernels.add(own.name, content)

    return replaced


def test_kernels_and_entries_are_the_ones_that_were_compared(
    replace: Any, path: Path
) -> None:
    loaded(path)
    replace()
    with pytest.raises(skforge.exceptions.VerificationError):
        skforge.load(path).predict_proba(X[:1])


def test_a_kernel_that_is_replaced_before_the_note_is_not_noted(
    replace: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = note.Note.__call__

    def late(self: Any, predictor: Any, method: str) -> None:
        replace()
        honest(self, predictor, method)

    monkeypatch.setattr(note.Note, "__call__", late)
    same(skforge.load(path).predict_proba(X[:2]), FOREST.predict_proba(X[:2]))
    with pytest.raises(skforge.exceptions.VerificationError):
        skforge.load(path).predict_proba(X[:1])


def test_another_table_of_schedules_has_a_note_of_its_own(path: Path) -> None:
    loaded(path, "predict")
    other = skforge.load(path)
    other.schedule_ = {(1, 20): Schedule(), (21, None): Schedule().pad_trees()}
    other.predict_proba(X)
    fast = skforge.load(path)
    for rows in (X[:1], X):
        same(fast.predict_proba(rows), FOREST.predict_proba(rows))
    assert is_ready(fast)
    same(fast.predict(X), FOREST.predict(X))
    assert not is_ready(fast)  # its entry was one of the file's own table


def test_one_model_that_is_made_whole_does_not_stop_another(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=NAMES)
    row = frame.iloc[0].to_dict()
    path = saved(clone(FOREST).fit(frame, Y), tmp_path, frame)
    fast = loaded(path, rows=row)
    wanted = fast.predict_proba(row)
    with ready._lock, ThreadPoolExecutor(1) as pool:  # as _loaded holds it
        same(pool.submit(fast.predict_proba, row).result(timeout=20), wanted)


@pytest.mark.parametrize("lost", ["kernels", "objects", "all"])
def test_code_that_is_lost_is_compiled_again(
    lost: str, folder: Path, path: Path
) -> None:
    fast = loaded(path)
    ready._code_of.cache_clear()
    record = ready.key_of(path_digest(path))
    for kind in ("kernels", "objects") if lost == "all" else (lost,):
        for file in (folder / kind).iterdir():
            if file.name != record:
                file.unlink()
    assert is_ready(fast)
    same(fast.predict_proba(X[:2]), FOREST.predict_proba(X[:2]))
    assert not is_ready(fast)
    again = loaded(path)
    same(again.predict_proba(X[:2]), FOREST.predict_proba(X[:2]))
    assert is_ready(again)  # what was lost is looked up again


def path_digest(path: Path) -> str:
    return str(identity(content_of(path)))


def test_a_record_keeps_what_other_processes_noted(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, honest = [], object_cache.store

    def store(key: str, payload: bytes) -> None:
        if key == ready.key_of(path_digest(two)):
            written.append(json.loads(payload))
        honest(key, payload)

    monkeypatch.setattr(object_cache, "store", store)
    for rows, numbers in ((X, [0, 1]), (X[:1], [0, 1]), (X, [0, 1])):
        whole = skforge.load(two)
        assert vars(whole)["forest_"] is not None  # it is whole
        same(whole.predict_proba(rows), FOREST.predict_proba(rows))
        assert [place[0] for place in written[-1]["kernels"]] == numbers
    assert len(written) == 1
    fast = skforge.load(two)
    same(fast.predict_proba(X), FOREST.predict_proba(X))
    same(fast.predict_proba(X[:1]), FOREST.predict_proba(X[:1]))
    assert is_ready(fast)


def test_a_record_names_every_method_that_was_called(path: Path) -> None:
    for called in (("predict",), ("predict_proba",), ("predict_raw",)):
        loaded(path, *called)
    key = ready.key_of(path_digest(path))
    assert key is not None
    stored = object_cache.find(key)
    assert stored is not None
    record = json.loads(stored)
    assert {*record["entries"]} == {"predict", "predict_proba", "predict_raw"}


# ------------------------------------------------------------ threads


def test_threads_make_it_whole_once(path: Path) -> None:
    loaded(path)
    wanted = FOREST.predict_proba(X)
    for _ in range(10):
        fast = skforge.load(path)
        start = threading.Barrier(6)

        def call(number: int, fast: Any = fast, start: Any = start) -> None:
            start.wait()
            for at in range(40):
                rows = X[at : at + 1]
                given = pd.DataFrame(rows) if number == at % 7 else rows
                same(fast.predict_proba(given), wanted[at : at + 1])

        with ThreadPoolExecutor(6) as pool:
            assert [*pool.map(call, range(6))] == [None] * 6
        assert not is_ready(fast)
        assert sum(kind["calls"] for kind in fast.counters().values()) == 240
