"""A fresh process of cold_start.py: imports, loads, predicts, and prints what it took.

    python benchmarks/cold_start_worker.py SYSTEM FILE ROWS CORE

Only what Python itself starts with is imported before the clock runs. A system is a
generator: it yields once when its imports are done, and then the call that predicts.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is imported by NumPy, in time that counts
    from collections.abc import Iterator
    from typing import Any


def skforge(file: str) -> Iterator[Any]:
    import skforge

    load = skforge.load  # imports what loading needs
    yield
    yield load(file).predict


def exported(file: str) -> Iterator[Any]:
    """Import the package of an exported wheel, which opens its library."""
    import importlib
    from pathlib import Path

    sys.path.insert(0, str(Path(file).parent))
    yield
    yield importlib.import_module(Path(file).name).predict


def xgboost(file: str) -> Iterator[Any]:
    import xgboost

    yield
    booster = xgboost.Booster(model_file=file)
    booster.set_param({"nthread": 1})
    yield booster.inplace_predict


def bare_xgboost(file: str) -> Iterator[Any]:
    """Load a Booster where scikit-learn and pandas are not installed."""
    _hide("sklearn", "pandas", "pyarrow", "dask")
    return xgboost(file)


def lightgbm(file: str) -> Iterator[Any]:
    import lightgbm

    yield
    booster = lightgbm.Booster(model_file=file)
    yield lambda X: booster.predict(X, num_threads=1)


def bare_lightgbm(file: str) -> Iterator[Any]:
    _hide("sklearn", "pandas", "pyarrow", "dask", "matplotlib")
    return lightgbm(file)


def _hide(*names: str) -> None:
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]


def sklearn(file: str) -> Iterator[Any]:
    import joblib
    import sklearn.ensemble  # noqa: F401

    yield
    yield joblib.load(file).predict


def onnxruntime(file: str) -> Iterator[Any]:
    import onnxruntime

    yield
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options)
    name = session.get_inputs()[0].name
    yield lambda X: session.run(None, {name: X.astype("f4", copy=False)})[0]


def treelite(file: str) -> Iterator[Any]:
    """Read treelite's own file, for its interpreter GTIL."""
    import treelite

    yield
    model = treelite.Model.deserialize(file)
    yield lambda X: treelite.gtil.predict(model, X, nthread=1)


def lignum(file: str) -> Iterator[Any]:
    """Load lignum's own file; its library beside it, if there is one."""
    from pathlib import Path

    import lignum

    yield
    library = Path(file).with_suffix(".so")
    model = lignum.load(file, compiled=library if library.exists() else None)
    yield lambda X: model.predict(X, n_jobs=1)


def memory() -> dict[str, int]:
    """Return resident and proportional bytes now and the peak; {} without Linux."""
    found = {}
    keys = {"Rss:": "rss", "Pss:": "pss", "VmHWM:": "peak"}
    try:
        for file in ("/proc/self/smaps_rollup", "/proc/self/status"):
            with open(file) as lines:
                for words in map(str.split, lines):
                    if words and words[0] in keys:
                        found[keys[words[0]]] = int(words[1]) << 10
    except OSError:
        return {}
    return found


def main(system: str, file: str, rows: str, core: str) -> dict[str, Any]:
    """Answer the rows one by one, and return seconds, bytes and answers."""
    if int(core) >= 0 and sys.platform == "linux":
        os.sched_setaffinity(0, {int(core)})
    clock = time.perf_counter
    start = clock()
    import numpy as np

    took = {"numpy": clock() - start}
    X = np.load(rows)
    before = memory()
    steps = globals()[system](file)
    start = clock()
    next(steps)
    took["imports"] = clock() - start
    start = clock()
    predict = next(steps)
    took["load"] = clock() - start
    answers = []
    for i in range(len(X)):
        row = X[i : i + 1]
        start = clock()
        answers.append(predict(row))
        took["first" if i == 0 else "last"] = clock() - start
    after = memory()
    found = np.concatenate([np.asarray(a) for a in answers])
    return {
        "seconds": took,
        "bytes": {key: after[key] - before[key] for key in before},
        "answers": {"dtype": str(found.dtype), "values": found.tolist()},
    }


if __name__ == "__main__":
    del sys.path[0]  # modules of benchmarks/ must hide none of a system's
    found = main(*sys.argv[1:])
    import json

    print(json.dumps(found))
