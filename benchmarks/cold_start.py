"""Time fresh processes: from NumPy's import to the first prediction of one row.

    python -m benchmarks.cold_start --output benchmarks/results

A function that scales from zero pays this, and so does a command or a spawned worker.
Each start is a process of its own (``cold_start_worker.py``) on one core; systems take
turns. Each reads the file that loads fastest, which is written before. Every system
starts once uncounted, so that files are in the page cache and Python's modules are
compiled; its answers are compared with the library's. skforge starts with its object
cache filled by that start, and with an empty one, where it compiles.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import harness
import numpy as np
import training
import typer
from machine import in_words, machine
from measure import compare
from peers import boosted_onnx

import skforge
from skforge import CompiledForest

MIB = 1 << 20
WORKER = Path(__file__).with_name("cold_start_worker.py")
#: Rows that a process answers, one by one: the first is cold, the last is not.
ROWS = 10
SECONDS = 600
STEPS = ("numpy", "imports", "load", "first")
WARM, EMPTY, EXPORTED = "skforge", "skforge, empty cache", "skforge, exported wheel"
OURS = (WARM, EMPTY, EXPORTED)
COMPILED = "lignum, compiled"
#: What starts in the worker, and the module that it needs, by the name of the system.
SYSTEMS = {
    WARM: ("skforge", "skforge"),
    EMPTY: ("skforge", "skforge"),
    EXPORTED: ("exported", "skforge"),
    "XGBoost": ("xgboost", "xgboost"),
    "XGBoost, bare": ("bare_xgboost", "xgboost"),
    "LightGBM": ("lightgbm", "lightgbm"),
    "LightGBM, bare": ("bare_lightgbm", "lightgbm"),
    "scikit-learn": ("sklearn", "sklearn"),
    "ONNX Runtime": ("onnxruntime", "onnxruntime"),
    "treelite": ("treelite", "treelite"),
    "lignum": ("lignum", "lignum"),
    COMPILED: ("lignum", "lignum"),
}
OWN = {"xgboost": "XGBoost", "lightgbm": "LightGBM", "sklearn": "scikit-learn"}


@dataclass(slots=True)
class Start:
    """How one system starts with one model: medians of its processes."""

    model: str
    system: str
    #: Seconds of each step, of the last row, and in all, process by process.
    seconds: dict[str, float] = field(default_factory=dict)
    totals: list[float] = field(default_factory=list)
    #: Bytes beyond those after NumPy's import: ``rss``, ``pss`` and ``peak``.
    bytes: dict[str, float] = field(default_factory=dict)
    file_bytes: int = 0
    answers: str = ""
    why_not: str = ""


# ------------------------------------------------------------ models and files


@cache
def _rows_and_target(n: int) -> tuple[Any, Any]:
    X, y = training.table(n)
    return X, X[:, 0] * y + X[:, 1]


def _xgboost(trees: int, depth: int) -> training.Trained:
    X, y = _rows_and_target(20_000)
    return training.xgboost(X, y, trees, max_depth=depth)


def _lightgbm(trees: int) -> training.Trained:
    X, y = _rows_and_target(20_000)
    return training.lightgbm(X, y, "LGBMRegressor", n_estimators=trees)


def _forest(trees: int) -> training.Trained:
    X, y = _rows_and_target(10_000)
    return training.sklearn("RandomForestRegressor", X, y, n_estimators=trees)


MODELS: dict[str, Callable[[], training.Trained]] = {
    "XGBoost, 100 trees of depth 6": partial(_xgboost, 100, 6),
    "XGBoost, 1,000 trees of depth 8": partial(_xgboost, 1000, 8),
    "LightGBM, 100 trees of 31 leaves": partial(_lightgbm, 100),
    "random forest, 100 trees of full depth": partial(_forest, 100),
}


def _file(system: str, made: training.Trained, folder: Path) -> Path:
    """Write the file that a system starts from; raise what says why there is none."""
    model = made.model
    match system:
        case "skforge" | "skforge, empty cache":
            file = folder / "model.skforge"
            fast = CompiledForest(model, tuning="off", n_jobs=1)
            skforge.save(fast.fit(made.rows[:256]), file)
        case "skforge, exported wheel":
            forest = skforge.load_forest(model)
            place = skforge.export(forest, folder / "cold", kind="wheel", name="cold")
            (wheel,) = place.glob("*.whl")
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(folder)
            file = folder / "cold"
        case "XGBoost" | "XGBoost, bare":
            file = folder / "model.ubj"
            model.save_model(file)
        case "LightGBM" | "LightGBM, bare":
            file = folder / "model.txt"
            model.save_model(file)
        case "scikit-learn":
            import joblib

            file = folder / "model.joblib"
            joblib.dump(model.set_params(n_jobs=1), file)
        case "ONNX Runtime":
            file = folder / "model.onnx"
            file.write_bytes(_onnx(made))
        case "treelite":
            file = folder / "model.treelite"
            _treelite(made).serialize(file)
        case _:
            file = _lignum(made, folder, compiled=system == COMPILED)
    return file


def _onnx(made: training.Trained) -> bytes:
    if made.kind != "sklearn":
        return boosted_onnx(made.kind, made.model, made.rows.shape[1])
    import skl2onnx

    opset = {"": 21, "ai.onnx.ml": 3}
    onnx = skl2onnx.to_onnx(made.model, made.rows[:1], target_opset=opset)
    return bytes(onnx.SerializeToString())


def _treelite(made: training.Trained) -> Any:
    import treelite

    match made.kind:
        case "xgboost":
            return treelite.frontend.from_xgboost(made.model)
        case "lightgbm":
            return treelite.frontend.from_lightgbm(made.model)
        case _:
            return treelite.sklearn.import_model(made.model)


def _lignum(made: training.Trained, folder: Path, compiled: bool) -> Path:
    import lignum

    if made.kind == "sklearn":
        raise ValueError("reads no models of scikit-learn")
    source, file = folder / f"source.{made.kind}.json", folder / "model.bin"
    if made.kind == "lightgbm":
        source = folder / "source.txt"
    made.model.save_model(source)
    model = lignum.load(str(source))
    model.save(str(file))
    if compiled:
        model.compile(library=file.with_suffix(".so"), work_dir=str(folder / "work"))
    return file


def size(file: Path) -> int:
    """Return the bytes of a file with its library, or of all files of a folder."""
    library = file.with_suffix(".so")
    files = file.rglob("*") if file.is_dir() else {file, library}
    names = (one for one in files if "__pycache__" not in one.parts)
    return sum(one.stat().st_size for one in names if one.is_file())


# ------------------------------------------------------------ processes


def environment(cache_folder: str) -> dict[str, str]:
    """Return that of a process, which keeps bytecode and objects as usual."""
    without = {"PYTHONDONTWRITEBYTECODE", "PYTHONOPTIMIZE", "SKFORGE_CACHE"}
    kept = {key: value for key, value in os.environ.items() if key not in without}
    return {**kept, "SKFORGE_CACHE_DIR": cache_folder}


def started(system: str, file: Path, rows: Path, caches: Path, core: int) -> Any:
    with contextlib.ExitStack() as stack:
        place = str(caches / "filled")
        if system == EMPTY:
            place = stack.enter_context(tempfile.TemporaryDirectory(dir=caches))
        command = [sys.executable, WORKER, SYSTEMS[system][0], file, rows, core]
        done = subprocess.run(
            list(map(str, command)),
            env=environment(place),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "died").splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def answers(found: Any) -> Any:
    return np.array(found["answers"]["values"], found["answers"]["dtype"])


def agreement(found: Any, expected: Any) -> str:
    """Say in few words how answers agree with the library's.

    >>> agreement(np.float64([1.5]), np.float32([1.5]))
    'equal, in float64'
    """
    difference, same = compare(found, expected)
    if same:
        return "same bits"
    if found.ravel().tolist() == expected.ravel().tolist():
        return f"equal, in {found.dtype}"
    return f"differ by {difference:.1e}"


def put_together(start: Start, runs: Sequence[Any]) -> Start:
    for run in runs:
        start.totals.append(sum(run["seconds"][step] for step in STEPS))
    for name in ("seconds", "bytes"):
        of = getattr(start, name)
        for key in runs[0][name]:
            of[key] = median(run[name][key] for run in runs)
    start.seconds["total"] = median(start.totals)
    return start


def measured(
    name: str, systems: list[str], folder: Path, processes: int, core: int
) -> list[Start]:
    """Start every system with one model: once to compare answers, then in turns."""
    made = MODELS[name]()
    rows = folder / "rows.npy"
    np.save(rows, made.rows[:ROWS])
    own = OWN[made.kind]
    others = [one for library, one in OWN.items() if library != made.kind]
    systems = [one for one in systems if not one.startswith(tuple(others))]
    starts, files, expected = [], {}, None
    start_of = partial(started, rows=rows, caches=folder, core=core)
    for system in [own, *(one for one in systems if one != own)]:
        start = Start(name, system)
        place = folder / str(len(starts))
        place.mkdir()
        starts.append(start)
        try:
            file = _file(system, made, place)
            found = answers(start_of(system, file))
        except Exception as error:
            if system in (own, *OURS):
                raise
            start.why_not = harness.short(error)
            continue
        if expected is None:
            expected = found
        files[system] = file
        start.file_bytes, start.answers = size(file), agreement(found, expected)
        if system in OURS and start.answers != "same bits":
            raise SystemExit(f"{system}, {name}: {start.answers}")
    calls = {system: partial(start_of, system, file) for system, file in files.items()}
    runs = harness.take_turns(calls, processes)
    places = {system: place for place, system in enumerate(SYSTEMS)}
    for start in starts:
        if start.system in runs:
            put_together(start, runs[start.system])
    return sorted(starts, key=lambda start: places[start.system])


# ------------------------------------------------------------ the page


def page(document: harness.Document) -> str:
    found = harness.records(Start, document["starts"])
    missing = ", ".join(document["missing"])
    parts: list[Any] = [
        "# Cold start",
        "Milliseconds of a fresh process, from NumPy's import to the first prediction "
        f"of one row: medians of {document['processes']} processes on one core, which "
        "systems start in turns. *slowest* is the slowest process, *10th row* the call "
        "for the tenth row, in µs. Memory is what a process has after ten rows beyond "
        "what it had after NumPy's import, and its peak, in MiB; PSS counts half of "
        "the pages that the benchmark's own process maps, too. *file* is what it "
        "loads, in MiB, without packages. *answers* are compared with the library's.",
        "XGBoost and LightGBM import scikit-learn and pandas where they are installed; "
        "*bare* is a start where they are not. skforge's wheel needs NumPy alone.",
        "The page cache is warm, and Python's modules are compiled. Not measured: the "
        "start of the interpreter, files that are not in the page cache, a quota below "
        "one core, further models or workers of one process, tl2cgen and lleaves.",
        document["note"],
        in_words(document["facts"]),
        missing and f"Not installed: {missing}.",
    ]
    heads = ["system", "NumPy", "imports", "load", "first row", "**total**", "slowest"]
    heads += ["10th row", "RSS", "PSS", "peak", "file", "answers"]
    for model in dict.fromkeys(start.model for start in found):
        of = [start for start in found if start.model == model]
        rows = [row(start) for start in of if start.totals]
        kinds = "t" + "n" * (len(heads) - 2) + "t"
        parts += [f"## {model}", harness.table(heads, rows, kinds=kinds)]
        out = [f"{start.system} ({start.why_not})" for start in of if start.why_not]
        parts.append(out and f"Not measured: {'; '.join(out)}.")
    return harness.paragraphs(*parts)


def row(start: Start) -> list[str]:
    took = [f"{start.seconds[step] * 1e3:,.1f}" for step in STEPS]
    total = f"**{start.seconds['total'] * 1e3:,.0f}**"
    slowest = f"{max(start.totals) * 1e3:,.0f}"
    used = [
        f"{start.bytes[key] / MIB:,.0f}" if key in start.bytes else "–"
        for key in ("rss", "pss", "peak")
    ]
    file = f"{start.file_bytes / MIB:,.1f}"
    last = harness.micro(start.seconds["last"])
    return [start.system, *took, total, slowest, last, *used, file, start.answers]


def main(
    models: harness.Parts = "",
    systems: harness.Parts = "",
    processes: Annotated[int, typer.Option(help="Starts of each system.")] = 20,
    quick: Annotated[bool, typer.Option(help="Three starts of each.")] = False,
    core: Annotated[int, typer.Option(help="The core to start on; -1: any.")] = 0,
    note: Annotated[str, typer.Option(help="What the page is to say.")] = "",
    output: harness.Output = None,
) -> None:
    """Measure, print, and write cold_start.json and cold_start.md."""
    wanted = [one for one in SYSTEMS if harness.chosen(one, harness.parts(systems))]
    missing = [one for one in SYSTEMS if not importlib.util.find_spec(SYSTEMS[one][1])]
    document: harness.Document = {
        "facts": machine(),
        "processes": 3 if quick else processes,
        "note": note,
        "missing": [one for one in missing if one in wanted],
        "starts": [],
    }
    use = [one for one in wanted if one not in missing]
    for name in MODELS:
        if not harness.chosen(name, harness.parts(models)) or name.startswith(
            tuple(missing)
        ):
            continue
        with tempfile.TemporaryDirectory(prefix="skforge-bench-") as folder:
            of = measured(name, use, Path(folder), document["processes"], core)
        document["starts"] += of
        harness.publish(output, "cold_start", harness.rounded(document), page)
    print(harness.publish(None, "cold_start", harness.rounded(document), page))


if __name__ == "__main__":
    typer.run(main)
