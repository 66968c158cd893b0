"""What is asked: a trait, the library that trains the model, and rows.

``code`` defines ``X``, ``source``, ``rows`` and ``expected``. Models are small, seeds
are fixed, and libraries use one thread. Rows have the dtype that the library computes
in, except where the trait is another one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trait:
    """A line of the table.

    An answer is the "value", the "chance" of the second class, the probabilities of all
    "classes", or the "labels".
    """

    group: str  # what is asked
    title: str  # what is special in its group; with the library's name
    library: str  # which reader of a converter takes the model
    answer: str
    imports: tuple[str, ...]  # besides NumPy's
    code: str  # that trains and predicts
    release: str = ""  # of ONNX Runtime: the trait is about this one alone

    @property
    def histogram(self) -> bool:
        """Return whether the model is scikit-learn's histogram gradient boosting."""
        return HISTOGRAM[0] in self.imports

    @property
    def packages(self) -> tuple[str, ...]:
        match self.library:
            case "sklearn":
                return ("scikit-learn",)
            case "onnx":
                return ("onnx", "onnxruntime")
            case "xgboost" | "lightgbm":  # their wrappers need it
                return (self.library, "scikit-learn")
            case _:
                return (self.library,)


XGBOOST = ("import xgboost",)
LIGHTGBM = ("import lightgbm",)
CATBOOST = ("import catboost",)
FOREST_REGRESSOR = ("from sklearn.ensemble import RandomForestRegressor",)
FOREST_CLASSIFIER = ("from sklearn.ensemble import RandomForestClassifier",)
BOOSTING_REGRESSOR = ("from sklearn.ensemble import GradientBoostingRegressor",)
BOOSTING_CLASSIFIER = ("from sklearn.ensemble import GradientBoostingClassifier",)
HISTOGRAM = ("from sklearn.ensemble import HistGradientBoostingRegressor",)


def _code(data: str, model: str, predict: str) -> str:
    return f"{data.strip()}\n{model.strip()}\nexpected = {predict}\n"


# ------------------------------------------------------------ data

#: float32 has every 128th second of a Unix time, and no tenth exactly. Borders lie on
#: training values, or midway between two: on twentieths.
_BORDERS = """
rng = np.random.default_rng(0)
times = 1.7e9 + rng.integers(0, 100_000, (4000, 2))  # Unix times, in seconds
prices = rng.integers(0, 1000, (4000, 3)) / 10
X = np.column_stack([times, prices])
y = times[:, 0] % 977 / 100 + prices[:, 0] - prices[:, 1] * prices[:, 2] / 50
rows = np.column_stack([times, prices + rng.integers(0, 2, prices.shape) / 20])
"""
_BORDERS_32 = _BORDERS + "X, rows = X.astype(np.float32), rows.astype(np.float32)\n"

_TENTHS = """
rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).round(1)
y = X[:, 0] * X[:, 1] + np.abs(X[:, 2])
"""
_HOLES = "X[rng.random(X.shape) < 0.2] = np.nan\n"
_SPECIAL = """special = [np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40]
rows = np.where(rng.random(X.shape) < 0.3, rng.choice(special, X.shape), rows)
"""
_FINITE = _SPECIAL.replace(", np.inf, -np.inf", "")
_TO_32 = "X, rows = X.astype(np.float32), rows.astype(np.float32)\n"

_CODES = """
rng = np.random.default_rng(0)
codes = rng.integers(0, 100, (4000, 2))
X = np.column_stack([codes, rng.normal(size=(4000, 2))]){dtype}
y = np.sin(codes[:, 0] ** 2) + codes[:, 1] % 7 + X[:, 2]
"""

_NORMAL = """
rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)){dtype}
"""
_SUMS = _NORMAL + "y = 1000 * X[:, 0] * X[:, 1] + 100 * np.abs(X[:, 2])\n"
_YES = _NORMAL + "y = np.where(X[:, 0] * X[:, 1] > rng.normal(size=4000), 1, 0)\n"
_CLASSES = (
    _NORMAL + "y = (X[:, 0] * X[:, 1] > 0) + 2 * (X[:, 2] > rng.normal(size=4000))\n"
)
_F32 = ".astype(np.float32)"

# ------------------------------------------------------------ models

_XGB = "source = xgboost.XGBRegressor({}, n_jobs=1).fit(X, y)"
_XGB_CLASSES = "source = xgboost.XGBClassifier({}, n_jobs=1).fit(X, y)"
_LGB = """options = {"verbose": -1, "num_threads": 1%s}
source = lightgbm.train(options, lightgbm.Dataset(X, y), %d)"""
_LGB_CLASSES = "source = lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1)"
_CAT = "source = catboost.{}({}, thread_count=1, verbose=0)\nsource.fit(X, y)"
_TWO_CLASSES = """source = RandomForestClassifier(20, max_depth=8, random_state=42)
source.fit(X, y)"""
#: 50 complete trees of depth 4: nodes 0 to 14 are tests, a child from 15 on is a leaf.
_ENSEMBLE = """
rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).round(1)
child = 2 * np.tile(np.arange(15), 50) + 1
tree = np.repeat(np.arange(50), 15)
leaves = (child >= 15).astype(int)
first, second = (
    np.where(leaves == 1, 16 * tree + c - 15, 15 * tree + c) for c in (child, child + 1)
)
tensor = onnx.numpy_helper.from_array
node = onnx.helper.make_node(
    "TreeEnsemble",
    ["X"],
    ["Y"],
    domain="ai.onnx.ml",
    tree_roots=[*range(0, 750, 15)],
    nodes_featureids=rng.integers(0, 5, 750),
    nodes_modes=tensor(rng.choice(np.uint8([0, 1]), 750)),  # <= and <
    nodes_splits=tensor(rng.normal(size=750).round(1)),
    nodes_truenodeids=first,
    nodes_falsenodeids=second,
    nodes_trueleafs=leaves,
    nodes_falseleafs=leaves,
    leaf_targetids=np.zeros(800, int),
    leaf_weights=tensor(rng.normal(size=800)),
    n_targets=1,
    aggregate_function=1,  # sum
    post_transform=0,
)
"""
_ENSEMBLE_SESSION = """
value = onnx.helper.make_tensor_value_info
x, y = (value(n, onnx.TensorProto.DOUBLE, [None, c]) for n, c in (("X", 5), ("Y", 1)))
graph = onnx.helper.make_graph([node], "forest", [x], [y])
opsets = [onnx.helper.make_opsetid("ai.onnx.ml", 5)]
onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), "model.onnx")
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
source = onnxruntime.InferenceSession("model.onnx", options)
"""
_PREDICT = "source.predict(rows)"
_CHANCE = "source.predict_proba(rows)[:, 1]"
_PROBA = "source.predict_proba(rows)"

BORDERS = "thresholds met exactly"
MISSING = "missing values"
CATEGORIES = "categories"
CLASSES = "classes"
LINEAR = "linear trees"
SUMS = "sums of many trees"
CHANCES = "probabilities"
ONNX = "ONNX"

TRAITS = {
    "borders_xgboost_float32": Trait(
        BORDERS,
        "XGBoost, float32 rows",
        "xgboost",
        "value",
        XGBOOST,
        _code(_BORDERS_32, _XGB.format("n_estimators=50, max_depth=5"), _PREDICT),
    ),
    "borders_xgboost_float64": Trait(
        BORDERS,
        "XGBoost, float64 rows, which it casts to float32",
        "xgboost",
        "value",
        XGBOOST,
        _code(_BORDERS, _XGB.format("n_estimators=50, max_depth=5"), _PREDICT),
    ),
    "borders_lightgbm": Trait(
        BORDERS,
        "LightGBM, float64",
        "lightgbm",
        "value",
        LIGHTGBM,
        _code(_BORDERS, _LGB % ("", 50), _PREDICT),
    ),
    "borders_catboost": Trait(
        BORDERS,
        "CatBoost, float64 rows, which it casts to float32",
        "catboost",
        "value",
        CATBOOST,
        _code(_BORDERS, _CAT.format("CatBoostRegressor", "iterations=50"), _PREDICT),
    ),
    "borders_forest": Trait(
        BORDERS,
        "random forest, float32 rows and float64 thresholds",
        "sklearn",
        "value",
        FOREST_REGRESSOR,
        _code(
            _BORDERS_32,
            "source = RandomForestRegressor(20, max_depth=8, random_state=0).fit(X, y)",
            _PREDICT,
        ),
    ),
    "borders_histogram": Trait(
        BORDERS,
        "histogram gradient boosting, float64",
        "sklearn",
        "value",
        HISTOGRAM,
        _code(
            _BORDERS,
            "source = HistGradientBoostingRegressor(max_iter=50).fit(X, y)",
            _PREDICT,
        ),
    ),
    "missing_xgboost": Trait(
        MISSING,
        "XGBoost: NaN, ±0, ±inf, 1e-40",
        "xgboost",
        "value",
        XGBOOST,
        _code(
            _TENTHS + _HOLES + _SPECIAL + _TO_32,
            _XGB.format("n_estimators=50, max_depth=5"),
            _PREDICT,
        ),
    ),
    "missing_lightgbm": Trait(
        MISSING,
        "LightGBM, trained with NaN",
        "lightgbm",
        "value",
        LIGHTGBM,
        _code(_TENTHS + _HOLES + _SPECIAL, _LGB % ("", 50), _PREDICT),
    ),
    "missing_lightgbm_new": Trait(
        MISSING,
        "LightGBM, trained without NaN",
        "lightgbm",
        "value",
        LIGHTGBM,
        _code(_TENTHS + _SPECIAL, _LGB % ("", 50), _PREDICT),
    ),
    "missing_lightgbm_zero": Trait(
        MISSING,
        "LightGBM, `zero_as_missing`",
        "lightgbm",
        "value",
        LIGHTGBM,
        _code(
            _TENTHS + _HOLES + _SPECIAL,
            _LGB % (', "zero_as_missing": True', 50),
            _PREDICT,
        ),
    ),
    "missing_catboost": Trait(
        MISSING,
        "CatBoost",
        "catboost",
        "value",
        CATBOOST,
        _code(
            _TENTHS + _HOLES + _SPECIAL + _TO_32,
            _CAT.format("CatBoostRegressor", "iterations=50"),
            _PREDICT,
        ),
    ),
    "missing_forest": Trait(
        MISSING,
        "random forest, trained with NaN",
        "sklearn",
        "value",
        FOREST_REGRESSOR,
        _code(
            _TENTHS + _HOLES + _FINITE + _TO_32,
            "source = RandomForestRegressor(20, max_depth=8, random_state=0).fit(X, y)",
            _PREDICT,
        ),
    ),
    "missing_histogram": Trait(
        MISSING,
        "histogram gradient boosting",
        "sklearn",
        "value",
        HISTOGRAM,
        _code(
            _TENTHS + _HOLES + _FINITE,
            "source = HistGradientBoostingRegressor(max_iter=50).fit(X, y)",
            _PREDICT,
        ),
    ),
    "categories_xgboost": Trait(
        CATEGORIES,
        "XGBoost, 100 codes and NaN",
        "xgboost",
        "value",
        XGBOOST,
        _code(
            _CODES.format(dtype=_F32)
            + "rows = np.where(rng.random(X.shape) < 0.1, np.float32(np.nan), X)\n",
            'kinds = ["c", "c", "q", "q"]\n'
            "source = xgboost.XGBRegressor(\n"
            "    n_estimators=50, max_depth=5, n_jobs=1, "
            "enable_categorical=True, feature_types=kinds\n"
            ").fit(X, y)",
            _PREDICT,
        ),
    ),
    "categories_lightgbm": Trait(
        CATEGORIES,
        "LightGBM, 100 codes; also unseen and negative ones, fractions, NaN",
        "lightgbm",
        "value",
        LIGHTGBM,
        _code(
            _CODES.format(dtype="")
            + "other = rng.choice([np.nan, -1, 1000, 7.9, 1e10], X.shape)\n"
            "rows = np.where(rng.random(X.shape) < 0.1, other, X)\n",
            'options = {"verbose": -1, "num_threads": 1}\n'
            "data = lightgbm.Dataset(X, y, categorical_feature=[0, 1])\n"
            "source = lightgbm.train(options, data, 50)",
            _PREDICT,
        ),
    ),
    "categories_catboost": Trait(
        CATEGORIES,
        "CatBoost, texts; also unseen ones",
        "catboost",
        "value",
        CATBOOST,
        _code(
            """
rng = np.random.default_rng(0)
codes = rng.integers(0, 100, (4000, 2))
X = np.char.add("c", codes.astype(str)).astype(object)
rows = np.where(rng.random(X.shape) < 0.1, "another", X)
y = np.sin(codes[:, 0] ** 2) + codes[:, 1] % 7
""",
            "options = dict(iterations=50, thread_count=1, verbose=0)\n"
            "source = catboost.CatBoostRegressor(cat_features=[0, 1], **options)\n"
            "source.fit(X, y)",
            _PREDICT,
        ),
    ),
    "categories_histogram": Trait(
        CATEGORIES,
        "histogram gradient boosting, 100 codes; also unseen ones, NaN",
        "sklearn",
        "value",
        HISTOGRAM,
        _code(
            _CODES.format(dtype="") + "other = rng.choice([np.nan, 200], X.shape)\n"
            "rows = np.where(rng.random(X.shape) < 0.1, other, X)\n",
            "source = HistGradientBoostingRegressor(max_iter=50, "
            "categorical_features=[0, 1])\nsource.fit(X, y)",
            _PREDICT,
        ),
    ),
    "classes_xgboost": Trait(
        CLASSES,
        "XGBoost, softmax",
        "xgboost",
        "classes",
        XGBOOST,
        _code(
            _CLASSES.format(dtype=_F32),
            _XGB_CLASSES.format("n_estimators=20, max_depth=4"),
            _PROBA,
        ),
    ),
    "classes_lightgbm": Trait(
        CLASSES,
        "LightGBM, softmax",
        "lightgbm",
        "classes",
        LIGHTGBM,
        _code(
            _CLASSES.format(dtype=""),
            f"{_LGB_CLASSES}\nsource.fit(X, y)",
            _PROBA,
        ),
    ),
    "classes_catboost": Trait(
        CLASSES,
        "CatBoost, softmax",
        "catboost",
        "classes",
        CATBOOST,
        _code(
            _CLASSES.format(dtype=_F32),
            _CAT.format("CatBoostClassifier", "iterations=50"),
            _PROBA,
        ),
    ),
    "ties_xgboost": Trait(
        CLASSES,
        "XGBoost, labels where two classes tie",
        "xgboost",
        "labels",
        XGBOOST,
        _code(
            """
rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).astype(np.float32)
y = (X[:, 0] * X[:, 1] > 0) + 0
X = np.concatenate([X, X[y == 1]])  # these rows are of class 1 and of class 2
y = np.concatenate([y, y[y == 1] + 1])
""",
            _XGB_CLASSES.format("n_estimators=20, max_depth=4"),
            _PREDICT,
        ),
    ),
    "ties_forest": Trait(
        CLASSES,
        "random forest, labels where trees tie",
        "sklearn",
        "labels",
        FOREST_CLASSIFIER,
        _code(
            _CLASSES.format(dtype=_F32),
            "source = RandomForestClassifier(10, random_state=0).fit(X, y)",
            _PREDICT,
        ),
    ),
    "linear_lightgbm": Trait(
        LINEAR,
        "LightGBM, `linear_tree`",
        "lightgbm",
        "value",
        LIGHTGBM,
        _code(_SUMS.format(dtype=""), _LGB % (', "linear_tree": True', 50), _PREDICT),
    ),
    "sums_xgboost": Trait(
        SUMS,
        "XGBoost, float32",
        "xgboost",
        "value",
        XGBOOST,
        _code(
            _SUMS.format(dtype=_F32),
            _XGB.format("n_estimators=200, max_depth=4"),
            _PREDICT,
        ),
    ),
    "sums_lightgbm": Trait(
        SUMS,
        "LightGBM, float64",
        "lightgbm",
        "value",
        LIGHTGBM,
        _code(_SUMS.format(dtype=""), _LGB % (', "num_leaves": 15', 200), _PREDICT),
    ),
    "sums_catboost": Trait(
        SUMS,
        "CatBoost, float64",
        "catboost",
        "value",
        CATBOOST,
        _code(
            _SUMS.format(dtype=_F32),
            _CAT.format("CatBoostRegressor", "iterations=200, depth=4"),
            _PREDICT,
        ),
    ),
    "sums_forest": Trait(
        SUMS,
        "random forest, float64",
        "sklearn",
        "value",
        FOREST_REGRESSOR,
        _code(
            _SUMS.format(dtype=_F32),
            "source = RandomForestRegressor(100, max_depth=6, random_state=0)\n"
            "source.fit(X, y)",
            _PREDICT,
        ),
    ),
    "sums_boosting": Trait(
        SUMS,
        "gradient boosting, float64",
        "sklearn",
        "value",
        BOOSTING_REGRESSOR,
        _code(
            _SUMS.format(dtype=_F32),
            "source = GradientBoostingRegressor(n_estimators=200, random_state=0)\n"
            "source.fit(X, y)",
            _PREDICT,
        ),
    ),
    "chances_xgboost": Trait(
        CHANCES,
        "XGBoost, logistic in float32",
        "xgboost",
        "chance",
        XGBOOST,
        _code(
            _YES.format(dtype=_F32),
            _XGB_CLASSES.format("n_estimators=50, max_depth=4"),
            _CHANCE,
        ),
    ),
    "chances_lightgbm": Trait(
        CHANCES,
        "LightGBM, logistic in float64",
        "lightgbm",
        "chance",
        LIGHTGBM,
        _code(_YES.format(dtype=""), f"{_LGB_CLASSES}\nsource.fit(X, y)", _CHANCE),
    ),
    "chances_catboost": Trait(
        CHANCES,
        "CatBoost, logistic in float64",
        "catboost",
        "chance",
        CATBOOST,
        _code(
            _YES.format(dtype=_F32),
            _CAT.format("CatBoostClassifier", "iterations=50"),
            _CHANCE,
        ),
    ),
    "chances_boosting": Trait(
        CHANCES,
        "gradient boosting, logistic in float64",
        "sklearn",
        "chance",
        BOOSTING_CLASSIFIER,
        _code(
            _YES.format(dtype=_F32),
            "source = GradientBoostingClassifier(random_state=0).fit(X, y)",
            _CHANCE,
        ),
    ),
    "chances_forest": Trait(
        CHANCES,
        "random forest: shares of classes",
        "sklearn",
        "classes",
        FOREST_CLASSIFIER,
        _code(
            _CLASSES.format(dtype=_F32),
            "source = RandomForestClassifier(20, max_depth=8, random_state=0)\n"
            "source.fit(X, y)",
            _PROBA,
        ),
    ),
    "onnx_forest": Trait(
        ONNX,
        "random forest of two classes, labels",
        "sklearn",
        "labels",
        FOREST_CLASSIFIER,
        _code(_YES.format(dtype=_F32), _TWO_CLASSES, _PREDICT),
    ),
    "onnx_forest_1_26": Trait(
        ONNX,
        "random forest of two classes, labels, by ONNX Runtime 1.26.0 "
        "([#28557](https://github.com/microsoft/onnxruntime/issues/28557))",
        "sklearn",
        "labels",
        FOREST_CLASSIFIER,
        _code(_YES.format(dtype=_F32), _TWO_CLASSES, _PREDICT),
        "1.26.0",
    ),
    "onnx_ensemble": Trait(
        ONNX,
        "ONNX Runtime's `TreeEnsemble` of opset 5, float64",
        "onnx",
        "value",
        ("import onnx", "import onnxruntime"),
        _code(_ENSEMBLE, _ENSEMBLE_SESSION, 'source.run(None, {"X": rows})[0]'),
    ),
}
