"""What is asked: a trait, the library that trains the model, and rows.

The code of a trait defines ``X``, ``source``, ``rows`` and ``expected``. Models are
small, seeds are fixed, and libraries use one thread. Rows have the dtype that the
library computes in, except where the trait is another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PREDICT = "source.predict(rows)"
_CHANCE = "source.predict_proba(rows)[:, 1]"
_PROBA = "source.predict_proba(rows)"


@dataclass(frozen=True, slots=True)
class Trait:
    """A line of the table: the lines of Python that draw rows, train and predict."""

    group: str  # what is asked
    title: str  # what is special in its group; with the library's name
    data: str
    model: str
    predict: str = _PREDICT
    release: str = ""  # of ONNX Runtime: the trait is about this one alone

    @property
    def code(self) -> str:
        lines = (self.data.strip(), self.model.strip(), f"expected = {self.predict}")
        return "\n".join(lines) + "\n"

    @property
    def estimator(self) -> str:
        """Return the name of scikit-learn's class; empty for another library."""
        found = re.match(r"source = (\w+)\(", self.model)
        return found[1] if found else ""

    @property
    def library(self) -> str:
        """Return which reader of a converter takes the model."""
        if self.estimator:
            return "sklearn"
        names = ("xgboost", "lightgbm", "catboost")
        return next((name for name in names if f"{name}." in self.model), "onnx")

    @property
    def answer(self) -> str:
        """Return whether it is a value, labels, or the chance of one or all classes."""
        usual = "labels" if "Classifier" in self.model else "value"
        return {_CHANCE: "chance", _PROBA: "classes"}.get(self.predict, usual)

    @property
    def imports(self) -> tuple[str, ...]:
        """Return the lines besides NumPy's."""
        if self.estimator:
            return (f"from sklearn.ensemble import {self.estimator}",)
        more = ("import onnxruntime",) if self.library == "onnx" else ()
        return (f"import {self.library}", *more)

    @property
    def histogram(self) -> bool:
        return self.estimator.startswith("Hist")

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
_TO_32 = "X, rows = X.astype(np.float32), rows.astype(np.float32)\n"
_BORDERS_32 = _BORDERS + _TO_32

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

_CODES = """
rng = np.random.default_rng(0)
codes = rng.integers(0, 100, (4000, 2))
X = np.column_stack([codes, rng.normal(size=(4000, 2))]){dtype}
y = np.sin(codes[:, 0] ** 2) + codes[:, 1] % 7 + X[:, 2]
"""

_OTHER = "rows = np.where(rng.random(X.shape) < 0.1, other, X)\n"

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
_XGB_50 = _XGB.format("n_estimators=50, max_depth=5")
_XGB_CLASSES = "source = xgboost.XGBClassifier({}, n_jobs=1).fit(X, y)"
_LGB = """options = {"verbose": -1, "num_threads": 1%s}
source = lightgbm.train(options, lightgbm.Dataset(X, y), %d)"""
_LGB_50 = _LGB % ("", 50)
_LGB_CLASSES = """\
source = lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1)
source.fit(X, y)"""
_CAT = "source = catboost.CatBoost{}, thread_count=1, verbose=0)\nsource.fit(X, y)"
_CAT_50 = _CAT.format("Regressor(iterations=50")
_CAT_CLASSES = _CAT.format("Classifier(iterations=50")
_FOREST = "source = RandomForestRegressor(20, max_depth=8, random_state=0).fit(X, y)"
_HISTOGRAM = "source = HistGradientBoostingRegressor(max_iter=50).fit(X, y)"
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

# ------------------------------------------------------------ lines of the table

#: By what is asked, and by name: a trait's title, data, model and answer.
_LINES: dict[str, dict[str, tuple[str, ...]]] = {
    "thresholds met exactly": {
        "borders_xgboost_float32": ("XGBoost, float32 rows", _BORDERS_32, _XGB_50),
        "borders_xgboost_float64": (
            "XGBoost, float64 rows, which it casts to float32", _BORDERS, _XGB_50,
        ),
        "borders_lightgbm": ("LightGBM, float64", _BORDERS, _LGB_50),
        "borders_catboost": (
            "CatBoost, float64 rows, which it casts to float32", _BORDERS, _CAT_50,
        ),
        "borders_forest": (
            "random forest, float32 rows and float64 thresholds", _BORDERS_32, _FOREST,
        ),
        "borders_histogram": (
            "histogram gradient boosting, float64", _BORDERS, _HISTOGRAM,
        ),
    },
    "missing values": {
        "missing_xgboost": (
            "XGBoost: NaN, ±0, ±inf, 1e-40", _TENTHS + _HOLES + _SPECIAL + _TO_32,
            _XGB_50,
        ),
        "missing_lightgbm": (
            "LightGBM, trained with NaN", _TENTHS + _HOLES + _SPECIAL, _LGB_50,
        ),
        "missing_lightgbm_new": (
            "LightGBM, trained without NaN", _TENTHS + _SPECIAL, _LGB_50,
        ),
        "missing_lightgbm_zero": (
            "LightGBM, `zero_as_missing`", _TENTHS + _HOLES + _SPECIAL,
            _LGB % (', "zero_as_missing": True', 50),
        ),
        "missing_catboost": ("CatBoost", _TENTHS + _HOLES + _SPECIAL + _TO_32, _CAT_50),
        "missing_forest": (
            "random forest, trained with NaN", _TENTHS + _HOLES + _FINITE + _TO_32,
            _FOREST,
        ),
        "missing_histogram": (
            "histogram gradient boosting", _TENTHS + _HOLES + _FINITE, _HISTOGRAM,
        ),
    },
    "categories": {
        "categories_xgboost": (
            "XGBoost, 100 codes and NaN",
            _CODES.format(dtype=_F32)
            + "rows = np.where(rng.random(X.shape) < 0.1, np.float32(np.nan), X)\n",
            """kinds = ["c", "c", "q", "q"]
source = xgboost.XGBRegressor(
    n_estimators=50, max_depth=5, n_jobs=1, enable_categorical=True, feature_types=kinds
).fit(X, y)""",
        ),
        "categories_lightgbm": (
            "LightGBM, 100 codes; also unseen and negative ones, fractions, NaN",
            _CODES.format(dtype="")
            + "other = rng.choice([np.nan, -1, 1000, 7.9, 1e10], X.shape)\n" + _OTHER,
            """options = {"verbose": -1, "num_threads": 1}
data = lightgbm.Dataset(X, y, categorical_feature=[0, 1])
source = lightgbm.train(options, data, 50)""",
        ),
        "categories_catboost": (
            "CatBoost, texts; also unseen ones",
            """
rng = np.random.default_rng(0)
codes = rng.integers(0, 100, (4000, 2))
X = np.char.add("c", codes.astype(str)).astype(object)
rows = np.where(rng.random(X.shape) < 0.1, "another", X)
y = np.sin(codes[:, 0] ** 2) + codes[:, 1] % 7
""",
            """options = dict(iterations=50, thread_count=1, verbose=0)
source = catboost.CatBoostRegressor(cat_features=[0, 1], **options)
source.fit(X, y)""",
        ),
        "categories_histogram": (
            "histogram gradient boosting, 100 codes; also unseen ones, NaN",
            _CODES.format(dtype="")
            + "other = rng.choice([np.nan, 200], X.shape)\n" + _OTHER,
            "source = HistGradientBoostingRegressor(max_iter=50, "
            "categorical_features=[0, 1])\nsource.fit(X, y)",
        ),
    },
    "classes": {
        "classes_xgboost": (
            "XGBoost, softmax", _CLASSES.format(dtype=_F32),
            _XGB_CLASSES.format("n_estimators=20, max_depth=4"), _PROBA,
        ),
        "classes_lightgbm": (
            "LightGBM, softmax", _CLASSES.format(dtype=""), _LGB_CLASSES, _PROBA,
        ),
        "classes_catboost": (
            "CatBoost, softmax", _CLASSES.format(dtype=_F32), _CAT_CLASSES, _PROBA,
        ),
        "ties_xgboost": (
            "XGBoost, labels where two classes tie",
            """
rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).astype(np.float32)
y = (X[:, 0] * X[:, 1] > 0) + 0
X = np.concatenate([X, X[y == 1]])  # these rows are of class 1 and of class 2
y = np.concatenate([y, y[y == 1] + 1])
""",
            _XGB_CLASSES.format("n_estimators=20, max_depth=4"),
        ),
        "ties_forest": (
            "random forest, labels where trees tie", _CLASSES.format(dtype=_F32),
            "source = RandomForestClassifier(10, random_state=0).fit(X, y)",
        ),
    },
    "linear trees": {
        "linear_lightgbm": (
            "LightGBM, `linear_tree`", _SUMS.format(dtype=""),
            _LGB % (', "linear_tree": True', 50),
        ),
    },
    "sums of many trees": {
        "sums_xgboost": (
            "XGBoost, float32", _SUMS.format(dtype=_F32),
            _XGB.format("n_estimators=200, max_depth=4"),
        ),
        "sums_lightgbm": (
            "LightGBM, float64", _SUMS.format(dtype=""),
            _LGB % (', "num_leaves": 15', 200),
        ),
        "sums_catboost": (
            "CatBoost, float64", _SUMS.format(dtype=_F32),
            _CAT.format("Regressor(iterations=200, depth=4"),
        ),
        "sums_forest": (
            "random forest, float64", _SUMS.format(dtype=_F32),
            "source = RandomForestRegressor(100, max_depth=6, random_state=0)\n"
            "source.fit(X, y)",
        ),
        "sums_boosting": (
            "gradient boosting, float64", _SUMS.format(dtype=_F32),
            "source = GradientBoostingRegressor(n_estimators=200, random_state=0)\n"
            "source.fit(X, y)",
        ),
    },
    "probabilities": {
        "chances_xgboost": (
            "XGBoost, logistic in float32", _YES.format(dtype=_F32),
            _XGB_CLASSES.format("n_estimators=50, max_depth=4"), _CHANCE,
        ),
        "chances_lightgbm": (
            "LightGBM, logistic in float64", _YES.format(dtype=""), _LGB_CLASSES,
            _CHANCE,
        ),
        "chances_catboost": (
            "CatBoost, logistic in float64", _YES.format(dtype=_F32), _CAT_CLASSES,
            _CHANCE,
        ),
        "chances_boosting": (
            "gradient boosting, logistic in float64", _YES.format(dtype=_F32),
            "source = GradientBoostingClassifier(random_state=0).fit(X, y)", _CHANCE,
        ),
        "chances_forest": (
            "random forest: shares of classes", _CLASSES.format(dtype=_F32),
            "source = RandomForestClassifier(20, max_depth=8, random_state=0)\n"
            "source.fit(X, y)",
            _PROBA,
        ),
    },
    "ONNX": {
        "onnx_forest": (
            "random forest of two classes, labels", _YES.format(dtype=_F32),
            _TWO_CLASSES,
        ),
        "onnx_forest_1_26": (
            "random forest of two classes, labels, by ONNX Runtime 1.26.0 "
            "([#28557](https://github.com/microsoft/onnxruntime/issues/28557))",
            _YES.format(dtype=_F32), _TWO_CLASSES, _PREDICT, "1.26.0",
        ),
        "onnx_ensemble": (
            "ONNX Runtime's `TreeEnsemble` of opset 5, float64", _ENSEMBLE,
            _ENSEMBLE_SESSION, 'source.run(None, {"X": rows})[0]',
        ),
    },
}  # fmt: skip

TRAITS = {
    name: Trait(group, *line)
    for group, lines in _LINES.items()
    for name, line in lines.items()
}
