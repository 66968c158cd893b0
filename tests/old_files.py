"""Files of each format, with what the release answered that wrote them.

    python tests/old_files.py tests/data/formats/2.zip

writes those of the skforge that it imports, so that later releases can be tested to
convert them. For those of format 1, ``PYTHONPATH`` named a checkout of skforge 0.1.0.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

NAMES = ["a", "b", "c", "d"]
METHODS = (
    *("predict", "predict_proba", "decision_function", "score_samples", "apply"),
    "predict_raw",
)


def numbers():
    """Return rows that are the same with every release of NumPy."""
    return (np.arange(160).reshape(40, 4) * 7919 % 101) / 10.0 - 5.0


def rows_of(name):
    """Return the rows that the model of a file was trained on."""
    frame = pd.DataFrame(numbers(), columns=NAMES)
    if name == "lightgbm":
        codes = np.arange(40) * 7 % 3
        return frame.assign(b=pd.Categorical.from_codes(codes, ["u", "v", "w"]))
    return frame if name in ("xgboost", "forest") else numbers()


def answers(model, rows):
    """Return the answers of all methods that the model has."""
    methods = [method for method in METHODS if hasattr(model, method)]
    return {method: np.asarray(getattr(model, method)(rows)) for method in methods}


def models():
    """Return a fitted model for each file of a ``CompiledForest``."""
    from lightgbm import LGBMClassifier
    from sklearn.ensemble import (
        AdaBoostClassifier,
        GradientBoostingClassifier,
        HistGradientBoostingClassifier,
        IsolationForest,
        RandomForestClassifier,
    )
    from xgboost import XGBClassifier

    total = numbers().sum(axis=1)
    two, three = (total > 0).astype(int), np.digitize(total, [-3, 3])
    texts = np.array(["low", "mid", "top"])[three]
    few = {"n_estimators": 3, "max_depth": 2}
    seeded = {**few, "random_state": 0}
    histogram = HistGradientBoostingClassifier(max_iter=3, max_depth=2)
    leaves = {"min_child_samples": 3, "verbose": -1}
    return {
        "adaboost": AdaBoostClassifier(n_estimators=3, random_state=0).fit(
            rows_of("adaboost"), two
        ),
        "boosting": GradientBoostingClassifier(**seeded).fit(numbers(), two),
        "forest": RandomForestClassifier(**seeded).fit(rows_of("forest"), texts),
        "histogram": histogram.fit(numbers(), texts),
        "isolation": IsolationForest(n_estimators=3, random_state=0).fit(numbers()),
        "lightgbm": LGBMClassifier(**few, **leaves).fit(rows_of("lightgbm"), three),
        "xgboost": XGBClassifier(**few).fit(rows_of("xgboost"), three),
    }


def write(folder: Path) -> None:
    """Write all files, and what they answer."""
    import skforge

    found = {}
    for name, model in models().items():
        rows = rows_of(name)
        fast = skforge.CompiledForest(model, tuning="off", target="cpu").fit(rows)
        if name == "xgboost":
            trees, default = skforge.load_forest(model), skforge.Schedule()
            table = {(1, 8): default, (9, None): default.reorder("tree", "batch")}
            module = skforge.compile_forest(trees, table)
            found |= {f"module.{m}": a for m, a in answers(module, numbers()).items()}
            skforge.save(module, folder / "module.skforge")
            skforge.save(trees, folder / "trees.skforge")
        skforge.save(fast, folder / f"{name}.skforge")
        own = answers(skforge.load(folder / f"{name}.skforge"), rows)
        found |= {f"{name}.{method}": answer for method, answer in own.items()}
    np.savez(folder / "answers.npz", **found)


def main(path: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        write(Path(made))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(Path(made).iterdir()):
                archive.write(file, file.name)


if __name__ == "__main__":
    main(sys.argv[1])
