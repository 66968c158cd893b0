"""Programs that nobody edits, with and without ``skforge run``.

    python -m benchmarks.accelerated --output benchmarks/results

Each program runs in processes of its own that take turns, as ``python PROGRAM`` and as
``skforge run PROGRAM``. It trains or loads a model, works with it, and prints how much
CPU time that work took, of all threads, and a digest of all bytes that came out. A
program whose libraries are not installed is left out. The digests have to be the same,
or the script ends with 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from harness import Document, paragraphs, publish, table
from machine import in_words, machine

ROOT = Path(__file__).parents[1]

#: Before each program: data, and what prints the time and the digest.
BEGIN = """
import hashlib, time, warnings
import numpy as np, pandas as pd
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
X, y = make_classification(12000, 20, n_informative=8, random_state=0)
names = [f"c{i}" for i in range(20)]
frame = pd.DataFrame(X, columns=names)
out = hashlib.sha256()
def keep(*answers):
    for answer in answers:
        answer = np.asarray(answer)
        out.update(str((answer.dtype, answer.shape)).encode() + answer.tobytes())
"""
END = """
print(time.process_time() - start, out.hexdigest())
"""
FOREST = "RandomForestClassifier(100, random_state=0)"
PROGRAMS = {
    "permutation_importance": f"""
from sklearn.inspection import permutation_importance
model = {FOREST}.fit(X[:1500], y[:1500])
start = time.process_time()
found = permutation_importance(model, X, y, random_state=0)
keep(found.importances)
""",
    "PartialDependenceDisplay": f"""
import matplotlib; matplotlib.use("Agg")
from sklearn.inspection import PartialDependenceDisplay
model = {FOREST}.fit(X[:1500], y[:1500])
start = time.process_time()
drawn = PartialDependenceDisplay.from_estimator(
    model, X[:1000], [0, 1], grid_resolution=20)
for part in drawn.pd_results:
    keep(part["average"])
""",
    "cross_val_predict": f"""
from sklearn.model_selection import cross_val_predict
start = time.process_time()
keep(cross_val_predict({FOREST}, X[:1500], y[:1500], method="predict_proba"))
""",
    "StackingClassifier": """
from sklearn.ensemble import StackingClassifier, GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
parts = [("rf", RandomForestClassifier(60, random_state=0)),
         ("gb", GradientBoostingClassifier(n_estimators=60, random_state=0))]
model = StackingClassifier(parts, LogisticRegression(), cv=3).fit(X[:1500], y[:1500])
start = time.process_time()
for _ in range(5):
  for i in range(12):
      keep(model.predict_proba(X[i * 500 : i * 500 + 500]))
""",
    "GridSearchCV": """
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
line = make_pipeline(StandardScaler(), RandomForestClassifier(random_state=0))
grid = {"randomforestclassifier__n_estimators": [50, 100]}
start = time.process_time()
search = GridSearchCV(line, grid, cv=3).fit(X[:1000], y[:1000])
for i in range(150):
    keep(search.predict_proba(X[i * 40 : i * 40 + 40]))
""",
    **{
        f"MLflow, {flavour}": f"""
import mlflow, tempfile, logging
{load}
warnings.simplefilter("ignore")
folder = tempfile.mkdtemp()
mlflow.{flavour}.save_model(model, folder + "/model"{how})
served = mlflow.pyfunc.load_model(folder + "/model")
start = time.process_time()
for i in range(300):
    keep(served.predict(frame[i * 10 : i * 10 + 10]))
"""
        for flavour, (load, how) in {
            "sklearn": (
                f"model = {FOREST}.fit(frame[:1500], y[:1500])",
                ', serialization_format="cloudpickle"',
            ),
            "xgboost": (
                "from xgboost import XGBClassifier\n"
                "model = XGBClassifier(n_estimators=300, n_jobs=1)"
                ".fit(frame[:3000], y[:3000])",
                "",
            ),
            "lightgbm": (
                "from lightgbm import LGBMClassifier\n"
                "model = LGBMClassifier(n_estimators=300, n_jobs=1, verbose=-1)"
                ".fit(frame[:3000], y[:3000])",
                "",
            ),
            "catboost": (
                "from catboost import CatBoostClassifier\n"
                "model = CatBoostClassifier(iterations=300, verbose=0, thread_count=1, "
                "allow_writing_files=False).fit(frame[:3000], y[:3000])",
                "",
            ),
        }.items()
    },
    "FastAPI, joblib file": f"""
import joblib, tempfile
from fastapi import FastAPI
from fastapi.testclient import TestClient
path = tempfile.mkdtemp() + "/model.joblib"
joblib.dump({FOREST}.fit(X[:1500], y[:1500]), path)
app, model = FastAPI(), joblib.load(path)
@app.post("/")
def predict(rows: list[list[float]]) -> list[list[float]]:
    return model.predict_proba(np.array(rows)).tolist()
client = TestClient(app)
start = time.process_time()
for i in range(300):
    keep(client.post("/", json=X[i : i + 1].tolist()).json())
""",
    "FLAML": """
from flaml import AutoML
automl = AutoML()
automl.fit(X[:1500], y[:1500], task="classification", max_iter=6, time_budget=-1,
           estimator_list=["rf", "lgbm"], n_jobs=1, verbose=0, seed=0)
start = time.process_time()
for i in range(300):
    keep(automl.predict_proba(X[i * 20 : i * 20 + 20]))
""",
}


def run(text: str, accelerated: bool) -> tuple[float, str]:
    """Run a program in a process; return its seconds and the digest."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(f"{BEGIN}{text}{END}")
        words = ["-m", "skforge", "run"] if accelerated else []
        done = subprocess.run(
            [sys.executable, *words, str(program)],
            env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
            capture_output=True,
            text=True,
            timeout=600,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    seconds, digest = done.stdout.split()[-2:]
    return float(seconds), digest


def measured(name: str, text: str, rounds: int) -> Document | None:
    """Return a program's seconds on both sides; None if it cannot run here."""
    times: dict[bool, list[float]] = {False: [], True: []}
    digests = set()
    for turn in range(rounds):
        for accelerated in (False, True) if turn % 2 == 0 else (True, False):
            try:
                seconds, digest = run(text, accelerated)
            except RuntimeError as error:
                if "ModuleNotFoundError" not in str(error):
                    raise
                print(f"{name}: left out, {str(error).splitlines()[-1]}")
                return None
            times[accelerated].append(seconds)
            digests.add(digest)
    line = {
        "program": name,
        "library": round(median(times[False]), 3),
        "accelerated": round(median(times[True]), 3),
        "same": len(digests) == 1,
    }
    print(line, flush=True)
    return line


def programs_table(document: Document) -> list[str]:
    """Return the table of programs."""
    rows = [
        [
            line["program"],
            f"{line['library']:.2f} s",
            f"{line['accelerated']:.2f} s",
            f"{line['library'] / line['accelerated']:.1f}",
            "the same" if line["same"] else "others",
        ]
        for line in document["lines"]
    ]
    heads = ["program", "`python`", "`skforge run`", "times as fast", "bytes"]
    return table(heads, rows, kinds="tnnnt")


def page(document: Document) -> str:
    return paragraphs(
        "# Programs that nobody edits",
        "CPU seconds of a program's work, of all threads, without and with `skforge "
        "run`, compiling included; medians of processes in turns, "
        f"{document['rounds']} each.",
        programs_table(document),
        in_words(document["machine"]),
    )


def main(
    only: Annotated[str, typer.Option(help="Parts of names of programs.")] = "",
    rounds: int = 3,
    output: Path | None = None,
) -> None:
    lines = []
    for name, text in PROGRAMS.items():
        if any(part in name for part in only.split(",")):
            line = measured(name, text, rounds)
            lines += [] if line is None else [line]
    document: Any = {"rounds": rounds, "machine": machine(), "lines": lines}
    print(publish(output, "accelerated", document, page))
    if not all(line["same"] for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
