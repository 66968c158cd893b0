"""What users get wrong on the command line: one line, exit code 2, no traceback."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeRegressor

import skforge
from tests.plain import plain
from tests.programs import PICKLE, command

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
    fast = plain(model).fit(frame)
    skforge.save(fast, at / "plain.skforge")
    frame.to_csv(at / "rows.csv", index=False)
    frame[["age", "size"]].to_csv(at / "lacks.csv", index=False)
    frame.rename(columns={"price": "cost"}).to_csv(at / "other.csv", index=False)
    np.save(at / "narrow.npy", X[:, :2])
    pca = make_pipeline(PCA(2), DecisionTreeRegressor(max_depth=2)).fit(frame, X[:, 0])
    joblib.dump(pca, at / "pca.joblib")
    unnamed = DecisionTreeRegressor(max_depth=2).fit(X, X[:, 0])
    skforge.save(skforge.load_forest(unnamed), at / "unnamed.skforge")
    frame.to_csv(at / "semicolons.csv", index=False, sep=";")
    (at / "twice.csv").write_text("age,size,price,size\n1,2,3,4\n")
    (at / "numbers.csv").write_text("1,2,3,4.5\n")
    (at / "id.csv").write_text('id,,age,"a ""b"", c"\n1,2,3,4\n')
    for ending in ("json", "ubj", "txt", "onnx", "skforge", "xyz", "csv"):
        (at / f"text.{ending}").write_text("hello\nworld\n")
    (at / "words.csv").write_text("age,size,price\n1,2,red\n")
    (at / "binary.json").write_bytes(b"\xff\xfe\x00")
    (at / "file").write_text("")
    (at / "results.csv").write_text("id,age,size,price,prediction,id\n1,2,3,4,5,6\n")
    joblib.dump({"a": 1}, at / "dict.pkl")
    joblib.dump(DecisionTreeRegressor(), at / "unfitted.pkl")
    (at / "text.pkl").write_text("hello")
    (at / "dir.skforge").mkdir()
    return at


@pytest.fixture
def run(capfd, monkeypatch, folder):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "40")  # lines are not broken to fit

    return lambda text: command(capfd, *shlex.split(text))


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
    "bench text.json": "text.json: The model is not valid JSON",
    "bench text.ubj": "text.ubj: The model is not valid JSON",
    "bench text.txt": "text.txt: The text does not begin with the line 'tree'",
    "bench text.onnx": "text.onnx: This is not an ONNX model",
    "bench text.xyz": "text.xyz is not a model file that skforge recognises",
    "bench file": "file is empty; save the model again.",
    "inspect text.skforge": "text.skforge cannot be loaded: it is damaged",
    "bench model.json --data none.csv": "does not exist. See skforge bench --help.",
    "bench model.json --data lacks.csv": (
        "lacks.csv lacks columns of the model: 'price'. The file's columns are "
        "age,size."
    ),
    "tune model.json --data lacks.csv": "lacks.csv lacks columns of the model: 'price'",
    "bench model.json --data other.csv": (
        "other.csv lacks columns of the model: 'price'. Name the features, in the "
        "order of training, with --columns. The file's columns are age,size,cost."
    ),
    "bench model.json --data semicolons.csv": (
        "semicolons.csv lacks columns of the model: 'age', 'size', 'price'. Its cells "
        "seem to be separated by semicolons; write the file with commas."
    ),
    "bench model.json --data twice.csv": (
        "twice.csv has 2 columns 'size', and the model takes one; rename the others."
    ),
    "bench model.json --data rows.csv --columns zz,size,yy": (
        "rows.csv has no column 'zz' or 'yy'; its columns are age,size,price."
    ),
    "bench model.json --data rows.csv --columns 0:4": (
        "--columns 0:4 is no range of columns of rows.csv, which are 0:3."
    ),
    "bench model.json --data rows.csv --columns 2:1": (
        "--columns 2:1 is no range of columns of rows.csv, which are 0:3."
    ),
    "bench model.json --data rows.csv --columns size": (
        "--columns size takes 1 column, but the model takes 3. Name the features, in "
        "the order of training, with --columns. The file's columns are age,size,price."
    ),
    "bench model.json --data numbers.csv": (
        "numbers.csv has 4 columns, but the model takes 3. --columns 0:3 takes the "
        "first 3, and --columns 1:4 the last 3."
    ),
    "bench model.json --data numbers.csv --columns age": (
        "The columns of numbers.csv have no names; --columns takes a range of them, "
        "such as 0:3. Got 'age' instead."
    ),
    "predict unnamed.skforge id.csv": (
        "id.csv has 4 columns, but the model takes 3. Name the features, in the order "
        'of training, with --columns. The file\'s columns are id,"",age,"a ""b"", c".'
    ),
    "predict model.json file": (
        "file does not end in .csv, .parquet, .arrow, .feather, .ipc or .npy; convert "
        "it, or pipe it as CSV to -."
    ),
    "predict pca.joblib words.csv": (
        "words.csv is refused: could not convert string to float: 'red'"
    ),
    "bench pca.joblib --data words.csv": (
        "words.csv is refused: could not convert string to float: 'red'"
    ),
    "tune pca.joblib --data words.csv": (
        "words.csv is refused: could not convert string to float: 'red'"
    ),
    "bench dict.pkl": "dict.pkl holds an object of type dict, which is no model that ",
    "bench unfitted.pkl": (
        "The DecisionTreeRegressor in unfitted.pkl is not fitted; fit it before "
    ),
    "bench text.pkl": "text.pkl cannot be opened: ",
    "bench model.json --seconds inf": "Invalid value for '--seconds'",
    "bench model.json --batch-sizes 1,x": (
        "'1,x' is not a list of positive numbers such as 1,64,4096."
    ),
    **{
        f"{command} model.json --columns 0:3": (
            "--columns chooses columns of --data, which is missing."
        )
        for command in ("bench", "tune")
    },
    "predict model.json rows.csv --method shap": (
        "--method must be one of predict, proba, raw, contribs. Got 'shap' instead."
    ),
    "predict model.json rows.csv --contribs --method raw": (
        "--contribs is short for --method contribs, and --method raw is given as well; "
        "give one of them."
    ),
    "predict model.json rows.csv -o out.txt": (
        "out.txt does not end in .csv, .parquet, .arrow, .feather or .npy."
    ),
    "predict model.json rows.csv -o no/out.csv": (
        "no/out.csv cannot be written: there is no folder no."
    ),
    "predict unnamed.skforge rows.csv --method proba": (
        "The model has no predict_proba; it has predict,"
    ),
    "predict model.json rows.csv --keep key": (
        "rows.csv has no column 'key'; its columns are age,size,price."
    ),
    "predict model.json rows.csv --keep age,size,age": (
        "--keep age,size,age names a column twice."
    ),
    "predict model.json rows.csv --keep 2:9": (
        "--keep 2:9 is no range of columns of rows.csv, which are 0:3."
    ),
    "predict model.json rows.csv --keep age -o out.npy": (
        "out.npy can hold results alone; with --keep, write .csv, .parquet, .arrow or "
        ".feather."
    ),
    "predict model.json results.csv --keep id": (
        "results.csv has 2 columns 'id', and --keep takes one; rename the others."
    ),
    "predict model.json results.csv --keep prediction": (
        "--keep prediction: the column of results is called 'prediction', too; rename "
        "the column of the rows."
    ),
    "inspect unnamed.skforge": "was never compiled",
    "bench model.json --data narrow.npy": "narrow.npy has 2 columns, but the model",
    "bench model.json --data text.csv": (
        "text.csv lacks columns of the model: 'age', 'size', 'price'. The file's "
        "columns are hello."
    ),
    "bench model.json --data words.csv": (
        "words.csv cannot be read as rows of the model: row 1 of column 'price' has "
        "'red', and the model takes numbers there; encode texts as for training, and "
        "leave cells empty whose values are missing."
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
    "inspect model.json --level nope": "--level must be one of schedule, loops, hir, ",
    "bnch": "No such command 'bnch'. Did you mean 'bench'? See skforge --help.",
    "inspect model.json --target hip --level ptx": (
        ", insert-transfers, cuda. Got 'ptx' instead."
    ),
    "inspect plain.skforge --target aarch64": (
        "plain.skforge has its own schedules and its own target; to use --schedule or "
        "--target, inspect the model it was made from."
    ),
    "inspect plain.skforge --schedule xgboost": "plain.skforge has its own schedules",
    "inspect model.json --level pipeline": (
        "model.json holds no CompiledForest, whose steps --level pipeline shows."
    ),
    "inspect plain.skforge --level pipeline": (
        "The level 'pipeline' shows where the steps of a Pipeline run, and this model "
        "has no such steps; use another level, such as 'loops'."
    ),
    "inspect plain.skforge --level tuning": "plain.skforge has no tuning result",
    "tune model.json --strategy luck": (
        "error: --strategy must be one of heuristic, learned, exhaustive, random, "
        "halving. Got 'luck' instead."
    ),
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
    "tune model.json --records rows.csv": "rows.csv is not a file of tuning records.",
    "export model.json -o file/lib": "file/lib cannot be written: ",
    "export model.json -o file": (
        "file already exists; choose another path, or pass --ov"
    ),
    "export model.json -o lib --kind c --contribs": (
        "--contribs is not available with --kind c; use --kind object, 'shared' or "
    ),
    "export model.json -o lib --kind nope": "error: --kind must be one of object, sh",
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


@pytest.mark.parametrize("text", CASES)
def test_one_line_and_exit_code_two(run, folder, text):
    if "onnx" in text:
        pytest.importorskip("onnx")
    before = sorted(folder.rglob("*"))
    code, out, err = run(text)
    assert (code, out) == (2, "")
    for path in {word for word in text.split() if word.endswith((".joblib", ".pkl"))}:
        assert err.startswith(PICKLE.format(path))
        err = err.removeprefix(PICKLE.format(path))
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
    assert CASES[text] in err
    assert sorted(folder.rglob("*")) == before  # nothing was written


def test_an_output_that_turns_out_to_be_closed(run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "a.skforge")

    monkeypatch.setattr(skforge, "save", full)
    text = "tune model.json --budget 0.001 --batch-sizes 1 -o a.skforge --verbose 0"
    code, _, err = run(text)
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


def test_a_fault_is_told_from_predictions_that_differ(run, monkeypatch):
    def broken(*_):
        raise KeyError("zz")

    monkeypatch.setattr("skforge.cli.bench.open_model", broken)
    code, _, err = run("bench model.json --data rows.csv")
    assert code == 3
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith(
        "KeyError: 'zz'\nerror: This is a fault of skforge; please report it.\n"
    )


def test_pipes_and_closed_streams(folder):
    (folder / "rows.txt").write_text("age,size,price\r1,2,3\r")  # as old Macs write
    predict = f"{sys.executable} -m skforge predict {folder}/model.json"
    script = f"{predict} <(cat {folder}/rows.txt); {predict} - <&-; {predict} - >&-"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        stdin=(folder / "rows.txt").open(),
    )
    assert done.stdout.startswith("prediction\n") and done.stdout.count("\n") == 2
    piped, closed, silent = done.stderr.splitlines()
    assert piped.startswith("1 row in ")
    assert closed == "error: standard input cannot be read as a table: it is empty."
    assert silent.startswith("1 row in ")


def test_no_traceback_in_a_process_of_its_own(folder):
    done = subprocess.run(
        [sys.executable, "-m", "skforge", "bench", str(folder / "text.txt")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
