"""What users get wrong on the command line: one line, exit code 2, no traceback."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import skforge
from skforge.cli.main import app

xgboost = pytest.importorskip("xgboost")
pd = pytest.importorskip("pandas")

NAMES = ["age", "size", "price"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with good files and bad ones."""
    at = tmp_path_factory.mktemp("cli")
    X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    frame = pd.DataFrame(X, columns=NAMES)
    model = xgboost.XGBRegressor(n_estimators=2, max_depth=2, n_jobs=1)
    model.fit(frame, X[:, 0]).save_model(at / "model.json")
    fast = skforge.CompiledForest(model, tuning="off").fit(frame)
    skforge.save(fast, at / "plain.skforge")
    frame.to_csv(at / "rows.csv", index=False)
    frame[["age", "size"]].to_csv(at / "lacks.csv", index=False)
    frame.rename(columns={"price": "cost"}).to_csv(at / "other.csv", index=False)
    np.save(at / "narrow.npy", X[:, :2])
    for ending in ("json", "ubj", "txt", "onnx", "skforge", "xyz", "csv"):
        (at / f"text.{ending}").write_text("hello\nworld\n")
    (at / "empty.csv").write_text("")
    (at / "header.csv").write_text("age,size,price\n")
    (at / "ragged.csv").write_text("1,2,3\n1,2\n")
    (at / "words.csv").write_text("age,size,price\n1,2,red\n")
    (at / "binary.json").write_bytes(b"\xff\xfe\x00")
    (at / "file").write_text("")
    (at / "dir.skforge").mkdir()
    return at


@pytest.fixture
def run(capfd, monkeypatch, folder):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "40")  # lines are not broken to fit

    def call(command):
        with pytest.raises(SystemExit) as stopped:
            app(shlex.split(command), prog_name="skforge")
        out = capfd.readouterr()
        return stopped.value.code, out.out, out.err

    return call


CASES = {
    "nope": "No such command 'nope'. See skforge --help.",
    "bench --nope": "No such option: --nope",
    "bench": "Missing argument",
    "bench model.json more": "unexpected extra argument",
    "bench model.json --seconds x": "Invalid value for '--seconds'",
    "bench model.json --seconds 0": "Invalid value for '--seconds'",
    "bench none.json": "does not exist. See skforge bench --help.",
    "inspect none.json": "does not exist. See skforge inspect --help.",
    "tune none.json": "does not exist. See skforge tune --help.",
    "export none.json -o lib": "does not exist. See skforge export --help.",
    "plot none.skforge -o a.png": "does not exist. See skforge plot --help.",
    "bench dir.skforge": "is a directory. See skforge bench --help.",
    "bench text.json": "text.json is not valid JSON",
    "bench text.ubj": "text.ubj: Byte 1 ",
    "bench text.txt": "text.txt: The text does not begin with the line 'tree'",
    "bench text.onnx": "text.onnx is not an ONNX model",
    "bench text.xyz": "text.xyz is not a model file that skforge recognises",
    "bench file": "file is empty; save the model again.",
    "inspect text.skforge": "text.skforge cannot be loaded: it is damaged",
    "bench model.json --data none.csv": "does not exist. See skforge bench --help.",
    "bench model.json --data lacks.csv": (
        "lacks.csv lacks columns of the model: 'price'. To take columns by their "
        "place, give --columns 0:3."
    ),
    "tune model.json --data lacks.csv": "lacks.csv lacks columns of the model: 'price'",
    "bench model.json --data other.csv": "other.csv lacks columns of the model",
    "bench model.json --data narrow.npy": "narrow.npy has 2 columns, but the model",
    "bench model.json --data text.csv": (
        "text.csv lacks columns of the model: 'age', 'size', 'price'. To take "
    ),
    "bench model.json --data empty.csv": (
        "empty.csv cannot be read as a table: it is empty."
    ),
    "bench model.json --data header.csv": "header.csv has no rows; give at least one.",
    "bench model.json --data ragged.csv": (
        "ragged.csv cannot be read as a table: a line has 2 cells, not 3: 1,2"
    ),
    "bench model.json --data words.csv": (
        "words.csv cannot be read as rows of the model: row 1 of column 'price' has "
        "'red', and the model takes numbers there; encode it as it was encoded for "
        "training."
    ),
    "bench model.json --columns 0:3": (
        "--columns chooses columns of --data, which is missing."
    ),
    "tune model.json --columns 0:3": (
        "--columns chooses columns of --data, which is missing."
    ),
    "bench model.json --schedule nope": "'nope' is not a preset; the presets are ",
    "bench model.json --schedule none.json": "'none.json' cannot be read: No such file",
    "bench model.json --schedule binary.json": (
        "The schedule file 'binary.json' cannot be read: it is no text."
    ),
    "bench model.json --target nope": "Unknown target 'nope'; use 'auto', 'cpu'",
    "bench model.json --batch-sizes 99999999999999": (
        "A batch of 99,999,999,999,999 rows needs about "
    ),
    "inspect model.json --level nope": "'nope' is no level; use one of schedule, ",
    "inspect model.json --target hip --level ptx": (
        "'ptx' is no level of target 'hip', which has cuda."
    ),
    "inspect plain.skforge --target aarch64": (
        "plain.skforge has its own schedules and its own target; to use --schedule or "
        "--target, inspect the model it was made from."
    ),
    "inspect plain.skforge --schedule xgboost": "plain.skforge has its own schedules",
    "inspect plain.skforge --level tuning": "plain.skforge has no tuning result",
    "tune model.json --strategy luck": "strategy must be one of heuristic, learned, ",
    "tune model.json --n-jobs 0": ("--n-jobs is a number of threads, or -1; not 0."),
    "tune model.json --seed -1": "Invalid value for '--seed'",
    "tune model.json --seed 4294967296": "Invalid value for '--seed'",
    "tune model.json -o a.json": "a.json does not end in .skforge.",
    "tune model.json -o dir.skforge": "dir.skforge is a folder; name a file.",
    "tune model.json -o none/a.skforge": (
        "none/a.skforge cannot be written: there is no folder none."
    ),
    "tune model.json --records none/a.jsonl": (
        "none/a.jsonl cannot be written: there is no folder none."
    ),
    "export model.json -o file/lib": "file/lib cannot be written: ",
    "export model.json -o file": (
        "file already exists; choose another path, or pass --ov"
    ),
    "export model.json -o lib --kind nope": "kind must be one of 'object', 'shared'",
    "export model.json -o lib --target cuda": (
        "cannot be exported, because libraries run"
    ),
    "plot model.json -o a.png": (
        "model.json has no tuning result: its schedules were not searched. skforge "
        "tune makes a file that has one."
    ),
    "plot plain.skforge -o a.png": "plain.skforge has no tuning result",
    "plot plain.skforge -o picture": "picture does not end in .png, .svg or .pdf.",
    "plot plain.skforge -o none/a.png": "there is no folder none.",
    "demo --seconds 0": "Invalid value for '--seconds'",
}


@pytest.mark.parametrize("command", CASES)
def test_one_line_and_exit_code_two(run, folder, command):
    if "onnx" in command:
        pytest.importorskip("onnx")
    before = sorted(folder.rglob("*"))
    code, out, err = run(command)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
    assert CASES[command] in err
    assert sorted(folder.rglob("*")) == before  # nothing was written


def test_an_output_that_turns_out_to_be_closed(run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "a.skforge")

    monkeypatch.setattr(skforge, "save", full)
    command = "tune model.json --budget 0.001 --batch-sizes 1 -o a.skforge --verbose 0"
    code, _, err = run(command)
    assert code == 2
    warning, error = err.splitlines()
    assert warning.startswith("warning: A budget of 0.001 s is too short")
    assert error == "error: a.skforge: No space left on device."


def test_rows_that_do_not_fit_into_memory(run, monkeypatch):
    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr("skforge.cli.bench.load_rows", no_memory)
    code, _, err = run("bench model.json --data rows.csv")
    assert (code, err) == (
        2,
        "error: There is not enough memory; take fewer rows, or a smaller model.\n",
    )


def test_columns_are_taken_by_place_where_that_is_asked(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    options = "--columns 0:3 --batch-sizes 1 --seconds 0.01"
    code, out, _ = run(f"bench model.json --data other.csv {options}")
    assert code == 0 and "50 of other.csv" in out


def test_no_traceback_in_a_process_of_its_own(folder):
    done = subprocess.run(
        [sys.executable, "-m", "skforge", "bench", str(folder / "text.txt")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
