"""Write small models and what the LightGBM that wrote them predicts.

Run once in an environment of each version: ``python make_lightgbm_models.py FOLDER``.
The files are named after the version, so tests cover every format since 2.0.5, the
oldest that LightGBM 4 reads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def main(folder: Path) -> None:
    import lightgbm as lgb

    rng = np.random.default_rng(3)
    n = 120
    X = rng.normal(size=(n, 3))
    X[:, 1] = rng.integers(0, 40, n)
    X[rng.random(n) < 0.3, 2] = 0.0
    X[rng.random(n) < 0.1, 0] = np.nan
    y = np.nan_to_num(X[:, 0]) + (X[:, 1] % 3 == 1) * 2 + X[:, 2] + 4
    few = {"cat_smooth": 1, "min_data_per_group": 3}
    rf = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6, "seed": 1}
    dart = {"boosting": "dart", "drop_rate": 0.6, "skip_drop": 0.0}
    classes = {"objective": "multiclass", "num_class": 3}
    cases = {
        "regression": ({"reg_sqrt": True}, y),
        "categories": (few, y),
        "zero": ({"zero_as_missing": True}, y),
        "poisson": ({"objective": "poisson", **rf}, np.abs(y)),
        "binary": ({"objective": "binary", "sigmoid": 1.93226}, y > 4),
        "dart": (dart, y),
        "multiclass": (classes, np.digitize(y, (3, 5))),
        "lambda": ({"objective": "cross_entropy_lambda"}, y > 4),
    }
    if lgb.__version__ < "3":
        cases["lambda"] = ({"objective": "cross_entropy"}, y > 4)
    early = lgb.__version__ < "2.2"
    if early:
        cases = {k: cases[k] for k in ("categories", "zero", "binary", "multiclass")}
        cases["categories"] = ({}, y)
    rows = X.copy()
    at = rng.random(rows.shape) < 0.2
    rows[at] = rng.choice([0.0, -0.0, 1e-36, -1.0, 31.9, 40, 1e300, np.inf], at.sum())
    results = {"X": rows}
    for name, (params, label) in cases.items():
        base = {"num_leaves": 4, "min_data_in_leaf": 5, "num_threads": 1, "verbose": -1}
        kinds = [1] if name == "categories" else []
        data = lgb.Dataset(X, label.astype(float), categorical_feature=kinds)
        model = lgb.train({**base, **params}, data, 4)
        file = f"{lgb.__version__}-{name}.txt"
        model.save_model(str(folder / file))
        model = lgb.Booster(model_file=str(folder / file))
        options = {} if early else {"num_threads": 1}
        if early and name == "binary":
            (folder / f"{file[:-4]}.json").write_text(json.dumps(model.dump_model()))
        results[f"{file}:raw"] = model.predict(rows, raw_score=True, **options)
        results[f"{file}:value"] = model.predict(rows, **options)
        results[f"{file}:leaf"] = model.predict(rows, pred_leaf=True, **options)
    np.savez_compressed(folder / f"{lgb.__version__}.npz", **results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
