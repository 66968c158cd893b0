"""Programs that nobody edits, with and without ``skforge run``.

    python benchmarks/environments.py mlflow mlserver bentoml dask-ml flaml packages
    python benchmarks/environments.py ray autogluon
    python -m benchmarks.accelerated --output benchmarks/results

``unedited/`` holds the programs, and the environments what they need; a program whose
environment is not there is left out. Each runs in processes of its own that take turns,
as ``python PROGRAM`` and as ``skforge run PROGRAM``, with an empty cache. What counts
is the CPU time of its work, of all threads and processes, compiling included: it
depends less on neighbours than the clock does. A server is asked by this process, one
request after another. All bytes that come out and all warnings have to be the same, or
the script ends with 1. A thread in the accelerated processes notes the calls that
kernels answered. ``programs_compared.py`` compares alone, with kernels from the first
call on.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from environments import python_of, version_in
from harness import Document, chosen, paragraphs, parts, publish, rounded, stored, table
from machine import in_words, machine

ROOT = Path(__file__).parents[1]
UNEDITED = Path(__file__).with_name("unedited")
#: The longest that a program may take, and a server to start, in seconds.
LONGEST, TO_START = 900, 180


@dataclass(frozen=True, slots=True)
class Program:
    """A command, its environment (this Python's own if ""), and what is made before."""

    name: str
    environment: str
    command: str
    #: The arguments of ``make.py``.
    made: str = ""
    #: Where a server answers, and the key of its rows in a request.
    path: str = ""
    key: str = ""
    #: How many rows a request has: forests take some ms for few, boosters for many.
    rows: int = 10
    #: How many requests a server gets.
    requests: int = 1000


LIBRARIES = {"sklearn": 10, "xgboost": 500, "lightgbm": 500, "catboost": 500}
SERVED = "mlflow models serve -m model --env-manager local -h 127.0.0.1 -p PORT"
INFER = "/v2/models/served/infer"
PROGRAMS = [
    Program("permutation_importance", "", "permutation_importance.py"),
    Program("PartialDependenceDisplay", "", "partial_dependence.py"),
    Program("cross_val_predict", "", "cross_val_predict.py"),
    Program("StackingClassifier", "", "stacking.py"),
    Program("GridSearchCV", "", "grid_search.py"),
    Program("scikit-learn's inspection of boosters", "", "inspection_of_boosters.py"),
    Program("LightGBM with early stopping", "", "lightgbm_early.py"),
    *(
        Program(
            *(f"MLflow pyfunc of {name}", "mlflow", f"mlflow_pyfunc.py {rows}"),
            f"mlflow {name}",
        )
        for name, rows in LIBRARIES.items()
    ),
    *(
        Program(
            *(f"mlflow models serve of {name}", "mlflow", f"-m {SERVED}"),
            *(f"mlflow {name}", "/invocations", "dataframe_split", rows),
        )
        for name, rows in LIBRARIES.items()
    ),
    *(
        Program(
            *(f"MLServer of {name}", "mlserver", "mlserver start ."),
            *(f"mlserver {name}", INFER, "inputs", rows),
        )
        for name, rows in LIBRARIES.items()
        if name != "catboost"
    ),
    Program(
        *("BentoML", "bentoml"),
        "-m bentoml serve bento:Forest --host 127.0.0.1 --port PORT",
        *("joblib", "/predict", "rows"),
    ),
    Program(
        *("FastAPI and a joblib file", "mlflow", "-m uvicorn app:app --port PORT"),
        *("joblib", "/"),
    ),
    Program("ParallelPostFit of Dask-ML", "dask-ml", "dask_ml_post_fit.py"),
    Program("AutoML of FLAML", "flaml", "flaml_automl.py"),
    Program("TabularPredictor of AutoGluon", "autogluon", "autogluon_tabular.py"),
    Program("Ray: map_batches and joblib", "ray", "ray_batches.py"),
    *(
        Program(name, "packages", command)
        for name, command in {
            "SHAP's explainers": "shap_explainer.py",
            "Optuna with LightGBM": "optuna_lightgbm.py",
            "a notebook under papermill": "notebook.py",
            "imbalanced-learn": "imbalanced_pipeline.py",
            "Feature-engine": "feature_engine_pipeline.py",
            "mlxtend": "mlxtend_stacking.py",
            "scikit-lego": "scikit_lego.py",
            "MAPIE": "mapie_conformal.py",
            "ELI5": "eli5_permutation.py",
        }.items()
    ),
    Program(
        *("gunicorn: Flask in two forked workers", "packages"),
        "gunicorn --preload -w 2 -b 127.0.0.1:PORT wsgi:app",
        *("pickle", "/"),
    ),
]

#: By environment, the packages that its programs are of, if they have other names.
PACKAGES = {
    "autogluon": ("autogluon.tabular",),
    "packages": (
        *("shap", "optuna", "papermill", "imbalanced-learn", "feature-engine"),
        *("mlxtend", "scikit-lego", "mapie", "eli5", "gunicorn"),
    ),
}


@dataclass(frozen=True, slots=True)
class Run:
    """CPU seconds of the work, seconds of each call, a digest of all bytes."""

    cpu: float
    walls: list[float]
    digest: str
    #: The lines that a program wrote to stderr, if it is no server.
    said: str = ""


# ------------------------------------------------------------ programs and servers


def python_for(program: Program) -> str:
    found = python_of(program.environment) if program.environment else None
    return str(found or sys.executable)


def scripts_of(program: Program) -> Path:
    return Path(python_for(program)).parent


def variables(
    program: Program, folder: Path, accelerated: bool, eager: bool = False
) -> dict[str, str]:
    """Return the environment of a run, which notes its calls in the folder."""
    paths = [str(ROOT), str(UNEDITED)]
    if accelerated:
        paths.insert(0, str(UNEDITED / "count"))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(scripts_of(program)), os.environ["PATH"]]),
        "SKFORGE_CACHE_DIR": str(folder / "cache"),
        "COUNTED": str(folder),
        "COUNTED_EAGER": "1" if eager else "",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "BENTOML_DO_NOT_TRACK": "True",
    }


def run(
    program: Program, made: Path, accelerated: bool, eager: bool = False
) -> tuple[Run, Document]:
    """Run a program beside a copy of what was made; return its calls as well.

    ``eager`` lets kernels answer as soon as they can, where they are slower, too.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(made, folder, dirs_exist_ok=True)
        environment = variables(program, folder, accelerated, eager)
        words = program.command.split()
        if words[0] != "-m":
            is_ours = words[0].endswith(".py")
            words[0] = str((UNEDITED if is_ours else scripts_of(program)) / words[0])
        ours = ["-m", "skforge", "run"] if accelerated else []
        command = [python_for(program), *ours, *words]
        if program.path:
            done = asked(program, command, folder, environment)
        else:
            told, said = _answer(command, folder, environment)
            done = Run(**json.loads(told.splitlines()[-1]), said=said)
        lines = [
            line
            for file in folder.glob("*.counted")
            for line in json.loads(file.read_text())
        ]
    names = ("kernel_calls", "library_calls", "differed")
    return done, {name: sum(line[name] for line in lines) for name in names}


def make(program: Program, folder: Path) -> None:
    """Train a program's model and write it to a folder."""
    if program.made:
        script = [python_for(program), str(UNEDITED / "make.py")]
        environment = variables(program, folder, accelerated=False)
        _answer([*script, *program.made.split()], folder, environment)


def compile_bytecode(python: str) -> None:
    """Write skforge's bytecode, as installers do: imports take 0.5 s more without."""
    command = [python, "-m", "compileall", "-q", str(ROOT / "skforge")]
    subprocess.run(command, check=True)


def _answer(
    command: list[str], folder: Path, environment: dict[str, str]
) -> tuple[str, str]:
    """Return what a command wrote to stdout, and the lines on stderr, sorted."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    plain = done.stderr.replace(str(folder), "")
    lines = re.sub(r"[0-9a-f]{12,}|\d+", "", plain).splitlines()  # names and times
    return done.stdout, "\n".join(sorted({line.rstrip() for line in lines}))


def asked(
    program: Program, command: list[str], folder: Path, environment: dict[str, str]
) -> Run:
    """Start a server, send it requests, end it."""
    port = _free_port()
    command = [word.replace("PORT", str(port)) for word in command]
    settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": _free_port()}
    settings |= {"metrics_port": _free_port()}
    (folder / "settings.json").write_text(json.dumps(settings))  # of MLServer
    with server(command, folder, environment) as first:
        bodies = [_body(program, i) for i in range(program.requests)]
        deadline = time.monotonic() + TO_START
        while _post(port, program.path, bodies[0]) is None:
            if time.monotonic() > deadline or not family(first):
                told = (folder / "told").read_text(errors="replace")
                raise SystemExit(f"{program.name} does not answer:\n{told[-3000:]}")
            time.sleep(0.5)
        digest, walls, before = hashlib.sha256(), [], cpu_of(first)
        for body in bodies:
            start = time.perf_counter()
            answer = _post(port, program.path, body)
            walls.append(time.perf_counter() - start)
            if answer is None:
                raise SystemExit(f"{program.name} failed at a request")
            digest.update(answer)
        cpu = cpu_of(first) - before
        time.sleep(1.0)  # for what counts
    return Run(cpu, walls, digest.hexdigest())


@contextmanager
def server(
    command: list[str], folder: Path, environment: dict[str, str]
) -> Iterator[int]:
    """Start a server in a session of its own; end all that it has started."""
    with (folder / "told").open("wb") as told:
        started = subprocess.Popen(
            *(command,),
            cwd=folder,
            env=environment,
            stdout=told,
            stderr=told,
            start_new_session=True,
        )
    try:
        yield started.pid
    finally:
        left = {process[0] for process in family(started.pid)}
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), sign)
            deadline = time.monotonic() + 10
            while left and time.monotonic() < deadline:
                started.poll()
                left = {pid for pid in left if Path("/proc", pid).exists()}
                time.sleep(0.1)
        started.wait()


def family(first: int) -> list[list[str]]:
    """Return ``/proc/*/stat`` of a process, those it started, and its session's."""
    alive: dict[str, list[str]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = file.read_text()
        except OSError:
            continue  # it has just ended
        fields = [file.parent.name, "", *text.rpartition(")")[2].split()]
        if fields[2] != "Z":
            alive[fields[0]] = fields
    found = {pid for pid, fields in alive.items() if fields[5] == str(first)}
    while more := {p for p, fields in alive.items() if fields[3] in found} - found:
        found |= more
    return [alive[pid] for pid in found]


def cpu_of(first: int) -> float:
    """Return the CPU seconds of a server's processes, and of those that are over."""
    ticks = sum(sum(map(int, fields[13:17])) for fields in family(first))
    return ticks / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _body(program: Program, number: int) -> str:
    """Return a request of some rows, as the server of a key wants it."""
    key, shape = program.key, (program.rows, 20)
    rows = np.random.default_rng(number).normal(size=shape).round(3)
    if key == "inputs":
        tensor = {"name": "rows", "shape": rows.shape, "datatype": "FP64"}
        asked = {**tensor, "data": rows.ravel().tolist()}
        return json.dumps({"id": str(number), "inputs": [asked]})
    if key == "dataframe_split":
        names = [f"c{i}" for i in range(20)]
        return json.dumps({key: {"columns": names, "data": rows.tolist()}})
    return json.dumps({key: rows.tolist()} if key else rows.tolist())


def _post(port: int, path: str, body: str) -> bytes | None:
    """Return a server's answer, or None if there is none, or an error."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        read = answer.read()
        return read if answer.status == 200 else None
    except OSError:
        return None
    finally:
        connection.close()


# ------------------------------------------------------------ measuring


def measured(program: Program, rounds: int) -> Document:
    """Return a program's seconds on both sides."""
    runs: dict[bool, list[Run]] = {False: [], True: []}
    counted: list[Document] = []
    compile_bytecode(python_for(program))
    with tempfile.TemporaryDirectory() as folder:
        make(program, Path(folder))
        for turn in range(rounds):
            for accelerated in (False, True) if turn % 2 == 0 else (True, False):
                done, calls = run(program, Path(folder), accelerated)
                runs[accelerated].append(done)
                counted += [calls] if accelerated else []
    told = {(one.digest, one.said) for side in runs.values() for one in side}
    line = {
        **asdict(program),
        **{name: round(median(one[name] for one in counted)) for name in counted[0]},
        "rounds": rounds,
        "same": len(told) == 1,
        "library": _figures(runs[False]),
        "accelerated": _figures(runs[True]),
    }
    print(line, flush=True)
    return line


def _figures(runs: list[Run]) -> Document:
    """Return medians: CPU seconds, and seconds of a call of the last third."""
    lasts = [median(one.walls[-len(one.walls) // 3 :]) for one in runs if one.walls]
    found = {"cpu": median(one.cpu for one in runs)}
    return found | ({"call": median(lasts)} if lasts else {})


def able(wanted: list[str]) -> Iterator[Program]:
    """Yield the programs that can run, and say which cannot."""
    for program in PROGRAMS:
        if not chosen(program.name, wanted):
            continue
        if program.environment and python_of(program.environment) is None:
            print(f"{program.name}: left out, no environment {program.environment}")
            continue
        yield program


# ------------------------------------------------------------ the page


def versions(lines: list[Document]) -> dict[str, str]:
    """Return the versions of the packages that programs are of, in environments."""
    return {
        package: version_in(name, package)
        for name in dict.fromkeys(one["environment"] for one in lines)
        for package in PACKAGES.get(name, (name,))
        if name and python_of(name)
    }


def programs_table(document: Document) -> list[str]:
    """Return the table of programs."""
    rows = []
    for line in document["lines"]:
        library, ours = line["library"], line["accelerated"]
        calls = ""
        if "call" in ours:
            calls = f"{1e3 * library['call']:.1f}, {1e3 * ours['call']:.1f}"
        total = line["kernel_calls"] + line["library_calls"]
        rows.append(
            [
                line["name"],
                f"{line['kernel_calls']:,} of {total:,}",
                f"{library['cpu']:.2f}, {ours['cpu']:.2f}",
                f"{library['cpu'] / ours['cpu']:.1f}",
                calls,
                "the same" if line["same"] else "**others**",
            ]
        )
    heads = ["program", "calls by kernels", "CPU s: `python`, `skforge run`", "ratio"]
    return table([*heads, "ms a call at the end", "bytes"], rows, kinds="tnnnnt")


def rounds_of(document: Document) -> str:
    """Return how many processes a side the medians are of."""
    counts = sorted({line["rounds"] for line in document["lines"]})
    return " or ".join(map(str, counts))


def page(document: Document) -> str:
    packages = ", ".join(f"{k} {v}" for k, v in document["packages"].items())
    return paragraphs(
        "# Programs that nobody edits",
        "CPU seconds of a program's work, of all threads and processes, without and "
        "with `skforge run`, compiling included and with an empty cache; medians, "
        f"runs a side: {rounds_of(document)}, which take turns. A call at the end "
        "is the median of the last third. See `benchmarks/accelerated.py`.",
        programs_table(document),
        f"Besides: {packages}." if packages else "",
        in_words(document["machine"]),
    )


def main(
    only: Annotated[str, typer.Option(help="Parts of names of programs.")] = "",
    rounds: Annotated[int, typer.Option(help="Processes a side.")] = 3,
    requests: Annotated[int, typer.Option(help="Requests of a server.")] = 1000,
    output: Annotated[Path | None, typer.Option(help="Folder of results.")] = None,
) -> None:
    """Measure; print and write what is measured now and what is there of others."""
    lines = [] if output is None else stored(output, "accelerated").get("lines", [])
    for program in able(parts(only)):
        line = measured(replace(program, requests=requests), rounds)
        known = {**{one["name"]: one for one in lines}, program.name: line}
        lines = [known[one.name] for one in PROGRAMS if one.name in known]
        document: Any = {
            "machine": machine(),
            "packages": versions(lines),
            "lines": lines,
        }
        publish(output, "accelerated", rounded(document), page)
    print(*programs_table({"lines": lines}), sep="\n")
    if not all(line["same"] for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
