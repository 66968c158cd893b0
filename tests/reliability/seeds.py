"""Good files that the fuzzing starts from, besides those under tests/data."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import skforge
from skforge import CompiledForest, Schedule

OLD_XGBOOST = Path(__file__).parents[1] / "data" / "xgboost" / "old_binary.zip"
#: One small kernel instead of the default ones: these models are made to be read.
QUICK = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")


def make_seeds(folder: Path) -> None:
    """Write ``.skforge`` files of all kinds, and those of others that are no data."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in _artifacts().items():
        if not (folder / f"{name}.skforge").exists():
            skforge.save(model(), folder / f"{name}.skforge")
    if not (folder / "sets-5.onnx").exists():
        (folder / "sets-5.onnx").write_bytes(_tree_ensemble())
    with zipfile.ZipFile(OLD_XGBOOST) as held:
        names = [name for name in held.namelist() if "gblinear" not in name]
        held.extractall(folder, names)
    if not (folder / "frame.txt").exists():
        _from_wrappers(folder)
    if not (folder / "records.jsonl").exists():
        (folder / "records.jsonl").write_text(_records(), encoding="utf-8")


def rows(n: int = 200, n_features: int = 4, seed: int = 0) -> tuple[Any, Any]:
    """Return rows and labels of three classes."""
    random = np.random.default_rng(seed)
    X = np.round(random.standard_normal((n, n_features)), 1).astype(np.float32)
    return X, np.digitize(X.sum(axis=1), [-1, 1])


def _artifacts() -> dict[str, Any]:
    """Return functions that make what is saved, by name."""
    from sklearn.ensemble import IsolationForest, RandomForestClassifier
    from sklearn.tree import DecisionTreeClassifier

    X, y = rows()
    words = np.array(["ash", "elm", "oak"])[y]

    def fitted(model: Any, labels: Any = None) -> Any:
        model = model.fit(X) if labels is None else model.fit(X, labels)
        return CompiledForest(model, schedule=QUICK).fit(X[:20])

    def by_range() -> Any:
        from sklearn.ensemble import GradientBoostingRegressor

        model = GradientBoostingRegressor(n_estimators=4, random_state=0).fit(X, y)
        table = {(0, 9): Schedule(), (10, None): QUICK}
        return skforge.compile_forest(skforge.load_forest(model), table, n_jobs=2)

    def boosted() -> Any:
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(n_estimators=2, num_leaves=4, verbose=-1, n_jobs=1)
        return fitted(model, y)

    def with_names() -> Any:
        from xgboost import XGBClassifier

        return fitted(XGBClassifier(n_estimators=2, max_depth=2, n_jobs=1), y)

    random = RandomForestClassifier(3, max_depth=3, random_state=0)
    return {
        "tree": lambda: fitted(DecisionTreeClassifier(max_depth=2), words),
        "forest": lambda: skforge.load_forest(random.fit(X, y)),
        "isolation": lambda: fitted(IsolationForest(n_estimators=3, random_state=0)),
        "module": by_range,
        "lightgbm": boosted,
        "xgboost": with_names,
    }


def _from_wrappers(folder: Path) -> None:
    """Write models of wrappers: stopped early, and with the categories of frames."""
    import pandas as pd
    from lightgbm import LGBMRegressor
    from xgboost import XGBRegressor

    X, y = rows()
    stopped = XGBRegressor(
        n_estimators=8, max_depth=2, early_stopping_rounds=2, n_jobs=1
    )
    stopped.fit(X, y, eval_set=[(X[:50], -y[:50])], verbose=False)
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["kind"] = pd.Categorical(np.array(["ash", "elm", "oak"])[y])
    frame["size"] = pd.Categorical(y * 10)
    options = {"n_estimators": 2, "max_depth": 3, "n_jobs": 1}
    named = XGBRegressor(enable_categorical=True, **options).fit(frame, X[:, 0])
    for ending in ("json", "ubj"):
        stopped.save_model(folder / f"stopped.{ending}")
        named.save_model(folder / f"frame.{ending}")
    light = LGBMRegressor(verbose=-1, min_child_samples=2, **options)
    light.fit(frame, X[:, 0]).booster_.save_model(folder / "frame.txt")


def _records() -> str:
    """Return tuning records of several searches, two of them for one key."""
    from skforge.compiler.target import Target
    from skforge.tuning.records import Record, RecordKey, forest_key, target_key

    keys = forest_key(searched_forest()), target_key(Target.x86_64("v3"))
    asked = ((), (((1, 9), 1), ((10, None), 512)), (((1, 1), 1),), ())
    lines = []
    for number, one in enumerate(asked):
        key = RecordKey(*keys, "exact", 1 + number % 3, one)
        table = {(1, 9): Schedule(), (10, None): QUICK}
        made = Record(key, table, "heuristic", number != 1, 0.5 + number, "a machine")
        lines.append(made.to_line())
    return "".join(lines)


def searched_forest() -> Any:
    """Return the forest that the tuning records are of."""
    from sklearn.tree import DecisionTreeRegressor

    X, y = rows()
    return skforge.load_forest(DecisionTreeRegressor(max_depth=3).fit(X, y))


def _tree_ensemble() -> bytes:
    """Return a model of opset 5: every comparison, sets, several targets."""
    from tests.onnx_models import MODES, RandomTrees, make_model

    trees = RandomTrees(1, n_trees=2, modes=MODES, depth=3)
    content = trees.lists(2, member=0.3)
    assert "membership_values" in content
    model = make_model("TreeEnsemble", content, trees.n_features, version=5)
    return bytes(model.SerializeToString())
