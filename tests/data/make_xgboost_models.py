"""Write small models and what the XGBoost that wrote them predicts.

Run once in an environment of each version: ``python make_xgboost_models.py FOLDER``.
The files are named after the version, so tests cover every format since 1.7.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def main(folder: Path) -> None:
    import xgboost as xgb

    rng = np.random.default_rng(3)
    n = 60
    X = np.round(np.abs(rng.normal(size=(n, 3)) * 5)).astype(np.float32)
    X[:, 2] = rng.normal(size=n)
    X[rng.random(X.shape) < 0.1] = np.nan
    y = (np.nan_to_num(X[:, 0]) % 3 == 1) * 2 + np.nan_to_num(X[:, 2]) + 2.5
    y3 = rng.integers(0, 3, n)
    Y = np.stack([y, -y], axis=1)
    dart = {"booster": "dart", "rate_drop": 0.6}
    parallel = {"num_parallel_tree": 2, "subsample": 0.7, "num_class": 3}
    vector = {"multi_strategy": "multi_output_tree", "tree_method": "hist"}
    cases = {
        "logistic.json": ({"objective": "binary:logistic"}, y > 3),
        "logitraw.ubj": ({"objective": "binary:logitraw", "base_score": 0.2}, y > 3),
        "poisson.json": ({"objective": "count:poisson"}, y3),
        "softprob.ubj": ({"objective": "multi:softprob", **parallel}, y3),
        "dart.json": (dart, y),
        "pruned.ubj": ({"gamma": 2.0, "tree_method": "exact", "max_depth": 4}, y),
        "targets.json": ({"tree_method": "hist"}, Y),
        "sets.ubj": ({"tree_method": "hist", "max_cat_to_onehot": 1}, y),
        "onehot.json": ({"tree_method": "hist", "max_cat_to_onehot": 99}, y),
    }
    if int(xgb.__version__[0]) >= 2:
        cases["vector.json"] = (vector, Y)
        quantile = {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9]}
        cases["quantile.ubj"] = (quantile, y)
    if tuple(map(int, xgb.__version__.split(".")[:2])) >= (3, 3):
        expectiles = {"objective": "reg:expectileerror", "expectile_alpha": [0.1, 0.9]}
        cases["expectile.json"] = (expectiles, y)
        cases["expectile.ubj"] = ({**expectiles, **dart, "base_score": 2.0}, y)
        cases["vector-dart.json"] = ({**vector, **dart}, Y)
    results = {"X": X}
    for name, (params, label) in cases.items():
        kinds = ["c", "c", "q"] if name in ("sets.ubj", "onehot.json") else None
        data = xgb.DMatrix(X, label, feature_types=kinds, enable_categorical=True)
        model = xgb.train({"max_depth": 2, "nthread": 1, **params}, data, 3)
        file = f"{xgb.__version__}-{name}"
        model.save_model(folder / file)
        results[f"{file}:margin"] = model.predict(data, output_margin=True)
        results[f"{file}:value"] = model.predict(data)
        results[f"{file}:leaf"] = model.predict(data, pred_leaf=True)
    np.savez_compressed(folder / f"{xgb.__version__}.npz", **results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
