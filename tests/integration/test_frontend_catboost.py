"""Tests of ``unit/test_frontend_catboost.py`` that compile or start processes."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.multioutput import MultiOutputRegressor

import skforge
from skforge import CompiledForest, Schedule, compile_forest
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    SourceNeededError,
    UnsupportedModelError,
)
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.frontends import load_forest
from skforge.sources.find import read_model, source_of
from tests.by_reference import answer
from tests.comparing import refusal, saved
from tests.plain import plain
from tests.unit import test_frontend_catboost
from tests.unit.test_frontend_catboost import (
    DAMAGED,
    FILES,
    POLICIES,
    QUIET,
    N,
    classes,
    make_rows,
    raw_of,
    refused,
    same_bits,
    train,
)

contents = test_frontend_catboost.contents

cb = pytest.importorskip("catboost")
pandas = pytest.importorskip("pandas")
METHODS = ("predict", "predict_proba", "predict_log_proba")


def odd_rows(forest, n=300, seed=7):
    """Borders and their neighbours in both precisions, and no numbers."""
    random = np.random.default_rng(seed)
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e39, -1e39, 3.4028235e38, 1e-46]
    rows = random.choice(values, (n, forest.n_features))
    for feature in range(forest.n_features):
        near = forest.threshold[forest.feature == feature].astype(np.float64)
        if len(near):
            near = [near, near + 1e-12, np.nextafter(near, np.inf), near - 1e-12]
            at = random.random(n) < 0.6
            rows[at, feature] = random.choice(np.concatenate(near), at.sum())
    return rows


def check(model, X):
    """Compare scores, leaves and answers on given, drawn and odd rows.

    Kernels have tests of their own here: others walk the trees in NumPy.
    """
    forest = read_model(model)
    source = source_of(model, forest)
    for rows in (X, X[:1], draw_rows(forest, 65, 1, 0.1), odd_rows(forest)):
        same_bits(reference_raw(forest, rows), raw_of(model, rows))
        leaves = forest.source_node[reference_leaves(forest, rows)]
        wanted = model.calc_leaf_indexes(rows)
        np.testing.assert_array_equal(leaves[:, : wanted.shape[1]], wanted)
        for method in METHODS:
            if hasattr(model, method):
                found = answer(source, model, method, rows)
                assert found is not None or (np.abs(rows) > 3.4e38).any()
                if found is not None:
                    same_bits(found, getattr(model, method)(rows))
    return forest


def several(signal):
    return np.stack([signal > 0, signal > 0.5, signal < 0.2], 1).astype(int)


LOSSES = {
    **{loss: ("Regressor", loss, None) for loss in ("RMSE", "MAE", "Huber:delta=1")},
    **{loss: ("Regressor", loss, None) for loss in ("Quantile:alpha=0.7", "LogCosh")},
    **{loss: ("Regressor", loss, None) for loss in ("Expectile:alpha=0.3", "Cox")},
    "Poisson": ("Regressor", "Poisson", np.abs),
    "LogLinQuantile": ("Regressor", "LogLinQuantile", lambda y: np.abs(y) + 0.1),
    "Tweedie": ("Regressor", "Tweedie:variance_power=1.5", np.abs),
    "RMSEWithUncertainty": ("Regressor", "RMSEWithUncertainty", None),
    "MultiRMSE": ("Regressor", "MultiRMSE", lambda y: np.stack([y, y * y, -y], 1)),
    "MultiQuantile": ("Regressor", "MultiQuantile:alpha=0.2,0.5", None),
    "Logloss": ("Classifier", "Logloss", classes([0, 1])),
    "texts": ("Classifier", "Logloss", classes(["no", "yes"])),
    "flags": ("Classifier", "Logloss", classes([False, True])),
    "floats": ("Classifier", "Logloss", classes([1.0, 2.5])),
    "Focal": ("Classifier", "Focal:focal_alpha=0.3;focal_gamma=1", classes([0, 1])),
    "CrossEntropy": ("Classifier", "CrossEntropy", lambda y: (y > 0) * 0.7),
    "MultiClass": ("Classifier", "MultiClass", classes([3, 5, 9])),
    "four texts": ("Classifier", "MultiClass", classes(["a", "b", "ccc", "d"])),
    "three floats": ("Classifier", "MultiClass", classes([0.5, 1.0, 2.0])),
    "OneVsAll": ("Classifier", "MultiClassOneVsAll", classes([0, 1, 2])),
    "MultiLogloss": ("Classifier", "MultiLogloss", several),
    "MultiCrossEntropy": (
        "Classifier",
        "MultiCrossEntropy",
        lambda y: several(y) * 0.7,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_answers_of_each_loss_from_models_files_and_plain_data(name, tmp_path):
    kind, loss, target = LOSSES[name]
    X, signal = make_rows()
    y = signal if target is None else target(signal)
    model = train(kind, X, y, loss_function=loss)
    read, fast = check(model, X), plain(model).fit(X)
    for one in (fast, fast.drop_estimator()):
        same_bits(one.predict_raw(X).reshape(N, -1), raw_of(model, X))
        for method in METHODS:
            assert hasattr(one, method) == hasattr(model, method)
            if hasattr(model, method):
                same_bits(getattr(one, method)(X), getattr(model, method)(X))
    labels = set()
    for suffix in ("json", "cbm"):
        path = tmp_path / f"model.{suffix}"
        model.save_model(path, format=suffix)
        forest = load_forest(path)
        same_bits(reference_raw(forest, X), raw_of(model, X))
        assert (forest.outputs, forest.task) == (read.outputs, read.task)
        labels.add(forest.class_labels)
    assert len(labels) == 1
    fast = plain(path).fit(X)
    for method in METHODS[: 1 + (kind == "Classifier")]:
        same_bits(getattr(fast, method)(X), getattr(model, method)(X))


@pytest.mark.parametrize("suffix", ["json", "cbm"])
def test_names_of_targets_are_no_labels_of_files(suffix, tmp_path):
    X, signal = make_rows()
    how = {"loss_function": "MultiLogloss", "class_names": [5, 0, 1]}
    model = train("Classifier", X, several(signal), **how)
    model.save_model(tmp_path / "model", format=suffix)
    found, expected = plain(tmp_path / "model").fit(X).predict(X), model.predict(X)
    same_bits(found, expected)
    assert found.strides == expected.strides


@pytest.mark.parametrize("name", ["Logloss", "MultiClass", "MultiLogloss"])
def test_exports_choose_classes_as_integers(name, tmp_path):
    kind, loss, target = LOSSES[name]
    X, signal = make_rows()
    model = train(kind, X, target(signal), loss_function=loss, iterations=3)
    skforge.export(load_forest(model), tmp_path / "model")  # which runs it
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    columns = 3 if name == "MultiLogloss" else 1
    wanted = {"dtype": "int64", "columns": columns}
    assert facts["verified_here"] and facts["functions"]["predict_class"] == wanted


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("nan_mode", ["Min", "Max", "Forbidden"])
def test_trees_of_each_shape_send_missing_values_their_way(policy, nan_mode):
    X, y = make_rows(missing=0 if nan_mode == "Forbidden" else 0.2)
    model = train(X=X, y=y, grow_policy=policy, nan_mode=nan_mode, depth=6)
    forest = check(model, X)
    right = nan_mode == "Max"
    assert (forest.missing_left != right).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_all_kernels_of_the_default_schedules(policy):
    X, y = make_rows()
    for kind, target in (("Regressor", y), ("Classifier", classes([0, 1, 2])(y))):
        model = train(kind, X, target, grow_policy=policy, iterations=40)
        rows = draw_rows(load_forest(model), 1000, 3, 0.1)
        fast = CompiledForest(model, tuning="off").fit(X)
        for n in (1, 3, 64, 1000):
            same_bits(
                fast.predict_raw(rows[:n]),
                model.predict(rows[:n], prediction_type="RawFormulaVal"),
            )


@pytest.mark.parametrize(
    "seed",
    [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 150))],
)
def test_models_by_chance(seed):
    random = np.random.default_rng(seed)
    X, signal = make_rows(seed, missing=random.choice([0, 0.05, 0.4]))
    policy = random.choice(POLICIES)
    name = random.choice([*LOSSES])
    kind, loss, target = LOSSES[name]
    how = {"iterations": int(random.integers(1, 30)), "random_seed": seed}
    how |= {"depth": int(random.integers(1, 9)), "grow_policy": policy}
    how |= {"border_count": int(random.choice([2, 16, 254, 700]))}
    how |= {"nan_mode": random.choice(["Min", "Max"]), "loss_function": loss}
    how |= {"random_strength": float(random.choice([0, 5]))}
    model = train(kind, X, signal if target is None else target(signal), **how)
    leaves = model.get_leaf_values()
    spread = 10.0 ** random.integers(-6, 6, len(leaves))
    if random.random() < 0.5 and loss[:4] in ("RMSE", "MAE", "Mult", "Logl"):
        model.set_leaf_values(leaves * spread)
        path = model._serialize_model()
        model = type(model)(loss_function=loss).load_model(blob=path)
    check(model, X)


def test_rankers_and_models_without_a_kind_give_scores():
    X, signal = make_rows()
    group = np.repeat(np.arange(N // 10), 10)
    ranker = train("Ranker", X, np.digitize(signal, [0, 1]), {"group_id": group})
    assert check(ranker, X).task == "ranking"
    base = cb.CatBoost({"loss_function": "Logloss", "iterations": 5, **QUIET})
    assert check(base.fit(X, signal > 0), X).task == "regression"


def test_labels_above_a_threshold(tmp_path):
    X, signal = make_rows()
    model = train("Classifier", X, signal > 0)
    default = model.predict(X)
    for threshold in (0.25, 0.9):
        model.set_probability_threshold(threshold)
        check(model, X)
        assert (model.predict(X) != default).any()
        model.save_model(tmp_path / "model.cbm")
        same_bits(plain(tmp_path / "model.cbm").fit(X).predict(X), model.predict(X))


def test_shrunk_and_summed_models_and_those_that_go_on(tmp_path):
    X, signal = make_rows()
    first = train(X=X, y=signal)
    more = train(X=X, y=signal, fit={"init_model": first}, iterations=4)
    check(more, X)
    more.shrink(7, 2)
    check(more, X)
    check(cb.sum_models([first, more], weights=[0.3, 1.7]), X)
    two = [train("Classifier", X, signal > at) for at in (0, 0.3)]
    summed = cb.sum_models(two, weights=[0.5, 0.5])
    check(summed, X)
    summed.save_model(tmp_path / "model.cbm")
    same_bits(plain(tmp_path / "model.cbm").fit(X).predict_raw(X), summed.predict(X))


def test_other_methods_and_arguments_are_the_models_own(tmp_path):
    X, y = make_rows()
    model = train("Classifier", X, y > 0)
    fast = plain(model).fit(X)
    before = fast.counters()["library"]["calls"]
    for kind in ("RawFormulaVal", "Probability", "Class", "LogProbability"):
        same_bits(
            fast.predict(X, prediction_type=kind),
            model.predict(X, prediction_type=kind),
        )
    assert fast.counters()["library"]["calls"] == before + 1  # of logarithms
    stored = saved(fast, tmp_path)
    wanted = model.predict(X, prediction_type="Probability")
    same_bits(stored.predict(X, prediction_type="Probability"), wanted)
    same_bits(fast.predict(X, ntree_end=3), model.predict(X, ntree_end=3))
    assert fast.score(X, y > 0) == model.score(X, y > 0)
    assert fast.predict(X[0]) == model.predict(X[0])


def test_rankers_take_no_prediction_type(tmp_path):
    X, signal = make_rows()
    y, groups = np.digitize(signal, [0, 1]), np.arange(len(X)) // 10
    model = train("Ranker", X, y, {"group_id": groups})
    fast = plain(model).fit(X)
    stored = saved(fast, tmp_path)
    for method in ("predict", "staged_predict"):
        for how in ({}, {"ntree_end": 3}):
            wanted = np.array([*getattr(model, method)(X, **how)])
            for one in (fast, stored):
                same_bits([*getattr(one, method)(X, **how)], wanted)
        for one in (fast, stored):
            with pytest.raises(TypeError, match="argument 'prediction_type'"):
                [*getattr(one, method)(X, prediction_type="RawFormulaVal")]
    same_bits(stored.predict_raw(X), model.predict(X))
    how = {"loss_function": "YetiRank", "iterations": 3, "allow_writing_files": False}
    model = cb.CatBoost({**how, "verbose": 0}).fit(cb.Pool(X, y, group_id=groups))
    fast = plain(model).fit(X)
    for one in (fast, saved(fast, tmp_path)):
        same_bits(one.predict(X, prediction_type="RawFormulaVal"), model.predict(X))


@pytest.mark.parametrize("kind", ["named", "unnamed", "categories"])
def test_further_columns(kind, tmp_path):
    """CatBoost passes over them, and looks at no name of 0 rows."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    X, signal = make_rows(missing=0)
    frame = pd.DataFrame(X, columns=[*"abcde"])
    fit = {}
    if kind == "categories":
        frame, fit = frame.astype({"d": int}), {"cat_features": ["d"]}
    rows = frame if kind != "unnamed" else X
    model = train("Classifier", rows, signal > 0, fit)
    fast = plain(model).fit(rows)
    further = frame.assign(z=1.0)
    forms = [further, further[:0], frame[:0], further[:0].rename(columns={"a": "q"})]
    forms += [further.assign(z="text")[:0], further[["z", *"edcba"]][:0]]
    if kind != "categories":
        forms += [further.to_numpy(), further.to_numpy().tolist()]
        forms += [pl.DataFrame({name: further[name].to_numpy() for name in further})]
        forms += [forms[-1][:0]]
    arrays = [x.to_numpy(object if fit else float)[:0] for x in (further, frame)]
    forms += arrays
    for form in forms:
        for one in (fast, saved(fast, tmp_path)):
            same_bits(one.predict(form), model.predict(form))
            same_bits(one.predict_proba(form), model.predict_proba(form))
    if fit:
        floats = frame.to_numpy(float)[:0]
        for one in (model, fast, saved(fast, tmp_path)):
            with pytest.raises((cb.CatBoostError, SourceNeededError)):
                one.predict(floats)


def test_arguments_for_files_have_another_way(contents):
    X, _ = make_rows()
    fast = plain(contents[FILES[0]]).fit(X)
    rounds = "compile load_forest(model, iteration_range=(begin, end)), which reads "
    rounds += "the boosting rounds of your choice"
    for name, value, way in (
        ("prediction_type", "Class", "call predict_raw"),
        ("num_iteration", 2, rounds),
    ):
        said = refusal(InvalidInputError, fast.predict, X, **{name: value})
        assert said == f"predict of a model read from a file takes no {name}; {way}."


def test_a_changed_model_is_noticed():
    X, y = make_rows()
    model = train(X=X, y=y)
    fast = plain(model).fit(X)
    model.shrink(5)
    with pytest.raises(InvalidModelError, match="has changed since it was compiled"):
        fast.predict(X, ntree_end=2)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["RMSE", "MultiClass"])
def test_covers_are_training_rows_and_contributions_add_up(policy, name, tmp_path):
    kind, loss, target = LOSSES[name]
    X, signal = make_rows()
    y = signal if target is None else target(signal)
    model = train(kind, X, y, loss_function=loss, grow_policy=policy)
    model.save_model(tmp_path / "model.json", format="json")
    for forest in (load_forest(model), load_forest(tmp_path / "model.json")):
        reached = np.bincount(reference_leaves(forest, X).ravel())
        ends = np.flatnonzero(forest.leaf[: forest.tree_offset[8]] >= 0)
        rows = np.zeros(len(forest.leaf))
        rows[: len(reached)] = reached
        np.testing.assert_array_equal(forest.cover[ends], rows[ends])
    fast = plain(model).fit(X)
    values = fast.predict_contribs(X)
    np.testing.assert_allclose(values.sum(-1), fast.predict_raw(X), atol=1e-13)
    # CatBoost's values differ for other trees with one output
    if policy == "SymmetricTree" or name == "MultiClass":
        own = model.get_feature_importance(cb.Pool(X), type="ShapValues")
        np.testing.assert_allclose(values, own, atol=1e-13)


def test_contributions_need_numbers_that_float32_holds():
    X, y = make_rows()
    fast = plain(train(X=X, y=y, iterations=3)).fit(X)
    beyond = np.full((1, X.shape[1]), 1e300)
    fast.predict(beyond)
    with pytest.raises(InvalidInputError, match="with numbers that float32 holds"):
        fast.predict_contribs(beyond)


def test_an_unfitted_model_is_trained():
    X, y = make_rows()
    fast = plain(cb.CatBoostRegressor(iterations=5, **QUIET)).fit(X, y)
    same_bits(fast.predict(X), fast.estimator_.predict(X))
    assert refusal(InvalidModelError, load_forest, cb.CatBoostRegressor()) == (
        "This CatBoostRegressor is not fitted; call fit before load_forest."
    )


@pytest.mark.parametrize(
    "name", ["Poisson", "RMSEWithUncertainty", "MultiClass", "four texts"]
)
def test_scores_beyond_the_limits_of_the_exponential(name):
    kind, loss, target = LOSSES[name]
    X, signal = make_rows()
    model = train(
        kind, X, signal if target is None else target(signal), loss_function=loss
    )
    leaves, greatest = model.get_leaf_values(), np.abs(raw_of(model, X)).max()
    for largest in (700, 1500, 1e6):
        model.set_leaf_values(leaves * (largest / greatest))
        # its own predict goes on with the old values
        scaled = type(model)(loss_function=loss).load_model(
            blob=model._serialize_model()
        )
        check(scaled, X)
        assert np.abs(raw_of(scaled, X)).max() > 0.8 * largest


# ------------------------------------------------------------------- rows


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["text", "date", "category", "boolean", "Float64"])
def test_a_further_column_that_catboost_cannot_read(named, kind):
    """CatBoost does not read it, and takes numbers alone."""
    X, y = make_rows()
    frame = pandas.DataFrame(X.astype(np.float64), columns=list("abcde"))
    model = train(X=frame if named else X, y=y)
    fast = plain(model).fit(frame if named else X)
    further = {
        "text": "oslo",
        "date": pandas.Timestamp("2026-01-01"),
        "category": pandas.Categorical([*"xy"] * (N // 2)),
        "boolean": pandas.array([True, None] * (N // 2), "boolean"),
        "Float64": pandas.array([1.0, None] * (N // 2), "Float64"),
    }
    rows = frame.assign(z=further[kind])
    if kind == "Float64":
        library = fast.counters()["library"]["calls"]
        same_bits(fast.predict(rows), model.predict(rows))
        assert fast.counters()["library"]["calls"] == library
        return
    expected = refusal(cb.CatBoostError, model.predict, rows)
    assert refusal(cb.CatBoostError, fast.predict, rows) == expected


def test_frames_of_objects_are_numbers():
    X, y = make_rows()
    names = [f"c{i}" for i in range(X.shape[1])]
    frame = pandas.DataFrame(X.astype(float), columns=names)
    model = train(X=frame, y=y)
    fast = plain(model).fit(frame)
    objects = frame.astype(object)
    values = [None, True, np.bool_(False), 3, 2**53 + 1, 10**30, np.float32(0.1)]
    values += [Decimal("0.1"), np.int64(2**53 + 1), np.inf]
    for at, value in enumerate(values):
        objects.iloc[at::50, 0] = value
    rows = [objects, objects[:1], objects[names[::-1]], objects.assign(c0=frame.c0)]
    for one in rows:
        same_bits(fast.predict(one), model.predict(one))
    assert fast.counters()["library"]["calls"] == 0
    objects.iloc[3, 1] = 1e300  # infinite as float32
    same_bits(fast.predict(objects), model.predict(objects))
    for value in (pandas.NA, "x", 1j, 10**400):
        objects.iloc[3, 1] = value
        with pytest.raises(cb.CatBoostError):
            fast.predict(objects)
    flags = frame.assign(c0=pandas.array([True, None] * (N // 2), "boolean"))
    with pytest.raises(cb.CatBoostError):
        fast.predict(flags)
    flags = frame.assign(c0=X[:, 0] > 0)
    same_bits(fast.predict(flags), model.predict(flags))


@pytest.mark.parametrize("bias", [0.0, 1.25])
@pytest.mark.parametrize("scale", [0.3, -2.0])
def test_sums_are_scaled(scale, bias, tmp_path):
    X, y = make_rows()
    for kind, target, biases in (
        ("Regressor", y, bias),
        ("Classifier", y > 0, bias),
        ("Regressor", np.stack([y, -y], 1), [bias, 0.0]),
    ):
        loss = {"loss_function": "MultiRMSE"} if np.ndim(target) > 1 else {}
        model = train(kind, X, target, **loss)
        model.set_scale_and_bias(scale, biases)
        check(model, X)
        later = load_forest(model, iteration_range=(2, 5))
        same_bits(reference_raw(later, X), raw_of(model, X, ntree_start=2, ntree_end=5))
        stored = saved(plain(model).fit(X), tmp_path).predict_raw(X)
        same_bits(stored.reshape(len(X), -1), raw_of(model, X))
    with pytest.raises(UnsupportedModelError, match="only add leaf values"):
        skforge.export(load_forest(model), tmp_path / "library")
    with pytest.raises(UnsupportedModelError, match="multiplies its sums"):
        compile_forest(model).predict_contribs(X)


def test_members_of_a_wrapper_keep_their_scales():
    X, y = make_rows()
    both = np.stack([y, -y], 1)
    model = MultiOutputRegressor(cb.CatBoostRegressor(iterations=5, **QUIET))
    model.fit(X, both)
    for scale, member in enumerate(model.estimators_, 2):
        member.set_scale_and_bias(scale / 3, float(scale))
    same_bits(plain(model).fit(X).predict(X), model.predict(X))


def test_files_are_recognised_by_content(contents, tmp_path):
    X, _ = make_rows()
    for name, data in contents.items():
        path = tmp_path / f"{name}.dat"
        path.write_bytes(data)
        whole = load_forest(path)
        assert whole.content_hash() == load_forest(data).content_hash()
        module = compile_forest(path, schedule=Schedule())
        same_bits(module.predict_raw(X)[:, None], reference_raw(whole, X))
    assert (
        refusal(InvalidModelError, load_forest, b"CBM1\x48\x1c\0\0")
        == f"it has 8 bytes{DAMAGED}"
    )
    later = contents[FILES[0]].replace(b"FlabuffersModel_v1", b"FlabuffersModel_v2")
    assert refused(later) == (
        "The model has the format 'FlabuffersModel_v2' with 19 fields, not "
        "'FlabuffersModel_v1' with 19, which may change predictions, so the model "
        "cannot be compiled."
    )


@pytest.mark.parametrize("boosting", ["Plain", "Ordered"])
def test_the_bias_is_no_tree(boosting):
    X, y = make_rows()
    model = train(X=X, y=y, boosting_type=boosting)
    module, leaves = compile_forest(model), model.calc_leaf_indexes(X)
    for rows in (X, X[:1], X[:0]):
        found = module.apply(rows)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, leaves[: len(rows)])
    gaps = csr_matrix(np.nan_to_num(X))
    wanted = model.calc_leaf_indexes(gaps.toarray())
    np.testing.assert_array_equal(module.apply(gaps), wanted)
    # which adds to the scores all the same
    assert module.predict_per_tree(X).shape == (len(X), leaves.shape[1] + 1)
