"""Faults of processes: forks while another thread compiles, no OpenMP, no sources."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from importlib import util
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import skforge
from skforge import Schedule, compile_forest
from tests.reliability import processes
from tests.reliability.rows import Row
from tests.reliability.seeds import QUICK, make_seeds, rows


def fork_while_compiling(times: int, seconds: float = 60) -> Row:
    """Fork while two threads compile; the child compiles and predicts."""
    row = Row("faults", "os.fork while two threads compile; the child compiles, too")
    with mock.patch.dict(os.environ, {"SKFORGE_CACHE": "off"}):
        _fork_while_compiling(row, times, seconds)
    row.notes = "at moments 0.7 ms apart; nothing hangs"
    return row


def _fork_while_compiling(row: Row, times: int, seconds: float) -> None:
    from sklearn.ensemble import RandomForestClassifier

    X, y = rows(500)
    source = RandomForestClassifier(10, max_depth=6, random_state=0).fit(X, y)
    forest, expected = skforge.load_forest(source), source.predict_proba(X)
    stop, compiling = threading.Event(), threading.Event()
    failed: list[str] = []

    def right(schedule: Schedule, n_jobs: int | None = None) -> bool:
        module = compile_forest(forest, schedule, n_jobs=n_jobs)
        return bool(np.array_equal(module.predict_raw(X), expected))

    def compile_for_ever() -> None:
        size = 8
        while not stop.is_set():
            size += 1
            if not right(Schedule().tile("batch", "a", "b", size)):
                failed.append(f"wrong bits in the parent, block of {size} rows")
            compiling.set()

    threads = [threading.Thread(target=compile_for_ever) for _ in range(2)]
    for thread in threads:
        thread.start()
    compiling.wait(60)
    try:
        for round_ in range(times):
            time.sleep(0.0007 * (round_ % 40))
            own = Schedule().tile("batch", "a", "b", 300 + round_).parallel("a")
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if right(own, 2) else 2
                finally:
                    os._exit(code)
            ended = _wait(child, seconds)
            row.count(ended == 0, f"round {round_}: the child ended with {ended}")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for what in failed:
        row.count(False, what)


def _wait(child: int, seconds: float) -> int | str:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


# ------------------------------------------------------------ no OpenMP

_ALONE = """
import sys
import numpy as np
from skforge import Schedule, compile_forest, load_forest
from skforge.forest.reference import draw_rows, reference_raw
from skforge.engine.cpu.threads import thread_limit

forest = load_forest(sys.argv[1])
rows = draw_rows(forest, 3000, 0, 0.1)
parallel = Schedule().tile("batch", "b0", "b1", 64).parallel("b0")
for schedule in (None, parallel):
    found = compile_forest(forest, schedule, n_jobs=2).predict_raw(rows)
    expected = reference_raw(forest, rows).reshape(found.shape)
    if found.tobytes() != expected.tobytes():
        sys.exit("wrong bits")
print("with OpenMP" if thread_limit() else "without OpenMP")
"""
_ESTIMATOR = """
import sys
import numpy as np, skforge
try:
    model = skforge.load(sys.argv[1])
except ImportError as error:
    print("ImportError:", str(error).splitlines()[0][:150])
else:
    print("loaded", model.predict(np.zeros((1, 4), np.float32)))
"""


def no_libgomp(folder: Path, model: Path) -> Row:
    """Run with a scikit-learn whose libgomp is gone, and where loading one fails."""
    row = Row("faults", "libgomp is missing")
    spec = util.find_spec("sklearn")
    package = Path(str(spec and spec.origin)).parent
    libraries = package.parent / "scikit_learn.libs"
    if not libraries.is_dir():
        row.left_out = "scikit-learn brings no libgomp of its own here"
        return row
    site = folder / "without-libgomp"
    if not site.exists():
        shutil.copytree(package, site / "sklearn")
        for info in package.parent.glob("scikit_learn-*.dist-info"):
            shutil.copytree(info, site / info.name)
    changes = {"PYTHONPATH": os.pathsep.join([str(site), str(processes.ROOT)])}
    code, out, err = processes.run(_ALONE, model, changes=changes)
    well = code == 0 and out == "without OpenMP\n"
    row.count(well, f"a model file: {out}{processes.said(code, err)}")
    seeds = folder / "seeds"
    make_seeds(seeds)
    code, out, err = processes.run(_ESTIMATOR, seeds / "tree.skforge", changes=changes)
    named = "libgomp" in out or out.startswith("loaded")
    row.count(code == 0 and named, f"an estimator: {out}{processes.said(code, err)}")
    row.notes = (
        "model files compile and run on threads, same bits; "
        "estimators need scikit-learn, which itself does not import then (its "
        "ImportError names libgomp)"
    )
    return row


# ------------------------------------------------------------ no sources

_BANNED = """
import sys
banned = sys.argv[2].split(",")
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in banned:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
"""
_WITHOUT = (
    _BANNED
    + """
import numpy as np, skforge
rows = np.load(sys.argv[3])
model = skforge.load(sys.argv[1])
if hasattr(model, "predict"):
    np.save(sys.argv[4], model.predict(rows).astype("U"))
else:
    np.save(sys.argv[4], skforge.compile_forest(model).predict(rows).astype("U"))
assert not set(banned) & set(sys.modules)
print("right")
"""
)
_MODEL_FILE = (
    _BANNED
    + """
import numpy as np
from skforge import compile_forest, load_forest
from skforge.forest.reference import draw_rows, reference_raw
forest = load_forest(sys.argv[1])
rows = draw_rows(forest, 300, 0, 0.1)
found = compile_forest(forest).predict_raw(rows)
assert found.tobytes() == reference_raw(forest, rows).tobytes()
assert not set(banned) & set(sys.modules)
print("right")
"""
)


def no_sources(folder: Path) -> Row:
    """Load artifacts and model files where no source library can be imported."""
    row = Row("faults", "no source library: .skforge and model files elsewhere")
    seeds = folder / "seeds"
    make_seeds(seeds)
    X, _ = rows(50, seed=1)
    np.save(folder / "rows.npy", X)
    sources = "xgboost,lightgbm,onnx,pandas,onnxruntime"
    for path in sorted(seeds.glob("*.skforge")):
        out_file = folder / "found.npy"
        arguments = [path, sources, folder / "rows.npy", out_file]
        code, out, err = processes.run(_WITHOUT, *arguments)
        well = code == 0 and out == "right\n"
        if well:
            well = bool(np.array_equal(np.load(out_file), _expected(path, X)))
        row.count(well, f"{path.name}: {processes.said(code, err)}")
    data = processes.ROOT / "tests" / "data"
    files = [
        data / "xgboost" / "3.2.0-softprob.ubj",
        data / "xgboost" / "3.2.0-sets.ubj",
        data / "xgboost" / "1.7.6-dart.json",
        data / "lightgbm" / "4.7.0-categories.txt",
        data / "lightgbm" / "2.3.1-multiclass.txt",
    ]
    for path in files:
        code, out, err = processes.run(_MODEL_FILE, path, f"{sources},sklearn,scipy")
        well = code == 0 and out == "right\n"
        row.count(well, f"{path.name}: {processes.said(code, err)}")
    row.notes = (
        "artifacts without XGBoost, LightGBM, ONNX and pandas; files of XGBoost and "
        "LightGBM also without scikit-learn and SciPy"
    )
    return row


def _expected(path: Path, X: Any) -> Any:
    model: Any = skforge.load(path)
    if not hasattr(model, "predict"):
        model = compile_forest(model, QUICK)
    return model.predict(X).astype("U")
