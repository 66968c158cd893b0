"""Shadow mode: the live model answers too (SKFORGE_CHECK), or instead (SKFORGE_OFF)."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skforge
from skforge import CompiledForest, InvalidInputError, config
from skforge.exceptions import SourceNeededError
from skforge.persistence.ready import ReadyForest
from skforge.prediction.answering import Answering
from skforge.prediction.counters import ROUTES
from tests.kinds import MODELS
from tests.plain import plain
from tests.programs import run_python

pytestmark = pytest.mark.filterwarnings("ignore:X ")  # feature names

X, Y = make_classification(300, 6, n_informative=4, random_state=0)
X = X.astype(np.float32)
NAMES = [*"abcdef"]
FRAME = pd.DataFrame(X, columns=NAMES)


@pytest.fixture(autouse=True)
def no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave mistakes to the shadow: a door finds them before it, see test_doors."""
    monkeypatch.setattr(Answering, "_open_door", lambda *_: None)


METHODS = (
    *("predict", "predict_proba", "predict_log_proba", "decision_function"),
    *("score_samples", "apply", "predict_raw"),
)
EVERY_FORM = {
    "array": X,
    "one row": X[:1],
    "float64": X.astype(float),
    "list": X[:2].tolist(),
    "frame": FRAME,
    "one row of a frame": FRAME[:1],
    "dict": dict(zip(NAMES, X[0].tolist(), strict=True)),
    "dicts": FRAME[:3].to_dict("records"),
    "columns": FRAME[:3].to_dict("list"),
    "sparse": csr_matrix(X),
}


def forest(rows: Any = FRAME, **how: Any) -> RandomForestClassifier:
    model = RandomForestClassifier(5, max_depth=4, random_state=0, **how)
    return model.fit(rows, np.where(Y, "good", "bad"))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> CompiledForest:
    """Return a forest of which all calls are compared."""
    monkeypatch.setenv("SKFORGE_CHECK", "1")
    return plain(forest()).fit(FRAME)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Return what the logger says, as a list that grows."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert (record.name, record.levelno) == ("skforge", logging.WARNING)
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("skforge"), Lines(logging.WARNING)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def counts(fast: CompiledForest, what: str) -> tuple[int, int]:
    return tuple(fast.counters()[what].values())


def mistaken(fast: CompiledForest, row: int = 2) -> None:
    """Make the live model answer otherwise than it did when it was compiled."""
    tree = fast.estimator_.estimators_[0].tree_
    leaf = tree.apply(X[row : row + 1])[0]
    tree.value[leaf] = tree.value[leaf][:, ::-1] + 0.5


#: A model of each way in which answers are computed.
SOURCES: dict[str, Callable[[], Any]] = {
    "forest on two threads": lambda: forest(n_jobs=2),
    "targets": MODELS["forest of labels"].fitted,
    "folded": lambda: make_pipeline(StandardScaler(), forest()).fit(FRAME, Y),
    "steps": lambda: make_pipeline(PCA(3), forest()).fit(FRAME, Y),
    "calibrated": lambda: CalibratedClassifierCV(forest(), cv=2).fit(FRAME, Y),
    "members": lambda: StackingClassifier(
        [("a", RandomForestClassifier(3, random_state=0)), ("b", forest())],
        LogisticRegression(),
        cv=2,
    ).fit(FRAME, Y),
    **{
        f"{name} of a frame": MODELS[f"{name} of a frame"].fitted
        for name in ("isolation", "gb", "extra", "xgboost", "lightgbm", "catboost")
    },
    "xgboost, booster": MODELS["xgboost, booster"].fitted,
    "lightgbm, booster": MODELS["lightgbm, booster"].fitted,
}


@pytest.mark.parametrize("name", SOURCES)
def test_answers_agree_in_every_form_of_rows(name, monkeypatch, said):
    monkeypatch.setenv("SKFORGE_CHECK", "1")
    model = SOURCES[name]()
    fast, n_calls, n_rows = plain(model).fit(FRAME), 0, 0
    for method in METHODS:
        if not hasattr(fast, method) or (name, method) == ("members", "predict_raw"):
            continue
        for rows in EVERY_FORM.values():
            for _ in range(2):  # the second call may have an entry
                try:
                    answer = getattr(fast, method)(rows)
                except (TypeError, ValueError):  # rows that the model refuses
                    continue
                n_calls += 1
                n_rows += len(answer[0] if isinstance(answer, list) else answer)
    assert said == [] and n_calls >= (10 if "booster" in name else 20)
    assert counts(fast, "checked") == (n_calls, n_rows)
    assert counts(fast, "different") == (0, 0)


def test_calls_with_arguments_agree(monkeypatch, said):
    monkeypatch.setenv("SKFORGE_CHECK", "1")
    model = MODELS["xgboost of a frame"].fitted()
    fast = plain(model).fit(FRAME)
    fast.predict(FRAME, iteration_range=(0, 2))
    fast.predict(FRAME, output_margin=True)  # the model itself answers
    assert counts(fast, "checked") == (2, 600) and said == []


def test_a_model_changed_after_fit_is_counted_and_its_first_difference_logged(
    checked, said
):
    right = checked.predict_proba(X)
    mistaken(checked)
    wanted = checked.estimator_.predict_proba(X)
    rows = np.flatnonzero((right != wanted).any(axis=1))
    assert 0 < len(rows) < len(X)
    for _ in range(3):
        assert np.array_equal(checked.predict_proba(X), right)  # skforge's own
    row, n = rows[0], len(rows)
    assert said == [
        f"predict_proba differs from a RandomForestClassifier's in {n} of 300 rows. "
        f"Row {row}: skforge gives {right[row].tolist()!r}, and the model "
        f"{wanted[row].tolist()!r}. Later differences of this CompiledForest are only "
        "counted."
    ]
    assert counts(checked, "checked") == (4, 1200)
    assert counts(checked, "different") == (3, 3 * len(rows))
    total = sum(checked.counters()[route]["calls"] for route in ROUTES)
    assert total == 4


@pytest.mark.sampled(12)
@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("method", ["predict_proba", "predict_raw", "apply"])
def test_differences_are_caught_in_every_form_of_rows(
    form, method, checked, said, monkeypatch
):
    rows = EVERY_FORM[form]
    for _ in range(2):
        getattr(checked, method)(rows)
    assert counts(checked, "different")[0] == 0
    model = copy.deepcopy(checked.estimator_)
    for tree in model.estimators_:
        tree.tree_.value[:] = tree.tree_.value[:, :, ::-1] * 0.25
    model.estimators_ = model.estimators_[::-1]  # other numbers of leaves
    monkeypatch.setattr(checked._predictor.source.origin, "model", model)
    right = getattr(checked, method)(rows)
    assert counts(checked, "different")[0] == 1 and len(said) == 1
    assert np.array_equal(right, getattr(checked, method)(rows))


def test_the_compiled_entry_itself_is_what_is_compared(monkeypatch, said):
    monkeypatch.setenv("SKFORGE_CHECK", "1")
    checked = plain(forest(X)).fit(X)
    checked.predict_proba(X[:1])
    before = counts(checked, "entry")
    bound = checked.predict_proba
    for i in range(5):
        bound(X[i : i + 1])
    assert counts(checked, "entry") == (before[0] + 5, before[1] + 5)
    entry = checked._predictor.entries["predict_proba"]
    assert entry.__self__.function is not None  # it is a method, as without checks
    assert counts(checked, "checked") == (6, 6) and said == []


def test_a_broken_kernel_is_caught(monkeypatch, said):
    monkeypatch.setenv("SKFORGE_CHECK", "1")
    fast = plain(SOURCES["targets"]()).fit(X)  # its probabilities have no entry
    scores = fast.predict_raw(X)
    scores[7, 3] = np.nextafter(scores[7, 3], 2)  # one bit of the second target
    monkeypatch.setattr(fast._predictor.engine, "run", lambda *_: scores)
    for _ in range(2):
        _, second = fast.predict_proba(X)
        assert second[7, 1] == scores[7, 3]
    assert counts(fast, "different") == (2, 2) and len(said) == 1
    text = "predict_proba differs from a RandomForestClassifier's in 1 of 300 rows. "
    assert said[0].startswith(text + f"Row 7: skforge gives {second[7].tolist()!r}")


def test_a_broken_entry_is_caught(checked, said, monkeypatch):
    checked.predict(X[:3])
    right = checked.predict(X[:3])
    predictor = checked._predictor
    monkeypatch.setattr(
        type(predictor), "method", lambda *_: lambda owner, X: right[::-1].copy()
    )
    wrong = right[::-1] != right
    assert np.array_equal(checked.predict(X[:3]), right[::-1])
    assert counts(checked, "different") == (int(wrong.any()), int(wrong.sum()))


def test_shapes_dtypes_signs_and_nan_count(checked, said, monkeypatch):
    answers = iter(
        [np.zeros((3, 2), "f4"), np.zeros(3), np.zeros((3, 2)), -np.zeros((3, 2))]
    )
    predictor, nan = checked._predictor, np.full((3, 2), np.nan)
    monkeypatch.setattr(
        type(predictor), "method", lambda *_: lambda owner, X: next(answers)
    )
    monkeypatch.setattr(
        predictor.source, "call", lambda method, X, **params: np.zeros((3, 2))
    )
    for n in (1, 2, 2, 3):
        checked.predict_proba(X[:3])
        assert counts(checked, "different")[0] == n
    assert "gives float32 of shape (3, 2), and the model float64 of shape" in said[0]
    monkeypatch.setattr(type(predictor), "method", lambda *_: lambda owner, X: nan)
    monkeypatch.setattr(predictor.source, "call", lambda *_, **__: nan.copy())
    checked.predict_proba(X[:3])
    assert counts(checked, "different")[0] == 3 and len(said) == 1


def test_an_exception_of_the_model_changes_nothing(checked, said, monkeypatch):
    right = checked.predict(X)

    def fail(method, X, **params):
        raise RuntimeError("no memory\x00" + "x" * 5000)

    monkeypatch.setattr(checked._predictor.source, "call", fail)
    for _ in range(2):
        assert np.array_equal(checked.predict(X), right)
    assert counts(checked, "different") == (2, 600) and len(said) == 1
    assert "predict of 300 rows cannot be compared: a RandomForest" in said[0]
    assert "RuntimeError: no memory" in said[0] and len(said[0]) < 1200


def test_a_broken_handler_of_logs_changes_nothing(checked):
    class Broken(logging.Handler):
        def handle(self, record):
            raise OSError("disk full")

    logger, handler = logging.getLogger("skforge"), Broken()
    mistaken(checked)
    logger.addHandler(handler)
    try:
        checked.predict_proba(X)
    finally:
        logger.removeHandler(handler)
    assert counts(checked, "different")[0] == 1


def test_calls_that_raise_are_not_compared(checked, said):
    for bad in (X[:, :3], np.full((1, 6), np.inf), [["x"] * 6]):
        with pytest.raises((TypeError, ValueError)):
            checked.predict(bad)
    for call in (checked.predict, CompiledForest.predict):
        with pytest.raises(TypeError):
            call()
    assert counts(checked, "checked") == (0, 0) and said == []


def test_mappings_without_pandas_are_not_compared(checked, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert checked.predict(EVERY_FORM["dicts"]).shape == (3,)
    assert counts(checked, "checked") == (0, 0) and said == []


def test_arguments_pass_through(checked):
    proba = checked.predict_proba(X=X)
    out = np.empty_like(proba)
    assert checked.predict_proba(X, out=out) is out and np.array_equal(out, proba)
    assert np.array_equal(CompiledForest.predict_proba(checked, X), proba)
    assert str(inspect.signature(checked.predict_proba)) == str(
        inspect.signature(CompiledForest.predict_proba)
    ).replace("self: 'Any', ", "").replace("self, ", "")
    assert checked.predict_proba.__doc__ == Answering.predict_proba.__doc__
    assert counts(checked, "checked") == (3, 900)
    checked.score(X, checked.predict(X))
    assert counts(checked, "checked") == (5, 1500)
    checked.predict_contribs(X[:2])  # libraries have other bits
    assert counts(checked, "checked") == (5, 1500)


@pytest.mark.parametrize("share", [0.01, 0.25, 1.0])
def test_a_share_of_calls_is_compared(share, monkeypatch, said):
    monkeypatch.setenv("SKFORGE_CHECK", str(share))
    fast = plain(forest()).fit(FRAME)
    fast.predict(X[:1])
    assert counts(fast, "checked") == (1, 1)  # the first one shows that it works
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: fast.predict(X[i % 300 : i % 300 + 1]), range(1999)))
    calls, rows = counts(fast, "checked")
    assert calls == rows and abs(calls - 2000 * share) <= 2
    assert sum(fast.counters()[route]["calls"] for route in ROUTES) == 2000
    assert said == []


def test_no_period_of_calls_escapes_the_sample(monkeypatch):
    """Every n-th call, such as a health check, is compared about as often as others."""
    monkeypatch.setenv("SKFORGE_CHECK", "0.01")
    from skforge.prediction.shadow import _GOLDEN

    taken = np.arange(200_000) * _GOLDEN % 1 < 0.01
    for period in (2, 3, 5, 7, 10, 16, 60, 100, 144):
        assert 0.007 < taken[::period].mean() < 0.013


def test_threads_lose_no_comparison(checked):
    mistaken(checked)

    def calls(_):
        for _ in range(50):
            checked.predict_proba(X[2:4])

    checked.predict_proba(X[2:4])
    first = counts(checked, "different")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(calls, range(8)))
    assert counts(checked, "checked") == (401, 802)
    assert counts(checked, "different") == (401 * first[0], 401 * first[1])


def test_off_asks_the_model(monkeypatch, said):
    monkeypatch.setenv("SKFORGE_OFF", "1")
    monkeypatch.setenv("SKFORGE_CHECK", "1")  # then there is nothing to compare
    fast = plain(forest()).fit(FRAME)
    with pytest.MonkeyPatch.context() as patch:
        asked = []
        model = fast.estimator_
        for name in ("predict", "predict_proba", "predict_log_proba", "apply"):
            own = getattr(model, name)
            patch.setattr(
                model, name, lambda X, o=own, n=name: asked.append(n) or o(X), False
            )
            for rows in (X, X[:1], FRAME, EVERY_FORM["dict"], EVERY_FORM["dicts"]):
                wanted = own(fast._predictor.framed(rows))
                answer = getattr(fast, name)(rows)
                assert answer.dtype == wanted.dtype
                assert np.array_equal(answer, wanted)
    assert {name: asked.count(name) >= 5 for name in asked} == dict.fromkeys(
        ("predict", "predict_proba", "predict_log_proba", "apply"), True
    )
    out = np.empty((300, 2))
    assert fast.predict_proba(X, out=out) is out
    assert np.array_equal(fast.predict_raw(X), out)
    calls = fast.counters()
    assert calls.keys() == {*ROUTES} and calls["library"]["calls"] == 22
    assert sum(route["calls"] for route in calls.values()) == 22 and said == []
    with pytest.raises(TypeError, match="out"):
        fast.predict(X, out=out)


@pytest.mark.parametrize("name", ["steps", "calibrated", "members", "targets"])
def test_off_leaves_no_part_to_kernels(name, monkeypatch):
    model = SOURCES[name]()
    monkeypatch.setenv("SKFORGE_OFF", "on")
    fast = plain(model).fit(FRAME)
    wanted, members = model.predict_proba(FRAME), fast._predictor.source.members
    before = [member.counters() for member in members]
    assert np.array_equal(fast.predict_proba(FRAME), wanted)
    assert counts(fast, "library")[0] == 1
    assert [member.counters() for member in members] == before
    monkeypatch.delenv("SKFORGE_OFF")  # as fit laid out members, they still answer
    again = pickle.loads(pickle.dumps(fast))
    assert np.array_equal(again.predict_proba(FRAME), wanted)
    members = again._predictor.source.members
    assert all(member.counters()["library"]["calls"] == 0 for member in members)
    assert len(members) == 2 * (name == "members")


def test_off_notices_a_model_fitted_again(monkeypatch):
    monkeypatch.setenv("SKFORGE_OFF", "1")
    fast = plain(forest()).fit(FRAME)
    fast.estimator_.fit(FRAME, Y)
    with pytest.raises(skforge.InvalidModelError, match="has changed"):
        fast.predict(X)


def without_source(kind: str, fast: CompiledForest, tmp_path: Path) -> CompiledForest:
    if kind == "dropped":
        return fast.drop_estimator()
    skforge.save(fast, tmp_path / "m.skforge")
    if kind == "loaded":
        return skforge.load(tmp_path / "m.skforge")
    assert kind == "unpickled"
    return pickle.loads(pickle.dumps(fast.drop_estimator()))


@pytest.mark.parametrize("kind", ["dropped", "loaded", "unpickled"])
def test_without_a_model_a_check_warns_once_and_off_raises(
    kind, tmp_path, monkeypatch, said
):
    fast = plain(forest(X)).fit(X)
    monkeypatch.setenv("SKFORGE_CHECK", "1")
    bare = without_source(kind, fast, tmp_path)
    assert said == [] and "checked" in bare.counters()
    for _ in range(3):
        assert np.array_equal(bare.predict(X), fast.predict(X))
    assert said == [
        "SKFORGE_CHECK compares nothing: this CompiledForest was loaded, stripped or "
        "compiled from a file."
    ]
    assert bare.counters().keys() == {*ROUTES}
    assert "builtin" in str(type(bare.predict.__func__))  # as if it had not been set
    monkeypatch.setenv("SKFORGE_OFF", "1")
    bare = without_source(kind, fast, tmp_path)
    for method in ("predict", "predict_proba", "apply", "predict_raw"):
        with pytest.raises(SourceNeededError, match=f"so {method} needs the model its"):
            getattr(bare, method)(X)
    assert bare.classes_.tolist() == ["bad", "good"] and len(said) == 1


def test_a_file_in_the_cache_does_not_pass_off_by(tmp_path, monkeypatch):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    skforge.save(plain(forest()).fit(FRAME), tmp_path / "m.skforge")
    for _ in range(2):
        fast = skforge.load(tmp_path / "m.skforge")
        fast.predict(X[:1])
    assert type(skforge.load(tmp_path / "m.skforge")) is ReadyForest
    monkeypatch.setenv("SKFORGE_OFF", "1")
    with pytest.raises(SourceNeededError, match="Unset SKFORGE_OFF"):
        skforge.load(tmp_path / "m.skforge").predict(X[:1])


def test_files_of_libraries_have_no_model_to_ask(tmp_path, monkeypatch, said):
    module = pytest.importorskip("xgboost")
    module.XGBClassifier(n_estimators=3).fit(X, Y).save_model(tmp_path / "m.ubj")
    monkeypatch.setenv("SKFORGE_CHECK", "1")
    plain(tmp_path / "m.ubj").fit(X).predict(X)
    assert len(said) == 1 and "compiled from a file" in said[0]


def test_other_reductions_are_not_compared(monkeypatch, said):
    monkeypatch.setenv("SKFORGE_CHECK", "1")
    fast = CompiledForest(forest(), tuning="off", reduction="fast").fit(FRAME)
    fast.predict_proba(X)
    fast.predict_proba(X)
    assert said == ["SKFORGE_CHECK compares nothing: reduction='fast' has other bits."]


def test_copies_and_pickles_read_the_environment_anew(checked, monkeypatch, said):
    mistaken(checked)
    checked.predict_proba(X)
    bound = checked.predict_proba
    for other in (
        pickle.loads(pickle.dumps(checked)),
        copy.deepcopy(checked),
        pickle.loads(pickle.dumps(bound)).__self__,
    ):
        assert counts(other, "checked") == (0, 0)
        other.predict_proba(X)
        assert counts(other, "different") == (1, counts(checked, "different")[1])
    assert len(said) == 4  # the first difference of each
    monkeypatch.delenv("SKFORGE_CHECK")
    off = pickle.loads(pickle.dumps(checked))
    off.predict_proba(X)
    assert off.counters().keys() == {*ROUTES} and "_shadow" not in vars(off)
    checked.predict_proba(X)  # is compared until it is fitted again
    assert counts(checked, "checked") == (2, 600)
    assert checked.fit(FRAME).counters().keys() == {*ROUTES}


def test_a_method_bound_before_the_first_call_is_compared(checked):
    fresh = pickle.loads(pickle.dumps(checked))
    assert "_predictor" not in vars(fresh)
    bound = fresh.predict
    for _ in range(3):
        bound(X)
    assert counts(fresh, "checked") == (3, 900)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    fast, path = plain(forest()).fit(FRAME), tmp_path_factory.mktemp("m") / "m.skforge"
    skforge.save(fast, path)
    return fast, path, pickle.dumps(fast)


@pytest.mark.parametrize("text", ["yes", "2", "-1", "nan", "inf", "1e-2x", "on", "1,0"])
def test_bad_shares_are_refused(text, stored, monkeypatch):
    fast, path, pickled = stored
    monkeypatch.setenv("SKFORGE_CHECK", text)
    untrained = plain(RandomForestClassifier(3))
    for call in (
        lambda: untrained.fit(FRAME, Y),
        lambda: pickle.loads(pickled),
        lambda: skforge.load(path),
    ):
        with pytest.raises(InvalidInputError) as error:
            call()
        assert str(error.value) == (
            f"SKFORGE_CHECK is {text!r}, but it must be a number from 0 to 1, or off: "
            "1 to compare all calls with the model, 0.01 one in a hundred, 0 none; off "
            "to compare nothing before a first answer, either."
        )
    fast.predict(X)  # goes on as it was made


@pytest.mark.parametrize("off", ["", "0", "off", "no", " "])
def test_off_and_zero_change_nothing(off, monkeypatch):
    monkeypatch.setenv("SKFORGE_OFF", off)
    monkeypatch.setenv("SKFORGE_CHECK", "0.0" if off == "no" else off)
    fast = plain(forest()).fit(FRAME)
    fast.predict(X)
    assert "_shadow" not in vars(fast) and fast.counters().keys() == {*ROUTES}


@pytest.mark.parametrize(
    ("text", "compares"), [("off", False), (" OFF", False), ("0", True), ("", True)]
)
def test_only_off_disables_comparisons_before_first_answers(
    text, compares, monkeypatch
):
    monkeypatch.setenv("SKFORGE_CHECK", text)
    assert (config.compares_forms(), config.share_compared()) == (compares, 0)


def test_an_unknown_word_switches_off_with_a_warning(monkeypatch):
    monkeypatch.setenv("SKFORGE_OFF", "ture")
    with pytest.warns(UserWarning, match="SKFORGE_OFF is 'ture'"):
        fast = plain(forest()).fit(FRAME)
    fast.predict(X)
    assert counts(fast, "library") == (1, 300)


COUNT = """
import os, sys, numpy as np
from sklearn.ensemble import RandomForestClassifier
from tests.plain import plain

X = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
model = RandomForestClassifier(3, random_state=0).fit(X, X[:, 0] > 0)

def look(frame, event, arg):
    frame.f_trace_opcodes = True
    if event == "opcode":
        name = frame.f_code.co_name
        code[name] = code.get(name, 0) + 1
    return look

for check in ("", "1"):
    os.environ["SKFORGE_CHECK"] = check
    fast, code = plain(model).fit(X), {}
    fast.predict(X), fast.predict(X), fast.apply(X), fast.apply(X)
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks here
    sys.settrace(look)
    fast.predict(X)
    sys.settrace(None)
    print(type(fast.predict.__func__).__name__, code)
"""


def test_no_instruction_is_added_when_it_is_off():
    """A call is one look-up of the method and the compiled entry, nothing else."""
    fast = plain(forest(X)).fit(X)
    fast.predict(X[:1])
    bound = fast.predict
    assert type(bound.__func__).__name__ == "builtin_function_or_method"
    assert bound.__func__.__self__.function is vars(Answering)["predict"]._method
    apply = fast.apply
    assert apply.__func__ is vars(Answering)["apply"]._method
    line, shadowed = run_python(COUNT).splitlines()
    kind, code = line.split(" ", 1)
    assert kind == "builtin_function_or_method"
    executed = eval(code)
    assert [*executed] == ["__get__"] and executed["__get__"] < 20, executed
    assert shadowed.startswith("function") and "shadowed" in shadowed
