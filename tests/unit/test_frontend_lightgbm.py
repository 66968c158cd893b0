"""Forests of LightGBM models in memory: the same bits as LightGBM's own predictor."""

from __future__ import annotations

import re

import numpy as np
import pytest

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.frontends import load_forest
from skforge.frontends.lightgbm.categories import named
from tests.answers_of import apply_transform
from tests.refusals import error_of
from tests.sklearn_rows import same_bits

lgb = pytest.importorskip("lightgbm")

N = 400


def make_rows(seed=0, missing=0.1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 5))
    X[:, 2] = np.where(rng.random(N) < 0.4, 0.0, X[:, 2])  # zeros as in sparse data
    X[:, 3] = rng.integers(0, 45, N)
    X[:, 4] = np.round(X[:, 4].astype(np.float32), 1)
    X[:, :3][rng.random((N, 3)) < missing] = np.nan
    return X, rng


def make_target(X, rng, objective):
    signal = np.nan_to_num(X[:, 0]) + np.sin(X[:, 3]) + 0.3 * rng.normal(size=N)
    if objective in ("binary", "cross_entropy", "cross_entropy_lambda"):
        return (signal > 0).astype(float)
    if objective in ("multiclass", "multiclassova", "lambdarank", "rank_xendcg"):
        return np.digitize(signal, [-0.5, 0.5]).astype(float)
    if objective in ("poisson", "gamma", "tweedie"):
        return np.exp(signal / 2) + 0.1
    return signal


def train(X, y, rounds=6, categories=(), keep=False, **params):
    params = {"num_leaves": 12, "min_data_in_leaf": 5, "max_bin": 63, **params}
    params |= {"num_threads": 1, "verbose": -1, "deterministic": True}
    ranking = params.get("objective") in ("lambdarank", "rank_xendcg")
    data = lgb.Dataset(
        X,
        y,
        group=[N // 4] * 4 if ranking else None,
        categorical_feature=list(categories),
        params=params,
    )
    return lgb.train(params, data, rounds, keep_training_booster=keep)


def odd_rows(forest, n=400, seed=7):
    """Thresholds and their neighbours in both precisions, zeros, and no numbers."""
    rng = np.random.default_rng(seed)
    tiny = [1e-35, ZERO_THRESHOLD, np.nextafter(ZERO_THRESHOLD, 1), 9e-36, 1e-40]
    tiny += [5e-324, np.nextafter(ZERO_THRESHOLD, 0), 2e-35, 0.0]
    values = [*tiny, *(-t for t in tiny), np.nan, np.inf, -np.inf, 1e308, 1e300]
    values += [-0.5, -0.999, -1.0, 0.5, 31.9, 32, 44.5, 2.0**31, -(2.0**31), 2.0**32]
    rows = rng.choice(values, (n, forest.n_features))
    for feature in range(forest.n_features):
        known = forest.threshold[forest.feature == feature]
        if not len(known):
            continue
        low, high = np.float32([-np.inf, np.inf])
        with np.errstate(over="ignore", under="ignore"):
            narrow = known.astype(np.float32)
            known = np.concatenate([known, narrow.astype(np.float64)])
            near = [known, np.nextafter(known, -np.inf), np.nextafter(known, np.inf)]
            near += [np.nextafter(narrow, low), np.nextafter(narrow, high)]
        near = np.concatenate(near)
        at = rng.random(n) < 0.6
        rows[at, feature] = rng.choice(near, at.sum())
    return rows


def check_booster(booster, X, forest=None, **params):
    """Compare scores, leaves and predictions on given, drawn and odd rows."""
    forest = load_forest(booster) if forest is None else forest
    for rows in (X, draw_rows(forest, 300, seed=1, missing=0.1), odd_rows(forest)):
        raw = reference_raw(forest, rows)
        params = {"num_threads": 1, **params}
        expected = booster.predict(rows, raw_score=True, **params)
        same_bits(raw, expected.reshape(len(rows), -1))
        same_bits(apply_transform(forest, raw), booster.predict(rows, **params))
        leaves = forest.source_node[reference_leaves(forest, rows)]
        own = booster.predict(rows, pred_leaf=True, **params)
        np.testing.assert_array_equal(leaves, own.reshape(len(rows), -1))
    return forest


OBJECTIVES = [
    ("regression", {}),
    ("regression", {"reg_sqrt": True}),
    ("regression_l1", {}),
    ("regression_l1", {"reg_sqrt": True}),
    ("huber", {}),
    ("fair", {}),
    ("fair", {"reg_sqrt": True}),
    ("poisson", {}),
    ("quantile", {"alpha": 0.7}),
    ("mape", {}),
    ("gamma", {}),
    ("tweedie", {}),
    ("binary", {}),
    ("binary", {"sigmoid": 2.345678901}),
    ("multiclass", {"num_class": 3}),
    ("multiclassova", {"num_class": 3, "sigmoid": 0.7}),
    ("cross_entropy", {}),
    ("cross_entropy_lambda", {}),
    ("lambdarank", {}),
    ("rank_xendcg", {}),
]
BOOSTING = {
    "gbdt": {},
    "dart": {"drop_rate": 0.5, "skip_drop": 0.0},
    "rf": {"bagging_freq": 1, "bagging_fraction": 0.6},
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("boosting", BOOSTING)
@pytest.mark.parametrize(
    ("objective", "options"),
    OBJECTIVES,
    ids=[f"{name}-{'-'.join(options)}".strip("-") for name, options in OBJECTIVES],
)
def test_objectives(objective, options, boosting):
    X, rng = make_rows()
    y = make_target(X, rng, objective)
    booster = train(
        X, y, objective=objective, boosting=boosting, **options, **BOOSTING[boosting]
    )
    check_booster(booster, X)


def model_text(trees, header="", features=1):
    names = " ".join(f"f{i}" for i in range(features))
    blocks = [f"Tree={i}\n{tree}\n\n" for i, tree in enumerate(trees)]
    return (
        "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\n"
        f"max_feature_idx={features - 1}\n{header}feature_names={names}\n"
        f"feature_infos={' '.join(['[-1:1]'] * features)}\n"
        f"tree_sizes={' '.join(str(len(b)) for b in blocks)}\n\n"
        f"{''.join(blocks)}end of trees\n\nfeature_importances:\n\n"
        "parameters:\n\nend of parameters\n\npandas_categorical:null\n"
    )


def missing_types(booster):
    """Return the missing types of the nodes that have thresholds."""
    lines = re.findall(r"decision_type=(.*)", booster.model_to_string())
    kinds = [int(kind) for line in lines for kind in line.split()]
    return {kind >> 2 for kind in kinds if not kind & 1}


MISSING = {
    "none": ({"use_missing": False}, 0, Missing.NEVER),
    "zero": ({"zero_as_missing": True}, 1, Missing.ZERO),
    "nan": ({}, 2, Missing.NAN),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("categories", [(), (3,)], ids=["numbers", "categories"])
@pytest.mark.parametrize("objective", ["regression", "multiclass"])
def test_missing_types_and_categories(missing, categories, objective):
    X, rng = make_rows()
    y = make_target(X, rng, objective)
    options, kind, compiled = MISSING[missing]
    booster = train(
        X,
        y,
        categories=categories,
        objective=objective,
        num_class=3 if objective == "multiclass" else 1,
        cat_smooth=1,
        min_data_per_group=5,
        **options,
    )
    forest = check_booster(booster, X)
    assert missing_types(booster) >= {kind}
    if not categories and missing != "nan":
        assert set(forest.missing) == {compiled}
    assert bool((forest.comparison == Comparison.IN).any()) == bool(categories)


def test_missing_types_by_feature_become_one():
    """Features without NaN in training have the type none, the others NaN."""
    X, rng = make_rows(missing=0.0)
    y = make_target(X, rng, "regression")
    X[:, 0][rng.random(N) < 0.2] = np.nan
    booster = train(X, y)
    assert missing_types(booster) == {0, 2}
    forest = check_booster(booster, X)
    assert set(forest.missing) == {Missing.NAN}


@pytest.mark.parametrize("seed", range(2))
def test_categories_of_every_kind(seed):
    """Unseen, negative, cut, huge and missing categories, sets of several words."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 90, (N, 2)).astype(float)
    X[rng.random(N) < 0.05, 0] = np.nan
    y = np.sin(X[:, 1]) + (np.nan_to_num(X[:, 0]) % 3)
    booster = train(
        X, y, categories=(0, 1), cat_smooth=1, min_data_per_group=2, max_bin=255
    )
    forest = load_forest(booster)
    assert (np.diff(forest.category_offset) > 1).any()
    values = np.array([-1, -0.5, -0.999999, -1e-40, -1.0000001, 0, 0.999, 1.5, 89.99])
    huge = [90, 95.5, 96, 1e5, 2**24, 2.0**31 - 1, 2.0**31, 2.0**32, 2.0**32 + 1, 1e300]
    huge += [-(2.0**31), -(2.0**32), np.nan, np.inf, -np.inf]
    values = np.concatenate([values, huge, np.arange(-3, 99)])
    rows = rng.choice(values, (1000, 2))
    check_booster(booster, rows)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("missing", [0, 2, 4, 6, 8, 10])
@pytest.mark.parametrize(
    "threshold",
    [0.0, -0.0, 1e-36, -1e-36, ZERO_THRESHOLD, -ZERO_THRESHOLD, 1e-35, 2e-35, -2e-35],
)
def test_thresholds_near_zero(threshold, missing):
    """LightGBM takes |x| <= kZeroThreshold for 0.0 before any comparison."""
    trees = [f"num_leaves=2\nnum_cat=0\nsplit_feature=0\nthreshold={threshold!r}\n"]
    trees[0] += f"decision_type={missing}\nleft_child=-1\nright_child=-2\n"
    trees[0] += "leaf_value=1 2\nshrinkage=1\n"
    booster = lgb.Booster(model_str=model_text(trees))
    forest = load_forest(booster)
    check_booster(booster, odd_rows(forest, 200), forest)


def test_trees_of_one_leaf():
    X, rng = make_rows()
    booster = train(X, np.full(N, 3.25))
    forest = check_booster(booster, X)
    assert forest.n_nodes == forest.n_trees >= 1
    booster = train(X, make_target(X, rng, "regression"), min_data_in_leaf=190)
    check_booster(booster, X)


def test_no_trees():
    X, rng = make_rows()
    booster = train(X, make_target(X, rng, "regression"), rounds=1, keep=True)
    booster.rollback_one_iter()
    forest = load_forest(booster)
    assert forest.n_trees == 0
    same_bits(reference_raw(forest, X)[:, 0], booster.predict(X))


@pytest.mark.parametrize("boosting", BOOSTING)
def test_rounds(boosting):
    X, rng = make_rows()
    y = make_target(X, rng, "multiclass")
    booster = train(
        X, y, objective="multiclass", num_class=3, boosting=boosting,
        **BOOSTING[boosting],
    )  # fmt: skip
    for begin, end in [(0, 2), (1, 4), (3, 0), (0, 6), (0, 0)]:
        forest = load_forest(booster, iteration_range=(begin, end))
        rounds = {"start_iteration": begin, "num_iteration": (end or 6) - begin}
        check_booster(booster, X, forest, **rounds)
    for bad in [(0, 7), (-1, 2), (3, 3), (4, 2)]:
        said = error_of(InvalidModelError, load_forest, booster, iteration_range=bad)
        assert said == (
            f"iteration_range {bad} does not lie within the 6 boosting rounds of the "
            "model."
        )


def test_best_iteration_of_a_booster_that_stopped_early():
    X, rng = make_rows()
    y = make_target(X, rng, "regression")
    params = {"verbose": -1, "num_threads": 1, "learning_rate": 0.9}
    data = lgb.Dataset(X[:200], y[:200])
    booster = lgb.train(
        params,
        data,
        60,
        valid_sets=[lgb.Dataset(X[200:], y[200:], reference=data)],
        callbacks=[lgb.early_stopping(3, verbose=False)],
        keep_training_booster=True,
    )
    assert 0 < booster.best_iteration < booster.current_iteration()
    forest = check_booster(booster, X)
    assert forest.n_trees == booster.best_iteration
    everything = load_forest(booster, iteration_range=(0, 0))
    assert everything.n_trees == booster.current_iteration()
    # a saved model has the best rounds only, and nothing else to go by
    saved = load_forest(booster.model_to_string())
    assert saved.content_hash() == forest.content_hash()
    text = booster.model_to_string(num_iteration=-1)
    assert load_forest(text).content_hash() == everything.content_hash()
    check_booster(lgb.Booster(model_str=text), X, everything)


def test_best_iteration_of_a_wrapper():
    X, rng = make_rows()
    model = lgb.LGBMRegressor(n_estimators=9, verbose=-1, n_jobs=1)
    model.fit(X, make_target(X, rng, "regression"))
    model.booster_.best_iteration = 4
    forest = load_forest(model)
    assert forest.n_trees == 4
    same_bits(apply_transform(forest, reference_raw(forest, X)), model.predict(X))
    model.booster_.best_iteration = 40
    assert load_forest(model).n_trees == 9


@pytest.mark.parametrize("sigmoid", [7.66337, 9.595221e-7, 1.648625542811972e-05, 3.0])
@pytest.mark.parametrize("keep", [False, True])
def test_slope_of_the_sigmoid(sigmoid, keep):
    """Text rounds it to six digits and is not read to the nearest float."""
    X, rng = make_rows()
    y = make_target(X, rng, "binary")
    booster = train(X, y, objective="binary", sigmoid=sigmoid, keep=keep)
    check_booster(booster, X)
    text = booster.model_to_string()
    check_booster(lgb.Booster(model_str=text), X, load_forest(text))


def test_continued_and_refitted_models():
    X, rng = make_rows()
    y = make_target(X, rng, "regression")
    first = train(X, y)
    params = {"verbose": -1, "num_threads": 1}
    second = lgb.train(params, lgb.Dataset(X, y), 3, init_model=first)
    assert check_booster(second, X).n_trees == 9
    check_booster(first.refit(X, y + 1), X)


def frame(seed=0):
    pd = pytest.importorskip("pandas")
    X, rng = make_rows(seed)
    letters = [f"c{i}" for i in range(6)]
    data = pd.DataFrame(X[:, :3], columns=["x", "y", "z"])
    data.insert(1, "letter", pd.Categorical(rng.choice(letters, N)))
    data["number"] = pd.Categorical(rng.choice([30, 10, 20], N))
    signal = np.nan_to_num(X[:, 0]) + data["letter"].cat.codes.to_numpy() % 2
    return data, signal


def test_categories_of_frames_have_names():
    data, y = frame()
    model = lgb.LGBMRegressor(
        n_estimators=4, verbose=-1, n_jobs=1, min_child_samples=5, cat_smooth=1,
        min_data_per_group=5,
    ).fit(data, y)  # fmt: skip
    forest = load_forest(model)
    assert forest.feature_names == ("x", "letter", "y", "z", "number")
    names = tuple(f"c{i}" for i in range(6))
    assert forest.category_names == ((), names, (), (), (10, 20, 30))
    codes = data.copy()
    for column in ("letter", "number"):
        codes[column] = codes[column].cat.codes
    raw = reference_raw(forest, codes.to_numpy(np.float64))
    same_bits(raw[:, 0], model.predict(data))
    assert (forest.comparison == Comparison.IN).any()


@pytest.mark.parametrize("sets", [None, ["number"]])
def test_names_of_ordered_categories_belong_to_their_columns(sets):
    """An ordered column has names and no sets; another may be the reverse."""
    data, y = frame()
    data["letter"] = data["letter"].cat.as_ordered()
    if sets:
        data["number"] = data["number"].cat.codes + 4
    rows = lgb.Dataset(data, y, categorical_feature=sets or "auto")
    model = lgb.train({"verbose": -1}, rows, 2)
    names, numbers = tuple(f"c{i}" for i in range(6)), () if sets else (10, 20, 30)
    for forest in load_forest(model), load_forest(model.dump_model()):
        assert forest.category_names == ((), names, (), (), numbers)
        assert forest.category_lists == ()


@pytest.mark.parametrize(
    ("lists", "infos", "tested", "names"),
    [
        ([[7, 8]], "[-0.5:2.5] -1:0:1", "1", ((), (7, 8))),
        ([[7, 8]], "[0:1] -1:0:1", "1", None),  # an ordered one, and numbers by sets
        ([[7, 8]], "[0:2] -1:0:1", "1", ((), (7, 8))),
        ([[7, 8]], "none -1:0:1", "1", None),
        ([[7, 8], [7]], "[0:1] [0:0]", "", ((7, 8), (7,))),
        ([[7], [7, 8]], "[0:1] [0:0]", "", None),  # nowhere: not as LightGBM writes
        ([["a", "b"]], "[0:1] -1:0:1", "1", ((), ("a", "b"))),  # numbers are refused
        ([["1", "b"]], "[0:1] -1:0:1", "1", None),
        ([["a", "b"]], "[0:1] -1:0:1", "0,1", None),
        # in "a", each text list may be the other's
        ([["a", "b"], ["b", "a"]], "[0:1] -1:0:1 -1:0:1", "1,2", None),
        ([["a", "b"], ["b", "a", "c"]], "[0:1] 0:1:2 [0:1]", "1", None),
        ([["a", "b"], ["b", "a", "c"]], "[0:1] 0:1 0:1:2", "1,2", None),
        ([["a", "b"], ["c"]], "0:1 [5:5] 0", "0,2", (("a", "b"), (), ("c",))),
        ([["a", "b"], []], "0:1 none", "0", None),
        ([["a"], ["b"]], "0 0", "0,1", (("a",), ("b",))),  # as many as columns
        ([[True, False]], "[1:9] 0:1", "1", ((), (True, False))),
        ([["a"]], "[x] 0", "1", ((), ("a",))),
        ([[["a", 1]]], "[2:3] 0", "1", ((), ("['a', 1]",))),
    ],
)
def test_lists_are_assigned_where_no_other_assignment_is_possible(
    lists, infos, tested, names
):
    expected = {"category_names": names}
    if names is None:
        expected = {"category_lists": tuple(map(tuple, lists))}
    assert named(lists, (infos, tested), len(infos.split())) == expected


def test_without_knowledge_of_values_lists_are_assigned_if_all_columns_have_one():
    assert named([["a"], [2, 3]], ("", ""), 2) == {"category_names": (("a",), (2, 3))}
    assert named([[2, 3]], ("", ""), 2) == {"category_lists": ((2, 3),)}


class Louder(lgb.LGBMRegressor):
    def predict(self, X):
        return super().predict(X) + 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Louder(n_estimators=1, n_jobs=1),
         "Louder overrides predict, so its predictions cannot be reproduced."),
        (lgb.LGBMRegressor(n_estimators=1, n_jobs=1, pred_early_stop=True),
         "This LGBMRegressor predicts with pred_early_stop=True, which skips trees; "
         "call set_params(pred_early_stop=False)."),
    ],
    ids=["predict", "early stop"],
)  # fmt: skip
def test_wrappers_that_are_refused(model, message):
    assert error_of(InvalidModelError, load_forest, model) == (
        f"This {type(model).__name__} is not fitted; call fit before load_forest."
    )
    X, rng = make_rows()
    model.fit(X, make_target(X, rng, "regression"))
    assert error_of(UnsupportedModelError, load_forest, model) == message
    early = model.set_params(pred_early_stop=False)
    assert type(model) is Louder or load_forest(early).n_trees == 1


def random_tree(rng, features=3):
    """A tree as text: any shape, every decision type, odd thresholds and sets."""
    n_leaves = int(rng.integers(1, 12))
    children = [[-1, -2]] if n_leaves > 1 else []
    while len(children) < n_leaves - 1:  # a leaf becomes a node, as in training
        node, side = rng.integers(len(children)), rng.integers(2)
        if children[node][side] < 0:
            children.append([children[node][side], -len(children) - 2])
            children[node][side] = len(children) - 1
    inner = len(children)
    kinds = rng.choice([0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11], inner)
    special = [0.0, -0.0, 1e-36, -1e-36, 1e-35, ZERO_THRESHOLD, -ZERO_THRESHOLD]
    special += [5e-324, 1e300, -1e300, 1.7976931348623157e308, 0.1, -0.1, 2.5, 1.0]
    thresholds, sets = [], []
    for kind in kinds:
        if kind & 1:
            thresholds.append(str(len(sets)))
            sets.append(rng.integers(2**32, size=rng.integers(0, 4), dtype=np.uint64))
        else:
            chosen = rng.choice(special) if rng.random() < 0.5 else rng.normal()
            thresholds.append(f"{chosen:.17g}")
    ends = np.concatenate(([0], np.cumsum([len(s) for s in sets]))).astype(int)
    words = [str(word) for s in sets for word in s]
    lines = {
        "num_leaves": [n_leaves],
        "num_cat": [len(sets)],
        "split_feature": rng.integers(features, size=inner),
        "threshold": thresholds,
        "decision_type": kinds,
        "left_child": [left for left, _ in children],
        "right_child": [right for _, right in children],
        "leaf_value": [f"{v:.17g}" for v in rng.normal(size=n_leaves)],
        **({"cat_boundaries": ends, "cat_threshold": words} if sets else {}),
        "is_linear": [0],
        "shrinkage": [1],
    }
    return "".join(f"{k}={' '.join(map(str, v))}\n" for k, v in lines.items())


@pytest.mark.parametrize("seed", range(12))
def test_random_texts(seed):
    """What training never makes: all types in one tree, sets that are empty."""
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng) for _ in range(rng.integers(1, 9))]
    header = "objective=poisson\n" + ("average_output\n" if seed % 2 else "")
    booster = lgb.Booster(model_str=model_text(trees, header, features=3))
    rows = rng.normal(size=(300, 3))
    check_booster(booster, rows)
