"""Write small models in XGBoost's old binary format, and what XGBoost 3.0 says of them.

Run ``python make_old_xgboost_models.py FOLDER`` once in an environment of each version
from 0.72 to 3.0 (older ones than 1.7 need NumPy 1), and last, with 3.0.5, the last one
that reads the files, ``python make_old_xgboost_models.py FOLDER answers``.
"""

from __future__ import annotations

import collections
import collections.abc
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np

for name in ("Mapping", "MutableMapping"):  # where 0.72 looks for them
    setattr(collections, name, getattr(collections.abc, name))


def rows():
    random = np.random.default_rng(3)
    X = np.round(np.abs(random.normal(size=(60, 3)) * 5)).astype(np.float32)
    X[:, 2] = random.normal(size=60)
    X[random.random(X.shape) < 0.1] = np.nan
    return X, random.integers(0, 3, 60)


def main(folder: Path) -> None:
    import xgboost as xgb

    version = tuple(map(int, xgb.__version__.split(".")[:2]))
    X, y3 = rows()
    y = (np.nan_to_num(X[:, 0]) % 3 == 1) * 2 + np.nan_to_num(X[:, 2]) + 2.5
    logistic = {"objective": "binary:logistic"}
    softprob = {"objective": "multi:softprob", "num_class": 3}
    dart = {"booster": "dart", "rate_drop": 0.6, "seed": 1}
    parallel = {"num_parallel_tree": 2, "subsample": 0.7}
    poisson = {"objective": "count:poisson", "max_delta_step": 0.4}
    linear = {"objective": "reg:linear" if version < (1, 0) else "reg:squarederror"}
    cases = {
        "logistic": (logistic, y > 3),
        "base": ({**logistic, "base_score": 0.3}, y > 3),
        "logitraw": ({"objective": "binary:logitraw", "base_score": 0.2}, y > 3),
        "hinge": ({"objective": "binary:hinge"}, y > 3),
        "linear": (linear, y),
        "poisson": ({**poisson, "base_score": 0.7, "eval_metric": "rmse"}, y3),
        "gamma": ({"objective": "reg:gamma", "base_score": 0.7}, y + 3),
        "tweedie": ({"objective": "reg:tweedie", "base_score": 0.7}, y + 3),
        "cox": ({"objective": "survival:cox", "base_score": 0.7}, y + 3),
        "softmax": ({**softprob, "objective": "multi:softmax"}, y3),
        "softprob": ({**softprob, **parallel, "base_score": 0.7}, y3),
        "pairwise": ({"objective": "rank:pairwise"}, y3),
        "dart": ({**linear, **dart}, y),
        "dart-softprob": ({**softprob, **dart}, y3),
        "pruned": ({**linear, "gamma": 2.0, "tree_method": "exact", "max_depth": 4}, y),
        "forest": ({**logistic, **parallel, "eval_metric": ["auc", "error"]}, y > 3),
        "empty": ({**logistic, "base_score": 0.4}, y > 3),
        "gblinear": ({**logistic, "booster": "gblinear"}, y > 3),
    }
    if version >= (1, 7):
        cases["targets"] = ({**linear, "tree_method": "hist"}, np.stack([y, -y], 1))
    if version >= (2, 0):
        quantile = {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9]}
        cases["quantile"] = (quantile, y)
    if version < (0, 80):
        del cases["hinge"]
    for name, (params, label) in cases.items():
        data = xgb.DMatrix(X, label)
        if name == "pairwise":
            data.set_group([20, 20, 20])
        silent = {"silent": 1} if version < (1, 0) else {"verbosity": 0}
        params = {"max_depth": 2, "nthread": 1, **silent, **params}
        model = xgb.train(params, data, 0 if name == "empty" else 3)
        if name == "forest":
            model.set_attr(best_iteration="1", note="h\u00e9")
        save(model, folder / f"{xgb.__version__}-{name}.model")
    if version >= (0, 80):
        wrapper = xgb.XGBClassifier(n_estimators=4, max_depth=2).fit(X, y > 3)
        save(wrapper, folder / f"{xgb.__version__}-wrapper.model")
        for name, model in (("wrapper", wrapper), ("booster", wrapper.get_booster())):
            path = folder / f"{xgb.__version__}-{name}.pickle"
            path.write_bytes(pickle.dumps(model, 2 if version == (0, 82) else 4))


def save(model, path: Path) -> None:
    old = path.with_suffix(".deprecated")  # as 2.1 and 3.0 are asked for the format
    model.save_model(str(old))
    old.rename(path)


def answers(folder: Path) -> None:
    import xgboost as xgb

    X, _ = rows()
    data = xgb.DMatrix(X)
    results = {"X": X}
    for path in sorted(folder.glob("*.model")):
        old = path.with_suffix(".deprecated")
        path.rename(old)
        try:
            model = xgb.Booster({"nthread": 1}, model_file=old)
            in_place = model.inplace_predict(X, predict_type="margin")
            results[f"{path.name}:in-place"] = in_place
            for name in ("output_margin", "pred_leaf"):
                results[f"{path.name}:{name}"] = model.predict(data, **{name: True})
            results[f"{path.name}:value"] = model.predict(data)
        except xgb.core.XGBoostError as error:
            print(path.name, str(error).splitlines()[0])
        old.rename(path)
    np.savez_compressed(folder / "old_binary.npz", **results)
    for name in ("model", "pickle"):
        file = folder / f"old_{'binary' if name == 'model' else 'pickles'}.zip"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as held:
            for path in sorted(folder.glob(f"*.{name}")):
                held.write(path, path.name)


if __name__ == "__main__":
    (answers if sys.argv[2:] else main)(Path(sys.argv[1]))
