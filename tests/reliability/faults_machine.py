"""Faults of machines: no OpenMP, an older CPU."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import util
from pathlib import Path
from unittest import mock

import numpy as np

import skforge
from skforge import Target
from skforge.exceptions import TargetError
from skforge.forest.forest import Forest
from tests.reliability import processes
from tests.reliability.rows import Row
from tests.reliability.seeds import make_seeds, rows

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


# ------------------------------------------------------------ older CPUs

_LOAD = """
import sys
import numpy as np, skforge
from skforge import Target
from skforge.exceptions import TargetError
rows = np.load(sys.argv[2])
model = skforge.load(sys.argv[1])
np.save(sys.argv[3], model.predict_raw(rows))
try:
    skforge.load(sys.argv[4])
    said = "loaded"
except skforge.InvalidModelError as error:
    said = str(error)
print(Target.host().vector_bits, "CPU" in said or "run" in said, said)
"""

#: CPUs that qemu-user plays, their vectors, and what other libraries need there.
_CPUS = {
    "Haswell": (256, {}),
    "IvyBridge": (128, {}),
    # OpenBLAS takes this CPU, as qemu plays it, for one with AVX, and NumPy dies.
    "Nehalem": (128, {"OPENBLAS_CORETYPE": "Nehalem"}),
}


def older_cpu(folder: Path, names: tuple[str, ...] = tuple(_CPUS)) -> Row:
    """Load what was made and cached here on CPUs with fewer features."""
    row = Row("faults", "a CPU with fewer features than the artifact's")
    emulator = shutil.which("qemu-x86_64")
    host = Target.host()
    if emulator is None or host.arch != "x86_64":
        row.left_out = "there is no qemu-x86_64, or this is no x86-64"
        return row
    from sklearn.ensemble import RandomForestClassifier

    X, y = rows(400)
    model = RandomForestClassifier(10, max_depth=6, random_state=0).fit(X, y)
    forest, expected = skforge.load_forest(model), model.predict_proba(X)
    np.save(folder / "rows.npy", X)
    cache = folder / "cpu-cache"
    # filled for this CPU, used by others
    with mock.patch.dict(os.environ, {"SKFORGE_CACHE_DIR": str(cache)}):
        module = skforge.compile_forest(forest)
        row.count(np.array_equal(module.predict_raw(X), expected), "this CPU")
        skforge.save(module, folder / "any.skforge")
        fixed = _module_of_this_cpu(forest, host)
        skforge.save(fixed, folder / "this.skforge")
    for name in names:
        bits, more = _CPUS[name]
        code, out, err = processes.run(
            _LOAD,
            folder / "any.skforge",
            folder / "rows.npy",
            folder / "found.npy",
            folder / "this.skforge",
            changes={"SKFORGE_CACHE_DIR": str(cache), **more},
            command=(emulator, "-cpu", name, sys.executable),
            seconds=900,
        )
        well = code == 0 and np.array_equal(np.load(folder / "found.npy"), expected)
        row.count(well, f"{name}: {processes.said(code, err)}")
        seen = out.split(" ", 2)
        refused = len(seen) > 1 and seen[:2] == [str(bits), "True"]
        row.count(refused, f"{name}, an artifact for {host.cpu} alone: {out[:200]}")
    row.notes = (
        f"{host.cpu} to {', '.join(names)} (qemu-user), sharing a cache of machine "
        "code: compiled anew, same bits; made for one CPU only, it is refused by name"
    )
    return row


def _module_of_this_cpu(forest: Forest, host: Target) -> object:
    """Return a module that is for the best level of x86-64 that runs here, no other."""
    for level in ("x86-64-v4", "x86-64-v3"):
        try:
            return skforge.compile_forest(forest, target=Target.parse(level))
        except TargetError:
            continue
    return skforge.compile_forest(forest, target=host)
