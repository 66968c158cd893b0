"""No answer without a comparison: forms of rows, methods and files meet the model."""

from __future__ import annotations

import io
import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge import CompiledForest, Schedule
from skforge._container import Container
from skforge.exceptions import VerificationError, VerificationWarning
from skforge.forest.reference import reference_leaves
from skforge.persistence import artifact
from skforge.prediction import blocks, door, made_rows
from skforge.prediction.forms_met import form_of
from skforge.prediction.made_rows import Known
from skforge.prediction.stored_forms import _table
from skforge.rows.plain import PlainRows
from skforge.runtime.mappings import Mappings
from skforge.sources.base import Answers, Source
from skforge.sources.stored_model import StoredModel
from tests import forms
from tests.reliability.planting import Edit, planted

pytestmark = [
    pytest.mark.doors,
    pytest.mark.filterwarnings("ignore:X "),  # feature names
]

X, Y = make_classification(200, 6, n_informative=4, random_state=0)
FRAME = pd.DataFrame(X, columns=forms.COLUMNS)
ONE_KERNEL = Schedule()
FOREST = RandomForestClassifier(5, max_depth=4, random_state=0)
NARROW = FRAME.astype(np.float32)


def plain(model: Any, rows: Any) -> CompiledForest:
    return CompiledForest(model, schedule=ONE_KERNEL, tuning="off").fit(rows)


@pytest.fixture
def fast() -> CompiledForest:
    return plain(clone(FOREST).fit(X, Y), X)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the methods that a model is asked by, as it is asked."""
    methods: list[str] = []
    own = Source.call

    def call(source: Source, method: str, rows: Any, **params: Any) -> Any:
        methods.append(method)
        return own(source, method, rows, **params)

    monkeypatch.setattr(Source, "call", call)
    return methods


def mistaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reader of frames take the first column for the second."""
    own = PlainRows.read

    def read(rows: PlainRows, given: Any) -> Any:
        found = own(rows, given)
        if found is None or not isinstance(given, pd.DataFrame):
            return found
        turned = found[0].copy()
        turned[:, [0, 1]] = turned[:, [1, 0]]
        return turned, found[1]

    monkeypatch.setattr(PlainRows, "read", read)


def test_a_new_form_costs_two_calls_of_the_model(asked: list[str]) -> None:
    model = clone(FOREST).fit(FRAME, Y)
    fast = plain(model, FRAME)
    fast.predict_proba(X)
    del asked[:]
    for form in (FRAME, NARROW, X.tolist(), FRAME.to_dict("records")):
        fast.predict_proba(form)
        assert len(asked) <= 2 + 3  # it refuses infinities, so parts are asked for
        assert asked[:2] == ["predict_proba"] * 2
        del asked[:]
        for part in (form, FRAME[3:4] if form is FRAME else form):
            fast.predict_proba(part)
        assert asked == []


def test_a_misread_form_is_answered_by_the_model(fast, monkeypatch):
    expected = fast.estimator_.predict_proba(FRAME)
    mistaken(monkeypatch)
    with pytest.warns(VerificationWarning) as caught:
        answers = fast.predict_proba(FRAME)
    assert np.array_equal(answers, expected)
    assert np.array_equal(fast.predict_proba(X), fast.estimator_.predict_proba(X))
    assert fast.counters()["different"] == {"calls": 1, "rows": 1}
    (warning,) = (w for w in caught if w.category is VerificationWarning)
    text = str(warning.message)
    assert text.startswith("predict_proba of these rows (DataFrame) gives [")
    assert ", but a RandomForestClassifier gives [" in text
    assert "The model itself answers such rows from now on, at its own speed." in text
    assert "'a': " in text and "'a': 'float64'" in text  # the row and its dtypes
    with warnings.catch_warnings():
        warnings.simplefilter("error", VerificationWarning)
        before = fast.counters()["library"]["calls"]
        assert np.array_equal(fast.predict_proba(FRAME[:3]), expected[:3])
    assert fast.counters()["library"]["calls"] == before + 1


def test_nothing_is_compared_if_it_is_switched_off(fast, monkeypatch):
    monkeypatch.setenv("SKFORGE_CHECK", "off")
    fast = pickle.loads(pickle.dumps(fast))
    mistaken(monkeypatch)
    assert (fast.predict_proba(FRAME) != fast.estimator_.predict_proba(FRAME)).any()


def test_every_dtype_meets_the_model(fast, monkeypatch):
    own = PlainRows._array

    def read(rows: PlainRows, given: Any) -> Any:
        return own(rows, given if given.dtype != np.int64 else given + 1)

    fast.predict(X)
    monkeypatch.setattr(PlainRows, "_array", read)
    whole = np.rint(X * 9).astype(np.int64)
    with pytest.warns(VerificationWarning):
        assert np.array_equal(fast.predict(whole), fast.estimator_.predict(whole))


@pytest.mark.parametrize("method", ["predict_log_proba", "decision_function", "apply"])
def test_every_method_meets_the_model(method, monkeypatch):
    model = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(X, Y)
    fast, rows = plain(model, X), X if method == "apply" else FRAME
    expected = getattr(model, method)(rows)
    if method == "apply":
        own = Answers.leaves
        monkeypatch.setattr(Answers, "leaves", lambda *given: own(*given) + 1)
    else:
        mistaken(monkeypatch)
    with pytest.warns(VerificationWarning, match=method.partition("_log")[0]):
        assert np.array_equal(getattr(fast, method)(rows), expected)


def test_rounds_meet_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(X, Y)
    fast = plain(model, X)
    mistaken(monkeypatch)
    with pytest.warns(VerificationWarning, match="predict_proba"):
        answers = fast.predict_proba(FRAME, num_iteration=2)
    assert np.array_equal(answers, model.predict_proba(FRAME, num_iteration=2))


@pytest.mark.parametrize("library", ["sklearn", "lightgbm"])
def test_stages_meet_the_model(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {
        "sklearn": GradientBoostingClassifier(n_estimators=5, random_state=0),
        "lightgbm": LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1),
    }
    model = models[library].fit(X, Y)
    fast = plain(model, X)
    expected = [*fast.staged_predict_proba(X)]
    fast = pickle.loads(pickle.dumps(fast))
    source = type(fast._compiled().source)
    own = source.stage
    monkeypatch.setattr(source, "stage", lambda *given: own(*given)[:, ::-1])
    with pytest.warns(VerificationWarning, match="staged_predict_proba of these"):
        stages = [*fast.staged_predict_proba(X)]
    assert all(map(np.array_equal, stages, expected))
    assert np.array_equal(stages[-1], model.predict_proba(X))


def test_mappings_meet_the_model_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = clone(FOREST).fit(FRAME, Y)
    fast, own = plain(model, FRAME), Mappings._values
    row = FRAME.to_dict("records")[0]

    def values(mappings: Mappings, given: Any) -> Any:
        found = own(mappings, given)
        return found if [*given] == forms.COLUMNS else found[::-1]  # by their order

    monkeypatch.setattr(Mappings, "_values", values)
    with pytest.warns(VerificationWarning):
        fast.predict_proba(row)
    turned = dict(reversed(row.items()))
    assert np.array_equal(fast.predict_proba(turned), model.predict_proba(FRAME[:1]))


def test_rows_that_are_misread_are_not_explained(fast, monkeypatch):
    mistaken(monkeypatch)
    with pytest.warns(VerificationWarning, match="predict_raw"):  # noqa: SIM117
        with pytest.raises(VerificationError, match="they are not explained"):
            fast.predict_contribs(FRAME)
    out = np.empty((len(X), 2))
    with pytest.warns(VerificationWarning):
        fast.predict_proba(FRAME, out=out)
    assert np.array_equal(out, fast.estimator_.predict_proba(FRAME))


def test_answers_that_are_written_over_their_rows(fast, monkeypatch):
    monkeypatch.setattr(blocks, "MOST_VALUES", 256)
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 256)
    model = clone(FOREST).fit(X[:, :2], Y)
    fast = plain(model, X[:, :2])
    rows = np.ascontiguousarray(X[:, :2])
    expected = model.predict_proba(rows)
    unread = Edit(
        "prediction.of_out:written",
        "apart = arrays and not np.may_share_memory(X, out)",
        "apart = arrays",
    )
    with planted([unread]):
        memory = np.concatenate([rows, rows[:1]])
        with pytest.warns(VerificationWarning) as caught:
            out = fast.predict_proba(memory[:-1], out=memory[1:])
        assert np.array_equal(out, expected)
        assert np.shares_memory(out, memory)
        memory = np.concatenate([rows, rows[:1]])
        assert np.array_equal(fast.predict_proba(memory[:-1], out=memory[1:]), expected)
    text = str(caught[-1].message)
    assert text.startswith("predict_proba with an out that lies over the rows gives ")
    assert "Such answers are copied to out from now on." in text


# ------------------------------------------------------------ rows that are made


@pytest.mark.parametrize("name", forms.NUMBERS)
def test_made_rows_have_the_form_of_those_given(name: str) -> None:
    try:
        rows = forms.NUMBERS[name](FRAME.copy())
    except (ValueError, ArithmeticError):
        pytest.skip("this form cannot be made of these rows")
    cuts = {i: Known(np.array([-0.5, 0.1, 0.7])) for i in range(6)}
    made = made_rows.made_rows(rows, cuts, forms.COLUMNS)
    for batch, _ in made:
        assert form_of(batch) == form_of(rows)
        assert batch.shape[0] if hasattr(batch, "shape") else len(batch)


@pytest.mark.parametrize("name", forms.PASSENGERS)
def test_made_rows_of_numbers_and_texts(name: str) -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.gamma(2, 9, (9, 5)), columns=forms.PASSENGER_NUMBERS)
    frame = (frame > 20).astype(float)
    frame = frame.assign(sex=["m", "f", "m"] * 3, port=["S", "C", "Q"] * 3)
    rows = forms.PASSENGERS[name](frame)
    made = made_rows.made_rows(rows, {}, list(frame))
    assert [form_of(batch) for batch, _ in made] == [form_of(rows)] * 2
    assert [batch.ends[-1] for batch in made] == [len(batch.rows) for batch in made]


def test_made_numbers_lie_on_thresholds_and_beside_them() -> None:
    cut = 0.1
    for dtype in (np.float32, np.float64):
        rows, cuts = np.ones((1, 2), dtype), {1: Known(np.array([cut]))}
        ((made, _),) = made_rows.made_rows(rows, cuts, None)
        made = made[:, 1]
        near = {dtype(cut), np.nextafter(dtype(cut), dtype(1)), dtype(np.float32(cut))}
        assert near <= {*made.tolist(), *made}
        assert np.isnan(made).any() and np.isinf(made).any()


def test_made_rows_reach_the_nodes_whose_thresholds_they_have() -> None:
    model = LGBMClassifier(n_estimators=3, min_child_samples=2, verbose=-1).fit(X, Y)
    known = made_rows.known_columns(forest := skforge.load_forest(model), {})
    for whole in (X[:4], X[:4].tolist()):
        rows = np.array(made_rows.made_rows(whole, known, None)[0].rows)[:192]
        leaves = reference_leaves(forest, rows)
        moved = [reference_leaves(forest, rows + way) for way in (1e-9, -1e-9)]
        other = (np.array(moved) != leaves).any(axis=(0, 2))
        assert other.mean() > 0.6, "a small error in a row alone would not be seen"


def test_rows_of_wide_forests_have_values_in_the_columns_that_are_tested() -> None:
    wide = np.zeros((50, 3000))
    wide[:, [7, 2990]] = np.random.default_rng(0).normal(size=(50, 2))
    model = RandomForestClassifier(5, random_state=0).fit(wide, wide[:, 7] > 0)
    known = made_rows.known_columns(skforge.load_forest(model), {})
    for rows in (wide[:3], pd.DataFrame(wide[:3])):
        ((made, _),) = made_rows.made_rows(rows, known, None)
        assert form_of(made) == form_of(rows)
        several = [len(np.unique(column)) > 1 for column in np.asarray(made).T]
        assert {*np.flatnonzero(several)} == {*known} <= {*range(3000)}


def test_rows_that_the_model_refuses_are_refused(fast, monkeypatch):
    def refuses(source: Source, method: str, rows: Any, **params: Any) -> Any:
        raise TypeError("no such rows")

    monkeypatch.setattr(Source, "call", refuses)
    with (
        pytest.warns(VerificationWarning, match="gives TypeError: no such rows. The"),
        pytest.raises(TypeError, match="no such rows"),
    ):
        fast.predict_proba(FRAME)


def test_a_comparison_that_fails_breaks_no_call(fast, monkeypatch):
    def fails(*_: Any) -> Any:
        raise RuntimeError("an error of the comparison")

    monkeypatch.setattr(door.Door, "compare", fails)
    said = r"\(DataFrame\) cannot be compared \(RuntimeError: an error of the compar"
    with pytest.warns(VerificationWarning, match=said):
        answers = fast.predict_proba(FRAME)
    assert np.array_equal(answers, fast.estimator_.predict_proba(FRAME))


# ------------------------------------------------------------ save


def saved(model: Any) -> bytes:
    file = io.BytesIO()
    skforge.save(model, file)
    return file.getvalue()


def test_a_file_says_what_was_compared() -> None:
    steps = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["port"]),
        (StandardScaler(), ["a"]),
    )
    frame = FRAME[["a"]].assign(port=["S", "C"] * 100)
    model = make_pipeline(steps, RandomForestClassifier(3, random_state=0))
    fast = plain(model.fit(frame, Y), frame)
    content = np.frombuffer(saved(fast), np.uint8)
    compared = {
        one["form"]: one["methods"]
        for one in Container(content, "it").manifest["compared"]
    }
    methods = ["predict", "predict_proba", "predict_raw", "predict_log_proba", "apply"]
    known = {
        f"{form}{made}": methods
        for form in ("DataFrame", "mappings", "columns")
        for made in ("", ", made")
    }
    assert compared.items() >= known.items()
    others = {form: compared[form] for form in compared if form not in known}
    assert {"columns of arrays", "objects", "float32 columns"} <= others.keys()
    for form, asked in others.items():
        tables = form.startswith("pyarrow table")  # if pyarrow is imported
        assert asked == (methods if tables else ["predict_proba"])


def test_save_refuses_a_file_that_answers_otherwise(fast, tmp_path, monkeypatch):
    path = tmp_path / "fast.skforge"
    skforge.save(fast, path)
    before = path.read_bytes()
    own = PlainRows.read

    def read(rows: PlainRows, given: Any) -> Any:
        found = own(rows, given)
        stored = rows._r.estimator and isinstance(fast_of.get("model"), StoredModel)
        return (found[0] * 2, found[1]) if stored and found else found

    fast_of: dict[str, Any] = {}
    load = artifact.from_bytes

    def loaded(*given: Any) -> Any:
        model = load(*given)
        fast_of["model"] = model._stored
        return model

    monkeypatch.setattr(artifact, "from_bytes", loaded)
    fast.predict_proba(X), fast.predict(X)  # these have met the model
    monkeypatch.setattr(StoredModel, "answer_to_no_rows", lambda *_: np.zeros(3))
    monkeypatch.setattr(PlainRows, "read", read)
    with pytest.raises(VerificationError) as error:
        skforge.save(fast, path)
    text = str(error.value)
    assert text.startswith("Without its library, the model would answer ")
    assert "Nothing was saved." in text
    assert path.read_bytes() == before


@pytest.mark.parametrize("gaps", [False, True])
def test_large_whole_numbers_of_batches_are_rounded_as_by_lightgbm(gaps: bool) -> None:
    pa = pytest.importorskip("pyarrow")
    whole = 2**24 + np.arange(len(Y))
    frame = pd.DataFrame({"a": whole, "b": whole[::-1]})
    model = LGBMClassifier(n_estimators=9, min_child_samples=1, verbose=-1)
    model.fit(frame, whole % 3)
    given = frame.astype("Int64").mask(frame % 5 == 0) if gaps else frame
    (batch,) = pa.Table.from_pandas(given, preserve_index=False).to_batches()
    expected = model.predict_proba(batch)
    rounded = (expected != model.predict_proba(frame)).any()
    assert gaps or rounded, "the test could not fail"
    loaded = skforge.load(io.BytesIO(saved(plain(model, frame))))
    assert np.array_equal(loaded.predict_proba(batch), expected)


def test_tables_that_save_compares_have_no_index():
    pa = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0]}).iloc[[0, 1, 3]]
    table = _table(frame)
    assert isinstance(table, pa.Table)
    assert table.column_names == ["a"]


MISREAD = {
    "sparse columns": Edit(
        "rows.plain:dense_columns",
        "columns[i].sparse.to_dense()",
        "columns[i].sparse.to_dense().replace(columns[i].dtype.fill_value, 0)",
    ),
    "Arrow dictionaries": Edit(
        "rows.frames:any_numbers",
        "values = column.__arrow_array__().cast(arrow.value_type).to_numpy()",
        "chunk = column.__arrow_array__().combine_chunks()\n"
        "        codes = chunk.indices.fill_null(0).to_numpy()\n"
        "        values = chunk.dictionary.to_numpy().astype(float)[codes]",
    ),
}


@pytest.mark.parametrize("form", MISREAD)
def test_save_reads_rows_of_rarer_forms(form: str) -> None:
    pytest.importorskip("pyarrow")
    rows = FRAME.mask(np.random.default_rng(0).random(FRAME.shape) < 0.2)
    if form == "Arrow dictionaries":  # others are read as blocks
        rows["port"] = pd.Categorical(["S", "C"] * 100)
    model = LGBMClassifier(n_estimators=5, min_child_samples=5, verbose=-1, n_jobs=1)
    fast = plain(model.fit(rows, Y), rows)
    with planted([MISREAD[form]]), pytest.raises(VerificationError) as error:
        saved(fast)
    assert str(error.value).startswith(
        "Without its library, the model would answer predict_proba of "
        f"{form} otherwise: it gives "
    )


def test_save_asks_for_one_mapping_alone() -> None:
    model = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(FRAME, Y)
    fast = plain(model, FRAME)
    turned = Edit(
        "runtime.mappings:Mappings._row",
        "row, memory = self._free.pop()",
        "values = values[::-1]; row, memory = self._free.pop()",
    )
    with planted([turned]), pytest.raises(VerificationError) as error:
        saved(fast)
    assert " of mappings otherwise: it gives " in str(error.value)


@pytest.mark.parametrize("form", ["dok_matrix", "a date", "no finite threshold"])
def test_odd_forms_meet_the_model(form: str) -> None:
    gaps = np.where(X[:, :1] > 0, np.nan, 1.0)
    trained = {"a date": FRAME.assign(a=FRAME["a"] * 9)}.get(form, X)
    if form == "no finite threshold":
        trained = gaps
    model = RandomForestClassifier(5, random_state=0)
    if form == "a date":
        model = make_pipeline(make_column_transformer(("passthrough", ["a"])), model)
    fast = plain(model.fit(trained, Y), trained)
    rows: Any = gaps.tolist()
    if form == "dok_matrix":
        rows = sparse.dok_matrix(X[:9])
    elif form == "a date":
        rows = {**FRAME.iloc[0].to_dict(), "b": pd.Timestamp("2024-05-01")}
    with warnings.catch_warnings():
        warnings.simplefilter("error", VerificationWarning)
        answers = fast.predict_proba(rows)
    wanted = pd.DataFrame([rows]) if form == "a date" else rows
    assert np.array_equal(answers, model.predict_proba(wanted))


@pytest.mark.filterwarnings("error::skforge.exceptions.VerificationWarning")
def test_raw_scores_of_targets_have_the_order_of_kernels() -> None:
    several = MultiOutputRegressor(DecisionTreeRegressor(max_depth=3))
    model = several.fit(X, np.column_stack([X[:, 0], X[:, 1]]))
    fast = plain(model, X)
    for rows in (X, X[:1], FRAME.to_numpy()):
        assert fast.predict_raw(rows).flags.c_contiguous
        assert np.array_equal(fast.predict_raw(rows), model.predict(rows))
        assert fast.predict(rows).strides == model.predict(rows).strides
