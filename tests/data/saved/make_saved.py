"""Wrote these files, with skforge at commit 409f70b: pickles name its modules."""

import pickle
import sys
from pathlib import Path

import numpy as np
from sklearn.ensemble import RandomForestClassifier

import skforge
from skforge import CompiledForest, Schedule
from skforge.tuning import Learned, ScheduleSearch, ScheduleSpace, Tuner


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    model = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, y)
    tiles = Schedule().tile("batch", "b0", "b1", 8).parallel("b0").represent("array")
    fast = CompiledForest(model, schedule={(1, 7): "xgboost", (8, None): tiles}).fit(X)
    skforge.save(fast, folder / "forest.skforge")
    tuner = Tuner(Learned(), ScheduleSpace.of([tiles]))
    parts = {
        "dropped": fast.drop_estimator(),
        "module": skforge.compile_forest(fast.forest_, schedule=tiles),
        "search": ScheduleSearch(CompiledForest("model.json"), [tiles]),
        "tuner": CompiledForest("model.json", tuning=tuner),
    }
    for name, value in parts.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(value, protocol=4))
    np.savez(folder / "expected.npz", X=X, predictions=fast.predict_raw(X))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
