"""Categories of HistGradientBoosting* in all kinds and forms, bit by bit."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, VotingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

import skforge
from skforge.exceptions import (
    InvalidInputError,
    SourceNeededError,
    UnsupportedModelError,
    VerificationWarning,
)
from tests.comparing import in_every_state, refusal, saved
from tests.plain import fit_both, plain
from tests.sklearn_rows import same_bits

pd = pytest.importorskip("pandas")

N = 300
RNG = np.random.default_rng(0)
PEOPLE = pd.DataFrame(
    {
        "job": RNG.choice(["a", "b", "c"], N),
        "pay": RNG.gamma(2, 9, N),
        "old": RNG.random(N) < 0.3,
    }
)
Y = ((PEOPLE.pay > 15) ^ (PEOPLE.job == "b")).to_numpy(int)
OBJECTS = np.c_[RNG.integers(0, 4, N), RNG.normal(size=N)].astype(object)


def boosted():
    return HistGradientBoostingClassifier(max_iter=4, categorical_features=[0])


def compiled(model, X):
    return plain(model).fit(X)


def same_answers(fast, model, rows):
    for X in rows:
        same_bits(fast.predict_proba(X), model.predict_proba(X))
        same_bits(fast.predict(X), model.predict(X))


def same_stored(fast, model, rows, folder):
    """Compare the answers of all states, and return these by name."""
    states = in_every_state(fast, folder)
    for state in states.values():
        same_answers(state, model, rows)
    return states


def by_kernels(fast, model, rows):
    same_answers(fast, model, rows)
    assert fast.counters()["library"]["calls"] == 0


WRAPPED = {
    "alone": lambda model: model,
    "calibrated": lambda model: CalibratedClassifierCV(model, cv=2),
    "voting": lambda model: VotingClassifier([("a", model)], voting="soft"),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_column_of_booleans_makes_objects_of_the_steps_rows(name, tmp_path):
    steps = make_column_transformer(
        (OrdinalEncoder(), ["job"]), remainder="passthrough"
    )
    model, fast = fit_both(make_pipeline(steps, WRAPPED[name](boosted())), PEOPLE, Y)
    rows = [PEOPLE, PEOPLE[:1], PEOPLE[["old", "pay", "job"]]]
    by_kernels(fast, model, rows)
    if name == "alone":
        same_stored(fast, model, rows, tmp_path)
    else:
        same_answers(pickle.loads(pickle.dumps(fast)), model, rows)
    floats = PEOPLE.astype({"old": float})  # its encoder fails on these
    said = refusal(TypeError, model.predict, floats)
    assert "isnan" in said and refusal(TypeError, fast.predict, floats) == said


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("form", ["array", "frame"])
def test_numbers_that_training_had_as_objects(name, form, tmp_path):
    X = OBJECTS if form == "array" else pd.DataFrame(OBJECTS, columns=["a", "b"])
    model, fast = fit_both(WRAPPED[name](boosted()), X, Y)
    same_answers(fast, model, [X, X[:1]])
    same_answers(pickle.loads(pickle.dumps(fast)), model, [X, X[:1]])
    with pytest.raises(TypeError, match="isnan"):
        fast.predict(X.astype(float))
    told = (
        "The HistGradientBoostingClassifier compares the categories of column 0 as "
        "Python's objects, the first of them 0.0, and a .skforge file has no place for "
        "these; fit it with numbers or texts there, or use joblib.dump."
    )
    for store in (
        fast.drop_estimator,
        lambda: skforge.save(fast, tmp_path / "model.skforge"),
    ):
        assert refusal(UnsupportedModelError, store) == told


def test_rows_that_the_model_itself_fails_on():
    model = boosted().fit(OBJECTS, Y)
    with pytest.raises(InvalidInputError) as refused:
        compiled(model, OBJECTS.astype(float))
    assert type(refused.value.__cause__) is TypeError
    assert str(refused.value) == (
        "HistGradientBoostingClassifier.predict raises TypeError: "
        f"{refused.value.__cause__}. Compiled answers are compared with the model's; "
        "pass rows that it answers."
    )


# ------------------------------------------------- numbers of any size


NUMBERS = {
    "negative": [-1, 0, 1],
    "postal codes": [94110, 10001, 60601],
    "fractions": [0.1, 0.5, 2.5],
    "large": [2**53, 2**53 + 2, -(2**60)],
    "many": [*range(-100, 100)],
}


def coded(numbers, dtype=float):
    random = np.random.default_rng(1)
    place = random.integers(0, len(numbers), N)
    X = np.c_[np.array(numbers)[place].astype(dtype), random.normal(size=N)]
    return X, (place % 3 == 0) ^ (X[:, 1] > 0.5)


def odd(X):
    """Return rows with values that the encoder does not know."""
    every = []
    for value in (np.nan, -0.0, 0.0, 1e300, 5e-324, -1.0, 0.5):
        rows = X[:40].copy()
        rows[::2, 0] = value
        every.append(rows)
    every.append(np.c_[np.nextafter(X[:40, 0], 9e99), X[:40, 1]])
    return every


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_arrays_and_tables(name, tmp_path):
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    X, y = coded(NUMBERS[name])
    model = boosted().fit(X, y)
    rows = [X, X[:1], np.asfortranarray(X), X.tolist(), X[:1].tolist(), *odd(X)]
    rows += [X.astype("i8"), X.astype("u1"), pd.DataFrame(X)]
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        rows.append(X.astype("f4"))
    tables = [
        pl.DataFrame(X, schema=["a", "b"]),
        pa.table({"a": X[:, 0], "b": X[:, 1]}),
    ]
    fast = compiled(model, X)
    by_kernels(fast, model, [*rows, *tables])
    same_stored(fast, model, [*rows, *tables], tmp_path)
    infinite = X[:3].copy()
    infinite[1, 0] = np.inf
    with pytest.raises(ValueError, match="Input contains infinity"):
        fast.predict(infinite)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_the_dtype_category(name, tmp_path):
    X, y = coded(NUMBERS[name], object)
    numbers = pd.Series(X[:, 0].tolist())
    rest = X[:, 1].astype(float)
    frame = pd.DataFrame({"code": numbers.astype("category"), "x": rest})
    model = HistGradientBoostingClassifier(max_iter=4).fit(frame, y)
    gaps = frame.assign(code=frame.code.where(frame.x > 0))
    rows = [frame, frame[:1], gaps, frame.assign(code=numbers)]
    rows.append(frame[:9].assign(code=frame.code[:9].cat.remove_unused_categories()))
    rows.append(frame.assign(code=numbers.astype(float).astype("category")))
    if name != "fractions":
        rows.append(frame.assign(code=numbers.astype("Int64")))
    fast = compiled(model, frame)
    by_kernels(fast, model, rows)
    mappings = [{"code": a, "x": b} for a, b in zip(numbers, rest, strict=True)]
    unknown = {"code": [12345, None], "x": [0.1, 0.2]}
    for form in same_stored(fast, model, rows, tmp_path).values():
        same_bits(form.predict_proba(mappings), model.predict_proba(frame))
        alone = pd.DataFrame(unknown)
        same_bits(form.predict_proba(unknown), model.predict_proba(alone))


def test_integers_that_float64_does_not_hold():
    X = np.c_[np.int64(2**53) + np.arange(N) % 3, np.arange(N)]
    model = boosted().fit(X, (X[:, 0] % 2 == 0) ^ (X[:, 1] > 200))
    same_answers(compiled(model, X), model, [X, X[:1], X[1:2], X.astype(float)])


def test_unsigned_integers_that_float64_does_not_hold(tmp_path):
    """Beside int64, they are float64 to the encoder."""
    rest = np.arange(N)
    X = np.c_[np.uint64(2**63) + np.arange(N, dtype=np.uint64) % 3, rest.astype("u8")]
    model = boosted().fit(X, (X[:, 0] % 2 == 0) ^ (rest > 200))
    small = X - np.uint64(2**62)
    rows = [X, X[:1], X[1:2], X.astype(float), small, small.astype(int)]
    same_stored(compiled(model, X), model, rows, tmp_path)
    model.fit(small, rest > 200)
    assert refusal(UnsupportedModelError, compiled, model, small.astype(float)) == (
        "The categories of column 0 are whole numbers of the dtype uint64 up to "
        "4611686018427387906, and skforge keeps no dtype with them; fit the model with "
        "int64 there."
    )


def tables_of(**columns):
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    return [pl.DataFrame(columns), pa.table(columns), pd.DataFrame(columns)]


UNSEEN = "previously unseen labels"


@pytest.mark.parametrize("beside", ["numbers", "booleans"])
def test_booleans_of_frames_that_the_encoder_refuses(beside, tmp_path):
    """A table of several dtypes is one array of float64, but not to the encoder."""
    X, y = coded(NUMBERS["fractions"])
    frame = pd.DataFrame({"code": pd.Categorical(X[:, 0]), "x": X[:, 1]})
    model, fast = fit_both(HistGradientBoostingClassifier(max_iter=4), frame, y)
    loaded = saved(fast, tmp_path)
    flags = X[:6, 1] > 0
    for rows in tables_of(code=flags, x=flags if beside == "booleans" else X[:6, 1]):
        said = refusal(ValueError, model.predict, rows)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no comparison is needed to refuse them
            assert UNSEEN in said and refusal(ValueError, fast.predict, rows) == said
        with pytest.raises(SourceNeededError):
            loaded.predict(rows)


#: Categories, and whether the encoder takes booleans: it puts the first category, as a
#: boolean, for those that it does not know.
FLAGS = {
    "0 and 1": ([0, 1], True),
    "0 and another": ([0, 2], True),
    "1 and others": ([1, 3, 5], True),
    "a fraction and 1": ([0.5, 1, 2.5], True),
    "minus 1 to 1": ([-1, 0, 1], True),
    "neither": ([2, 3], False),
    "fractions": ([0.5, 2.5], False),
    "minus 1 and 0": ([-1, 0], False),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FLAGS)
def test_booleans_are_taken_as_the_encoder_takes_them(name, tmp_path):
    """Beside a gap polars makes objects of them, which it takes of every category."""
    pl = pytest.importorskip("polars")
    numbers, taken = FLAGS[name]
    X, y = coded(numbers)
    frame = pd.DataFrame({"code": X[:, 0], "x": X[:, 1]})
    model = HistGradientBoostingClassifier(max_iter=4, categorical_features=["code"])
    fast = compiled(model.fit(frame, y), frame)
    flags, rest = X[:6, 1] > 0, X[:6, 1]
    rows = [*tables_of(code=flags, x=rest), *tables_of(code=flags, x=flags)]
    floats = [rows[2].astype({"code": as_what}) for as_what in ("category", "boolean")]
    states = in_every_state(fast, tmp_path)
    for form in states.values():
        by_kernels(form, model, floats)  # scikit-learn makes floats of these
    gap = pl.DataFrame({"code": [True, None, False], "x": X[:3, 1]})
    for form in states.values():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            by_kernels(form, model, [gap] * 3)
        if not taken:  # although the form is known by now
            with pytest.raises((ValueError, SourceNeededError)):
                form.predict(gap[:1])
    for given in rows:
        if taken and "pyarrow" not in type(given).__module__:
            for form in states.values():
                same_answers(form, model, [given])
        if taken:
            continue
        said = refusal(ValueError, model.predict, given)
        assert UNSEEN in said
        for state, form in states.items():
            if state in ("dropped", "file"):
                refusal(SourceNeededError, form.predict, given)
            else:
                assert refusal(ValueError, form.predict, given) == said


@pytest.mark.parametrize("taken", [True, False])
def test_arrays_of_booleans(taken, tmp_path):
    X, y = coded([0, 2] if taken else [2, 3])
    model, live = fit_both(boosted(), X, y)
    stored, flags = saved(live, tmp_path), X > 0.5
    same_answers(stored, model, [flags.tolist()])  # objects to the encoder
    if taken:
        same_answers(stored, model, [flags])
        return
    said = refusal(ValueError, model.predict, flags)
    assert UNSEEN in said and refusal(ValueError, live.predict, flags) == said
    with pytest.raises(SourceNeededError):
        stored.predict(flags)


@pytest.mark.parametrize("dtype", [float, int])
def test_large_integers_of_tables(dtype, tmp_path):
    """Whole numbers that float64 rounds are compared as the column holds them."""
    codes = 2**53 + np.arange(N) % 4
    rest = np.random.default_rng(1).normal(size=N).astype(dtype)
    frame = pd.DataFrame({"code": pd.Categorical(codes), "x": rest})
    y = (codes % 2 == 0) ^ (rest > 0.5)
    model, fast = fit_both(HistGradientBoostingClassifier(max_iter=4), frame, y)
    gaps = [2**53 + 1, None, 2**53 + 3, 5]  # beside a gap, the encoder rounds, too
    rows = [*tables_of(code=codes, x=rest), *tables_of(code=codes[1:2], x=rest[1:2])]
    rows += tables_of(code=gaps, x=rest[:4])[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_stored(fast, model, rows, tmp_path)


def test_large_integers_that_scikit_learn_rounds_and_does_not(tmp_path):
    """Lists are objects to it, and nullable numbers and gaps in categories floats."""
    codes, rest = 2**53 + np.arange(N) % 4, np.arange(N) / 7
    frame = pd.DataFrame({"code": codes, "x": rest})
    model = HistGradientBoostingClassifier(max_iter=4, categorical_features=["code"])
    fast = compiled(model.fit(frame, codes % 2), frame)
    named = frame.astype({"code": "category"})
    rows = [frame.astype({"code": "Int64"}), named.assign(code=named.code.shift())]
    live, pickled, _, loaded = in_every_state(fast, tmp_path).values()
    lists = [[2**53 + 1, 5]] * 2, [[2**53 + 1, 0.5], [2**53, 0.5], [2.0**53 + 4, 0.5]]
    for form in (live, pickled):
        with warnings.catch_warnings():
            warnings.simplefilter("error", VerificationWarning)
            same_answers(form, model, [*rows, named, *lists])
    same_answers(loaded, model, [*rows, named, [[5, 0.5]]])
    for listed in lists:
        with pytest.raises(SourceNeededError):
            loaded.predict(listed)


def test_large_integers_beside_missing_booleans(tmp_path):
    """They are objects to the encoder, and compared exactly."""
    pl = pytest.importorskip("polars")
    codes = 2**53 + np.arange(N) % 4
    frame = pd.DataFrame({"flag": np.arange(N) % 3 % 2, "code": codes, "x": PEOPLE.pay})
    model = HistGradientBoostingClassifier(max_iter=4, categorical_features=[0, 1])
    fast = compiled(model.fit(frame, codes % 2), frame)
    rows = pl.DataFrame(frame[:9].assign(flag=[None, True, False] * 3).to_dict("list"))
    live, pickled, _, loaded = in_every_state(fast, tmp_path).values()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for form in (live, pickled):
            same_answers(form, model, [rows])
        with pytest.raises(SourceNeededError):
            loaded.predict(rows)


def test_texts_beside_numbers(tmp_path):
    X, y = coded(NUMBERS["postal codes"], int)
    jobs = PEOPLE.job.astype("category")
    frame = pd.DataFrame({"zip": X[:, 0].astype(int), "x": X[:, 1], "job": jobs})
    model = HistGradientBoostingClassifier(
        max_iter=4, categorical_features=["zip", "job"]
    ).fit(frame, y)
    unknown = frame.assign(job=pd.Categorical(["new"] * N))
    rows = [frame, frame[:1], frame.assign(job=PEOPLE.job), unknown]
    fast = compiled(model, frame)
    by_kernels(fast, model, rows)
    same_stored(fast, model, rows, tmp_path)


def test_texts_of_tables(tmp_path):
    """As in frames; scikit-learn makes an array of objects of all categories."""
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    X, y = coded(NUMBERS["postal codes"], int)
    jobs = PEOPLE.job.astype(object)
    frame = pd.DataFrame({"zip": X[:, 0].astype(int), "x": X[:, 1], "job": jobs})
    model = HistGradientBoostingClassifier(
        max_iter=4, categorical_features=["zip", "job"]
    ).fit(frame, y)
    gaps = frame.astype({"zip": "Int64"})
    gaps.loc[::3, "job"] = None
    gaps.loc[::4, "zip"] = pd.NA
    gaps.loc[1, "job"] = "new"
    rows = []
    for given in (frame, frame[:1], frame[:300], gaps, gaps[:1]):
        types = {"job": pa.string()}
        table = pa.table({k: pa.array(given[k], types.get(k)) for k in given})
        polars = pl.from_arrow(table)
        job = sorted({*polars["job"].drop_nulls(), "other"})
        kinds = pl.Categorical, pl.Enum(job)
        rows += [table, polars, *(polars.cast({"job": kind}) for kind in kinds)]
        rows.append(polars.cast({"zip": pl.Float32}))
        if given["job"].notna().all():
            coded_jobs = table["job"].combine_chunks().dictionary_encode()
            rows.append(table.set_column(2, "job", coded_jobs))
    fast = compiled(model, frame)
    by_kernels(fast, model, rows)
    states = same_stored(fast, model, rows, tmp_path)
    # NumPy's array of such a column has the last text in place of missing ones
    nulls = pa.array(gaps["job"]).dictionary_encode()
    table = pa.table({"zip": frame["zip"], "x": frame["x"], "job": nulls})
    same_answers(fast, model, [table])
    with pytest.raises(SourceNeededError):
        states["file"].predict(table)


def kinds_of_objects():
    ages = pd.cut(PEOPLE.pay, [0, 10, 20, 200])
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(np.arange(N) % 5, "D")
    spans = pd.Series(pd.to_timedelta(np.arange(N) % 5, "D"))
    months = pd.Series(pd.period_range("2020-01", periods=5, freq="M"))
    return {
        "intervals": ages,
        "dates": pd.Series(days).astype("category"),
        "spans": spans.astype("category"),
        "months": months[np.arange(N) % 5].reset_index(drop=True).astype("category"),
    }


@pytest.mark.parametrize("name", kinds_of_objects())
def test_categories_that_are_objects(name, tmp_path):
    column = kinds_of_objects()[name]
    frame = pd.DataFrame({"kind": column, "x": PEOPLE.pay})
    model = HistGradientBoostingClassifier(max_iter=4).fit(frame, Y)
    gaps = frame.assign(kind=column.where(PEOPLE.old))
    few = frame[:5].assign(kind=column[:5].cat.remove_unused_categories())
    fast = compiled(model, frame)
    by_kernels(fast, model, [frame, frame[:1], gaps, few])
    for form in (fast, pickle.loads(pickle.dumps(fast))):
        same_answers(form, model, [frame, frame[:1], gaps, few])
    first = column.cat.categories.to_numpy().tolist()[0]
    assert refusal(
        UnsupportedModelError, skforge.save, fast, tmp_path / "model.skforge"
    ) == (
        "The HistGradientBoostingClassifier compares the categories of column 0 as "
        f"Python's objects, the first of them {first!r}, and a .skforge file has no "
        "place for these; fit it with numbers or texts there, or use joblib.dump."
    )


@pytest.mark.parametrize("name", WRAPPED)
def test_minus_one_for_missing_texts(name, tmp_path):
    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -2}
    steps = make_column_transformer(
        (OrdinalEncoder(encoded_missing_value=-1, **unknown), ["job"]),
        remainder="passthrough",
    )
    frame = PEOPLE.drop(columns="old")
    frame["job"] = frame.job.where(PEOPLE.old, None)
    frame["zip"] = np.array(NUMBERS["postal codes"])[np.arange(N) % 3]
    last = HistGradientBoostingClassifier(max_iter=4, categorical_features=[0, 2])
    model = make_pipeline(steps, WRAPPED[name](last)).fit(frame, Y)
    rows = [frame, frame[:1], frame.assign(job="new"), frame.assign(zip=5)]
    fast = compiled(model, frame)
    by_kernels(fast, model, rows)
    same_stored(fast, model, rows, tmp_path)


def test_forests_and_libraries_have_no_code_for_numbers(tmp_path):
    X, y = coded([-1, 0, 1])
    model = boosted().fit(X, y)
    assert refusal(UnsupportedModelError, skforge.compile_forest, model) == (
        "Column 0 holds categories that are numbers, such as -1.0, and rows of a "
        "Forest would hold their codes instead; use CompiledForest(model), which reads "
        "the numbers."
    )
    assert refusal(
        UnsupportedModelError, skforge.export, compiled(model, X), tmp_path / "library"
    ) == (
        "The forest reads the numbers of column 0 as codes, which an exported library "
        "cannot compute; use skforge.save instead."
    )
