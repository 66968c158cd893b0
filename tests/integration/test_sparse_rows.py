"""Sparse rows in every form and with every content end as the source says."""

from __future__ import annotations

import pickle
import re
import warnings
from functools import cache, partial

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from threadpoolctl import threadpool_limits

import skforge
from skforge import Schedule, compile_forest
from skforge.engine.sparse import SparseWalk
from skforge.exceptions import InvalidInputError, SkforgeError
from skforge.rows import sparse_rows
from skforge.rows.sparse_rows import most_entries
from tests.compared_calls import apart, called, difference
from tests.comparing import refusal, saved
from tests.plain import fit_both, plain

pd = pytest.importorskip("pandas")
sp = pytest.importorskip("scipy.sparse")
xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")

N, WIDTH = 60, 5
METHODS = ("predict", "predict_proba", "decision_function", "score_samples", "apply")
FEW = {"n_estimators": 4, "random_state": 0}
LEAVES = {"n_estimators": 4, "min_child_samples": 3, "verbose": -1}
FOREST, ISOLATION = RandomForestClassifier(**FEW), IsolationForest(**FEW)
XGB = xgboost.XGBRegressor(n_estimators=4)
MODELS = {
    "tree": DecisionTreeClassifier(random_state=0),
    **dict.fromkeys(("forest", "forest holes"), FOREST),
    "extra": ExtraTreesRegressor(**FEW),
    "boosted": GradientBoostingClassifier(**FEW),
    "hist": HistGradientBoostingRegressor(max_iter=4),
    **dict.fromkeys(("isolation", "isolation holes"), ISOLATION),
    "isolation some": clone(ISOLATION).set_params(max_features=3),
    "bag": BaggingRegressor(**FEW),
    "bag holes": BaggingClassifier(**FEW),
    "bag some": BaggingClassifier(max_features=3, bootstrap_features=True, **FEW),
    "ada": AdaBoostClassifier(**FEW),
    "xgb": xgboost.XGBClassifier(n_estimators=4),
    "xgb holes": XGB,
    "xgb zero": clone(XGB).set_params(missing=0.0),
    "xgb dart": clone(XGB).set_params(booster="dart"),
    "lgb": lightgbm.LGBMClassifier(**LEAVES),
    "lgb holes": lightgbm.LGBMRegressor(zero_as_missing=True, **LEAVES),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):
        yield


def data(holes=False):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, WIDTH)).round(1) * (rng.random((N, WIDTH)) < 0.6)
    if holes:
        X[rng.random(X.shape) < 0.1] = np.nan
    return X, rng.integers(0, 3, N)


@cache
def fitted(name):
    X, y = data("holes" in name)
    model, fast = fit_both(clone(MODELS[name]), X, y)
    return model, fast, fast.drop_estimator()


def entries(X, extra, value=None, dtype=np.float64):
    """Return CSR rows with ``extra`` more entries where there is one already."""
    rng = np.random.default_rng(1)
    rows, columns = np.nonzero(X)
    again = rng.choice(len(rows), extra, replace=extra > len(rows))
    data = np.concatenate([X[rows, columns], rng.normal(size=extra).round(1) * 4])
    if value is not None:
        data[len(rows) :: 3] = value
    rows, columns = np.append(rows, rows[again]), np.append(columns, columns[again])
    order = np.lexsort((rng.random(len(rows)), rows))
    starts = np.append(0, np.cumsum(np.bincount(rows, minlength=len(X))))
    return data[order].astype(dtype), columns[order], starts


def contents():
    """Yield what sparse rows may hold: data, indices and starts of CSR rows."""
    X, _ = data()
    plain = sp.csr_matrix(X)
    yield "plain", (plain.data, plain.indices, plain.indptr)
    yield "float32", (plain.data.astype("f4"), plain.indices, plain.indptr)
    yield "unsorted", entries(X, 0)
    for dtype in ("f8", "f4", "i8"):
        yield f"twice of {dtype}", entries(X, 20, dtype=dtype)
    yield "thrice", entries(X, 200)
    yield "twice with NaN", entries(X, 20, np.nan)
    yield "twice with zero", entries(X, 20, 0.0)
    odd = {"zero": 0.0, "NaN": np.nan, "infinity": np.inf, "large": 1e300}
    for name, value in odd.items():
        changed = plain.data.copy()
        changed[::7] = value
        yield name, (changed, plain.indices, plain.indptr)
    for dtype in ("i1", "u8", "?", "c16", "g"):
        yield dtype, (plain.data.astype(dtype), plain.indices, plain.indptr)


def forms(content):
    """Yield names and calls that make the same rows anew in each form."""
    values, indices, starts = content
    shape = len(starts) - 1, WIDTH
    rows = np.repeat(np.arange(shape[0]), np.diff(starts))
    by_row = indices.astype("i4"), starts.astype("i4")
    order = np.argsort(indices, kind="stable")
    places = np.append(0, np.cumsum(np.bincount(indices, minlength=WIDTH)))
    by_column = rows[order].astype("i4"), places.astype("i4")
    for container in ("matrix", "array"):
        csr, csc, coo, *others = (
            getattr(sp, f"{kind}_{container}")
            for kind in ("csr", "csc", "coo", "lil", "dia")
        )

        def compressed(make=csr, data=values, places=by_row):
            return make((data.copy(), *(p.copy() for p in places)), shape=shape)

        def wide(make=compressed):
            made = make()  # SciPy's matrices take the narrower type where they are made
            made.indices = made.indices.astype("i8")
            made.indptr = made.indptr.astype("i8")
            return made

        def triples(make=coo):
            return make((values.copy(), (rows, by_row[0])), shape=shape)

        yield f"csr {container}", compressed
        yield f"csr {container} of int64", wide
        yield f"csc {container}", partial(compressed, csc, values[order], by_column)
        yield f"coo {container}", triples
        if values.dtype.kind == "f":  # and the rest are made of these by the sources
            for make in others:
                yield f"{make.__name__}", lambda make=make, csr=compressed: make(csr())


#: What artifacts refuse where the source answers: contents, and forms.
REFUSED = {
    "bag": ("thrice", "of int64"),
    "ada": ("thrice", "^$"),
    "xgb": ("twice|thrice|infinity|large|^g$", "lil|dia"),
    "lgb": ("twice|thrice|i1|u8|[?]|^g$", "^$"),
}


TURNS = [0, *(pytest.param(turn, marks=pytest.mark.slow) for turn in (1, 2))]


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("walks", [False, True], ids=["dense", "by entries"])
@pytest.mark.parametrize("name", MODELS)
def test_every_form_ends_as_the_source_says(name, walks, turn, monkeypatch):
    """In each turn, a form meets a third of the contents, others in other models.

    Rows are made dense, or their entries alone lead to the leaves.
    """
    monkeypatch.setattr(SparseWalk, "pays", lambda *_: walks)
    model, fast, stored = fitted(name)
    content_refused, form_refused = REFUSED.get(name.split()[0], ("^$", "^$"))
    answered, first = 0, turn + walks + [*MODELS].index(name)
    for place, (content, given) in enumerate(contents(), first):
        for form, make in list(forms(given))[place % 3 :: 3]:
            for method in METHODS:
                source = getattr(model, method, None)
                if source is None or not hasattr(fast, method):
                    assert source is None, method
                    continue
                expected = called(source, make())  # some change what they are given
                where = content, form, method
                found = called(getattr(fast, method), make())
                assert not apart(found, expected, None), where
                found = called(getattr(stored, method), make())
                if expected[1]:
                    assert found[1], where
                elif found[1]:
                    assert found[1].startswith("SourceNeededError"), where
                    may = re.search(content_refused, content)
                    may = may or re.search(form_refused, form)
                    may = may or (name == "xgb dart" and form[:10] != "csr matrix")
                    # XGBoost before 3.3 refuses it, too
                    may = may or (name[:3], content, form[:3]) == ("xgb", "?", "csc")
                    assert may, (where, found)
                else:
                    pair = (found[0], "", []), (expected[0], "", [])
                    assert not apart(*pair, None), where
                    answered += 1
    assert answered > 10 or name == "hist"


def test_entries_of_a_place_are_counted_whatever_the_matrix_has_noted():
    X = sp.csr_matrix(([1.0, 2.0, 3.0], [0, 1, 1], [0, 1, 3]), shape=(2, 3))
    assert most_entries(X) == 2
    X.has_canonical_format = True
    assert most_entries(X) == 2
    assert most_entries(sp.csr_array((4, 3))) == 0
    unsorted = sp.csr_matrix(([1.0, 2.0], [2, 0], [0, 2]), shape=(1, 3))
    assert most_entries(unsorted) == 1
    thrice = sp.csr_matrix((np.ones(5), [1, 0, 1, 2, 1], [0, 5]), shape=(1, 3))
    assert most_entries(thrice) == 3


def test_an_artifact_says_which_sparse_rows_it_takes():
    twice = sp.csr_matrix(([1.0, 2.0], [0, 0], [0, 2]), shape=(1, 5))
    assert refusal(SkforgeError, fitted("lgb")[2].predict, twice) == (
        "predict of these rows (csr_matrix of shape (1, 5)) needs the LGBMClassifier "
        "itself, which this CompiledForest was saved without: alone, it takes sparse "
        "rows only as a csr_matrix of floats without duplicate entries (see "
        "sum_duplicates); use the original model."
    )


# ------------------------------------------------------------ modules


OF_MODULES = ("predict", "predict_raw", "apply", "predict_per_tree", "predict_contribs")


@cache
def module_of(name):
    return compile_forest(fitted(name)[0], schedule=Schedule())


@pytest.mark.sampled(18)
@pytest.mark.parametrize("made", [sp.csr_matrix, sp.csc_matrix, sp.coo_array])
@pytest.mark.parametrize("name", MODELS)
def test_modules_fill_absent_entries_as_the_source_does(name, made, monkeypatch):
    monkeypatch.setattr(sparse_rows, "DENSE_BYTES", 7 * WIDTH * 8)
    rows, absent = made(data()[0]), np.nan if name[:3] == "xgb" else 0.0
    module = module_of(name)
    dense = np.where(rows.toarray() == 0, absent, rows.toarray())
    for method in OF_MODULES:
        call = getattr(module, method)
        assert_array_equal(call(rows), call(dense))
        assert_array_equal(call(made((0, WIDTH))), call(dense[:0]))
    out = np.empty_like(module.predict(dense))
    assert module.predict(rows, out=out) is out
    assert_array_equal(out, module.predict(dense))
    background = made(data()[0][9:12])
    assert_array_equal(
        module.predict_contribs(rows, background=background),
        module.predict_contribs(dense, background=dense[9:12]),
    )
    if module.rounds is not None:
        stages = [*module.staged_predict(rows)], [*module.staged_predict(dense)]
        assert_array_equal(*stages)


@pytest.mark.parametrize("name", ["lgb", "lgb holes", "xgb", "xgb holes"])
def test_modules_of_boosters_and_files_take_sparse_rows(name, tmp_path):
    model, rows = fitted(name)[0], sp.csr_matrix(data()[0])
    if name.startswith("lgb"):
        booster, path = model.booster_, tmp_path / "model.txt"
        wanted, some = booster.predict(rows), booster.predict(rows, num_iteration=2)
        how = {"num_iteration": 2}
    else:
        booster, path = model.get_booster(), tmp_path / "model.json"
        matrix, how = xgboost.DMatrix(rows), {"iteration_range": (0, 2)}
        wanted, some = booster.predict(matrix), booster.predict(matrix, **how)
    booster.save_model(path)
    for source in (booster, path):
        module = compile_forest(source, schedule=Schedule())
        assert_array_equal(module.predict(rows), wanted)
        assert_array_equal(module.predict(rows, **how), some)


def test_modules_of_catboost_take_sparse_rows():
    library, rows = pytest.importorskip("catboost"), sp.csr_matrix(data()[0])
    how = {"iterations": 4, "verbose": 0, "allow_writing_files": False}
    model = library.CatBoostRegressor(**how).fit(rows, data()[1])
    module = compile_forest(model, schedule=Schedule())
    assert_array_equal(module.predict(rows), model.predict(rows))


def test_files_of_lightgbm_refuse_the_number_that_is_0_in_arrays_alone():
    model = fitted("lgb")[0]
    rows = sp.csr_matrix(np.full((1, WIDTH), -1.0000000180025095e-35))
    module = compile_forest(model, schedule=Schedule())
    forest = plain(skforge.load_forest(model)).fit(data()[0])
    for call in (module.predict, module.apply, forest.predict, forest.apply):
        assert refusal(InvalidInputError, call, rows) == (
            "the sparse rows hold -1.0000000180025095e-35, which is 0 to LightGBM "
            "unless rows are sparse, by row; write 0 in its place, or a smaller number."
        )
    by_column = sp.csc_matrix(rows)
    wanted = model.predict_proba(by_column)
    assert_array_equal(module.predict(by_column), wanted)


# ------------------------------------------------------------ answers by entries


def wide_rows(n, seed, width=2000, density=0.01):
    rng = np.random.default_rng(seed)
    X = sp.random(n, width, density, "csr", random_state=rng)
    return X, (X[:, : width // 2].sum(axis=1) > X[:, width // 2 :].sum(axis=1)).A1


WIDE = {
    "forest": RandomForestClassifier(20, random_state=0),
    "several targets": RandomForestRegressor(20, random_state=0),
    "boosted": GradientBoostingClassifier(n_estimators=20, random_state=0),
    "isolation": IsolationForest(n_estimators=20, random_state=0),
    "xgb": xgboost.XGBClassifier(n_estimators=20),
    "xgb classes": xgboost.XGBClassifier(n_estimators=10),
    "xgb zero": xgboost.XGBRegressor(n_estimators=20, missing=0.0),
    "lgb": lightgbm.LGBMClassifier(**{**LEAVES, "n_estimators": 20}),
    "lgb zero": lightgbm.LGBMRegressor(zero_as_missing=True, **LEAVES),
    "lgb holes": lightgbm.LGBMRegressor(**{**LEAVES, "n_estimators": 20}),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", WIDE)
def test_wide_rows_are_answered_without_a_dense_copy(name, monkeypatch, tmp_path):
    X, y = wide_rows(400, 0)
    if name == "xgb classes":
        y = y + np.arange(len(y)) % 3
    elif name == "several targets":
        y = np.stack([y, np.arange(len(y))], axis=1)
    elif name == "lgb holes":
        X.data[::9] = np.nan
    model = WIDE[name].fit(X, y)
    fast = plain(model, n_jobs=2).fit(X)
    loaded = saved(fast, tmp_path)

    def refuse(*_):
        raise AssertionError("the rows were made dense")

    monkeypatch.setattr("skforge.prediction.engines.dense_blocks", refuse)
    monkeypatch.setattr(SparseWalk, "pays", lambda *_: True)  # small forests do not
    for n in (1, 63, 300):
        rows, _ = wide_rows(n, n)
        if name == "lgb holes":
            rows.data[::7] = np.nan
        mixed = rows.copy()
        for first, last in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
            for part in (mixed.indices, mixed.data):
                part[first:last] = part[first:last][::-1].copy()
        mixed.has_sorted_indices = False
        for method in METHODS:
            if hasattr(model, method):
                expected = called(getattr(model, method), rows)
                for ours in (fast, loaded, pickle.loads(pickle.dumps(fast))):
                    for given in (rows, mixed):
                        found = called(getattr(ours, method), given)
                        assert not apart(found, expected, rows)


def test_rows_of_many_tests_are_answered_in_blocks(monkeypatch):
    model, fast, _ = fitted("forest")
    X = sp.csr_matrix(data()[0])
    expected = model.predict_proba(X)
    assert_array_equal(fast.predict_proba(X), expected)  # has compared both ways

    def refuse(*_):
        raise AssertionError("the entries were walked")

    monkeypatch.setattr(SparseWalk, "__call__", refuse)
    assert_array_equal(fast.predict_proba(X), expected)


def test_a_walk_that_differs_on_drawn_rows_never_answers(monkeypatch):
    X, y = wide_rows(200, 0)
    model = RandomForestClassifier(5, random_state=0).fit(X, y)
    walk = SparseWalk.__call__
    monkeypatch.setattr(SparseWalk, "__call__", lambda *a, **k: walk(*a, **k) + 1)
    fast = plain(model).fit(X)
    assert_array_equal(fast.predict_proba(X), model.predict_proba(X))


@pytest.mark.filterwarnings("ignore:Converting data to scipy")
@pytest.mark.parametrize("form", ["csc_matrix", "coo_matrix", "csr_array", "csc_array"])
def test_kernels_answer_every_form_for_lightgbm(form):
    model, fast, _ = fitted("lgb")
    X = getattr(sp, form)(data()[0])
    expected, before = model.predict_proba(X), fast.counters()["library"]
    assert_array_equal(fast.predict_proba(X), expected)
    assert fast.counters()["library"] == before


def test_lightgbm_passes_over_entries_of_a_column_that_come_too_late():
    model, fast, stored = fitted("lgb")
    X = sp.csc_matrix(data()[0])
    for starts in zip(X.indptr, X.indptr[1:], strict=False):
        column = slice(*starts)
        X.indices[column] = X.indices[column][::-1].copy()
        X.data[column] = X.data[column][::-1].copy()
    expected = model.predict_proba(X)
    assert (expected != model.predict_proba(X.tocsr())).any()
    assert_array_equal(fast.predict_proba(X), expected)
    with pytest.raises(SkforgeError):
        stored.predict_proba(X)


def test_fit_does_not_warn_of_the_form_of_rows():
    model = fitted("lgb")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain(model).fit(sp.csr_array(data()[0]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use_missing", [True, False])
@pytest.mark.parametrize("zero_as_missing", [True, False])
def test_entries_that_are_nearly_zero(zero_as_missing, use_missing, tmp_path):
    random = np.random.default_rng(0)
    how = {"random_state": 0, "data_rvs": random.standard_normal}
    X = sp.random(600, 2000, 0.02, "csr", **how)
    y = np.asarray(X[:, :40].sum(axis=1)).ravel() + random.normal(0, 0.1, 600)
    how = {"zero_as_missing": zero_as_missing, "use_missing": use_missing}
    how |= {"n_estimators": 30, "min_child_samples": 2, "verbose": -1}
    model = lightgbm.LGBMRegressor(**how)
    fast = plain(model.fit(X, y)).fit(X[:50])
    loaded = saved(fast, tmp_path)
    tiny = [0.0, -0.0, 1e-36, -1e-36, 1e-35, -1e-35, 5e-324, np.nan, 1e-34]
    for first in range(0, 600, 60):
        rows = X[first : first + 60].copy()
        some = random.random(rows.nnz) < 0.3
        rows.data[some] = random.choice(tiny, some.sum())
        expected = model.predict(rows)
        for one in (fast, loaded):
            assert_array_equal(one.predict(rows), expected)


@pytest.mark.parametrize("width", [20, 400])
@pytest.mark.parametrize("place", [0, 1, 2**30, -1])
def test_entries_in_no_column_are_refused(width, place):
    """Libraries read or write beside their memory for these."""
    X = sp.random(60, width, 0.1, "csr", random_state=0)
    model = RandomForestClassifier(3, random_state=0).fit(X, np.arange(60) % 2)
    fast = plain(model).fit(X)
    rows = X[:9].copy()
    rows.indices[rows.indptr[1] - 1] = place if place < 0 else width + place
    with pytest.raises(InvalidInputError, match=f"none of their {width} columns"):
        fast.predict(rows)


TREES = {
    "forest": RandomForestRegressor(**FEW),
    "forest of classes": FOREST,
    "extra": ExtraTreesRegressor(**FEW),
    "extra of classes": ExtraTreesClassifier(**FEW),
    "tree": DecisionTreeRegressor(random_state=0),
    "tree of classes": MODELS["tree"],
}


def trees(name, holes=False, outputs=1):
    X, y = data(holes)
    labels = y if outputs == 1 else np.c_[y, X[:, 1] > 0]
    model = clone(TREES[name]).fit(X, labels)
    return model, plain(model).fit(X)


def sparse_columns(rows, fill):
    return pd.DataFrame(rows).astype(pd.SparseDtype(rows.dtype, fill))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("name", TREES)
def test_missing_values_in_frames_of_sparse_columns(name, holes, outputs):
    model, fast = trees(name, holes, outputs)
    rows = data()[0]
    rows[::2, 0] = rows[1::3, 3] = np.nan
    frame = sparse_columns(rows, 0.0)
    for method in ("predict", "apply"):
        ours, theirs = getattr(fast, method), getattr(model, method)
        assert not difference(ours, theirs, frame), method
    finite = np.isfinite(fast.forest_.threshold).all()
    assert fast.counters()["kernel" if finite else "library"]["calls"] == 2


def test_the_model_itself_answers_where_a_tree_has_an_infinite_threshold():
    model, fast = trees("forest", holes=True)
    assert np.isinf(fast.forest_.threshold).any()
    frame = sparse_columns(data(holes=True)[0], 0.0)
    assert_array_equal(fast.predict(frame), model.predict(frame))
    assert fast.counters()["kernel"]["calls"] == 0


@pytest.mark.parametrize("name", ["forest", "extra", "tree", "isolation", "boosted"])
def test_frames_of_sparse_booleans_are_refused(name):
    model, fast, _ = fitted(name)
    frame = sparse_columns(data()[0] > 0, False)
    for method in ("predict", "apply"):
        if hasattr(fast, method):
            said = refusal(ValueError, getattr(model, method), frame)
            ours = refusal(ValueError, getattr(fast, method), frame)
            assert ours == said or name == "boosted"
