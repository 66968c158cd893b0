"""``skforge run``, the processes that a program starts, and forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from skforge.acceleration import launching
from tests.programs import ROOT, command, run_python

#: Prints how it was started, and what it finds in itself and in its children.
PROGRAM = """
import multiprocessing, os, subprocess, sys

def state():
    from sklearn.ensemble import RandomForestClassifier
    wrapped = hasattr(vars(RandomForestClassifier.__mro__[1])["predict"], "__wrapped__")
    return wrapped, os.environ.get("USUAL")

def tell(pipe):
    pipe.send(state())

if __name__ == "__main__":
    print(sys.argv[1:], state())
    for way in ("spawn", "fork"):
        context = multiprocessing.get_context(way)
        ours, theirs = context.Pipe()
        child = context.Process(target=tell, args=(theirs,))
        child.start()
        print(way, ours.recv())
        child.join()
    code = "import sys; print('skforge' in sys.modules)"
    alone = subprocess.check_output([sys.executable, "-I", "-c", code], text=True)
    print("alone", alone.strip())
    sys.exit(7)
"""


def started(program: Path, *arguments: str, **more: str) -> Any:
    folder = os.pathsep.join([str(ROOT), str(program.parent)])
    words = [sys.executable, "-m", "skforge", "run", *arguments]
    return subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": folder, **more},
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_a_program_and_its_processes_are_accelerated(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['USUAL'] = 'yes'")
    done = started(program, "--report", "program.py", "--report", "-x")
    assert (done.returncode, done.stderr) == (
        7,
        "skforge has seen no call of a model.\n",
    )
    assert done.stdout.splitlines() == [
        "['--report', '-x'] (True, 'yes')",
        "spawn (True, 'yes')",
        "fork (True, 'yes')",
        "alone False",
    ]


ASKING = """
import os, signal, subprocess, sys
import numpy as np
from sklearn.ensemble import RandomForestClassifier

X = np.arange(20.0)[:, None]
model = RandomForestClassifier(2, random_state=0).fit(X, X[:, 0] > 7)
if len(sys.argv) > 1:
    sys.exit([model.predict(X) for _ in range(3)].clear())
model.predict(X)
if not os.fork():
    model.predict(X), model.predict(X[:1]), model.predict_proba(X)
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
subprocess.check_call([sys.executable, __file__, "child"])
if not os.fork():
    os._exit(0)  # which counts nothing
os.wait()
"""


def test_a_report_counts_processes_even_if_they_are_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(ASKING)
    folders = tmp_path / "folders"
    folders.mkdir()
    silent = {"PYTHONWARNINGS": "ignore"}  # Python 3.12 warns of forks beside threads
    done = started(program, "--report", "program.py", TMPDIR=str(folders), **silent)
    assert done.returncode == 0, done.stderr
    _, *lines = done.stderr.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "RandomForestClassifier predict 0 calls, 0 rows 6 calls, 101 rows 0.00",
        "6 calls: too few calls so far",
        "RandomForestClassifier predict_proba 0 calls, 0 rows 1 calls, 20 rows 0.00",
        "1 calls: too few calls so far",
        "Counted in the program, and in 2 of the processes that it started.",
    ]
    assert [*folders.iterdir()] == []


def test_a_module_runs_and_is_left_alone_if_the_library_is_to_answer(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import program_state")
    (tmp_path / "program_state.py").write_text(
        "from sklearn.ensemble import IsolationForest\n"
        "print(hasattr(vars(IsolationForest)['predict'], '__wrapped__'))"
    )
    done = started(program, "-m", "program", SKFORGE_OFF="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_a_program_has_to_be_named(capsys):
    code, out, told = command(capsys, "run", "-m")
    assert (code, out) == (2, "")
    assert told == (
        "error: Name a program: skforge run SCRIPT, or skforge run -m MODULE.\n"
    )


def test_the_environment_of_a_program():
    before = {"PYTHONPATH": f"a{os.pathsep}{launching.HOOK}", "X": "1"}
    changed = launching.with_hook(before, "/folder", 5, 2)
    assert changed == {
        "PYTHONPATH": os.pathsep.join([launching.HOOK, "a"]),
        "X": "1",
        "SKFORGE_ACCELERATE": "1",
        "SKFORGE_ACCELERATE_MIN_ROWS": "5",
        "SKFORGE_ACCELERATE_MIN_CALLS": "2",
        "SKFORGE_ACCELERATE_REPORT": f"{os.getpid()}:/folder",
    }


FORKED = """
import os, sys
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from skforge import Schedule
from skforge.acceleration import api
from skforge.acceleration.compiling import COMPILER
from skforge.acceleration.records import record_of
from skforge.acceleration.settings import Settings

X = np.random.default_rng(0).random((99, 3))
first, second = (
    RandomForestClassifier(3, random_state=i).fit(X, X[:, 0] > 0.5) for i in range(2)
)
expected = [model.predict_proba(X) for model in (first, second)]
api.start((), Settings(eager=True, min_calls=1, schedule=Schedule()))
for _ in range(3):
    first.predict_proba(X)

def fork(name):
    sys.stdout.flush()
    if os.fork():
        assert os.wait()[1] == 0
        return
    for _ in range(4):
        for model, wanted in zip((first, second), expected):
            assert model.predict_proba(X).tobytes() == wanted.tobytes()
    for model in (first, second):
        record = record_of(model)
        sides = [tally.by_kernels.values() for tally in record.tallies.values()]
        calls = sum(sums[0] for side in sides for sums in side)
        print(name, record.state, record.why, calls)
    sys.stdout.flush()
    os._exit(0)

fork("idle")
COMPILER.at_work.append(None)
fork("compiling")
"""


def test_forks_leave_models_to_their_libraries_while_one_compiles():
    why = "the process was forked while models compiled"
    assert run_python(FORKED).splitlines() == [
        "idle ready  5",
        "idle ready  2",
        f"compiling left {why} 1",
        f"compiling left {why} 0",
    ]
