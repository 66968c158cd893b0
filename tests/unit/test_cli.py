from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import skforge
from skforge._cli import app
from skforge._cli_data import load_rows, load_schedule
from skforge._cli_report import (
    Pair,
    check,
    describe_difference,
    differing_rows,
    own_speed,
    speed,
)
from skforge.compiler.reference import reference_raw
from skforge.exceptions import InvalidInputError, ScheduleError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")

    def call(*args):
        with pytest.raises(SystemExit) as stopped:
            app([str(arg) for arg in args], prog_name="skforge")
        out = capsys.readouterr()
        return stopped.value.code or 0, out.out, out.err

    return call


@pytest.fixture
def two_columns():
    """Return what ``load_rows`` asks of a forest."""
    return SimpleNamespace(
        n_features=2,
        feature_names=("age", "size"),
        threshold=np.zeros(0, np.float32),
    )


def text_console():
    return Console(width=200, record=True, file=open("/dev/null", "w"))


# -- options ----------------------------------------------------------------------


def test_runs_as_a_module():
    command = [sys.executable, "-m", "skforge", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"skforge {skforge.__version__}\n",
        "",
    )


@pytest.mark.parametrize("command", ["demo", "bench", "inspect"])
def test_help(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"Usage: skforge {command}" in out


def test_no_command_shows_the_commands(run):
    code, out, err = run()
    assert code == 2
    assert all(name in out + err for name in ("demo", "bench", "inspect"))


def test_a_missing_file_is_bad_usage(run, tmp_path):
    code, _, err = run("bench", tmp_path / "none.json")
    assert code == 2
    assert "none.json" in err
    assert "does not exist" in err


@pytest.mark.parametrize("sizes", ["", "0", "1,x", "-3", "1,,2"])
def test_bad_batch_sizes(run, tmp_path, sizes):
    model = tmp_path / "model.json"
    model.write_text("{}")
    code, _, err = run("bench", model, f"--batch-sizes={sizes}")
    assert code == 2
    assert f"{sizes!r} is not a list of positive numbers such as 1,64,4096." in err


@pytest.mark.parametrize("command", ["bench", "inspect"])
def test_a_damaged_model_is_one_line_and_no_traceback(run, tmp_path, command):
    model = tmp_path / "model.json"
    model.write_text('{"learner": {')
    code, out, err = run(command, model)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "model.json" in err
    assert err.count("\n") == 1


# -- data -------------------------------------------------------------------------


def refusal(*args):
    with pytest.raises(InvalidInputError) as error:
        load_rows(*args)
    return str(error.value)


def test_npy_rows(tmp_path, two_columns):
    path = tmp_path / "x.npy"
    np.save(path, np.array([[1, 2], [3, 4]], order="F"))
    X = load_rows(path, two_columns)
    assert X.dtype == np.float32
    assert X.flags.c_contiguous
    assert X.tolist() == [[1, 2], [3, 4]]


def test_csv_rows_without_header(tmp_path, two_columns):
    path = tmp_path / "x.csv"
    path.write_text("1.5,2\n,nan\n")
    X = load_rows(path, two_columns)
    np.testing.assert_array_equal(X, [[1.5, 2], [np.nan, np.nan]])


def test_csv_columns_are_found_by_name(tmp_path, two_columns):
    path = tmp_path / "x.csv"
    path.write_text("size,label,age\n1,0,2\n")
    assert load_rows(path, two_columns).tolist() == [[2, 1]]


def test_parquet_rows(tmp_path, two_columns):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    pandas.DataFrame({"size": [1, 3], "age": [2.5, None]}).to_parquet(path)
    X = load_rows(path, two_columns)
    np.testing.assert_array_equal(X, [[2.5, 1], [np.nan, 3]])


def test_columns_by_range(tmp_path, two_columns):
    path = tmp_path / "x.csv"
    path.write_text("1,2,3\n")
    assert load_rows(path, two_columns, "1:3").tolist() == [[2, 3]]
    assert load_rows(path, two_columns, ":2").tolist() == [[1, 2]]
    assert refusal(path, two_columns) == (
        "x.csv has 3 columns, but the model takes 2; choose them with --columns, such "
        "as --columns 0:2."
    )
    assert refusal(path, two_columns, "1") == (
        "--columns takes a range such as 0:13, not '1'."
    )


def test_files_that_are_not_rows(tmp_path, two_columns):
    text, flat, words = (tmp_path / name for name in ("x.txt", "x.npy", "w.npy"))
    text.write_text("1")
    np.save(flat, np.zeros(3))
    np.save(words, np.array([["a", "b"]]))
    assert refusal(text, two_columns) == (
        "x.txt ends in '.txt'; rows are read from .npy, .csv and .parquet files."
    )
    assert refusal(flat, two_columns) == (
        "x.npy holds an array of shape (3,) and dtype float64; rows are a "
        "two-dimensional array of numbers."
    )
    assert refusal(words, two_columns) == (
        "w.npy holds an array of shape (1, 2) and dtype <U1; rows are a "
        "two-dimensional array of numbers."
    )


def test_a_data_file_with_pickles_is_not_opened(tmp_path, two_columns):
    path = tmp_path / "x.npy"
    np.save(path, np.array([[object()]]), allow_pickle=True)
    assert refusal(path, two_columns) == (
        "x.npy cannot be read as a table of numbers: Object arrays cannot be loaded "
        "when allow_pickle=False"
    )


def test_no_rows(tmp_path, two_columns):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((0, 2)))
    assert refusal(path, two_columns) == "x.npy has no rows; give at least one."


# -- schedules --------------------------------------------------------------------


def test_schedules_by_json_file_and_name(tmp_path):
    schedule = skforge.Schedule().tile("batch", "b0", "b1", 8)
    path = tmp_path / "s.json"
    path.write_text(schedule.to_json())
    assert load_schedule(schedule.to_json()) == schedule
    assert load_schedule(str(path)) == schedule
    assert load_schedule("xgboost") == skforge.Schedule.preset("xgboost")
    assert load_schedule("auto") is None
    assert load_schedule(None) is None


def test_a_schedule_file_that_is_not_there():
    with pytest.raises(ScheduleError) as error:
        load_schedule("none.json")
    assert str(error.value) == (
        "The schedule file 'none.json' cannot be read: No such file or directory."
    )


# -- reports ----------------------------------------------------------------------


def test_bits_are_compared_not_values():
    ones = np.ones((3, 2), np.float32)
    changed = ones.copy()
    changed[1, 1] = np.nextafter(np.float32(1), np.float32(2))
    assert differing_rows(ones, ones.copy()).tolist() == []
    assert differing_rows(ones, changed).tolist() == [1]
    assert describe_difference(ones, ones.copy()) is None
    assert describe_difference(ones, changed) == "1 differ, the first in row 1"
    assert describe_difference(ones, ones.astype(np.float64)) == (
        "float32 (3, 2) is not float64 (3, 2)"
    )
    assert describe_difference(ones, ones[:2]) == (
        "float32 (3, 2) is not float32 (2, 2)"
    )
    assert differing_rows(ones[:0], ones[:0]).tolist() == []
    nan = np.array([np.nan])
    assert differing_rows(nan, nan.copy()).tolist() == []


def test_check_reports_the_first_row_that_differs():
    pair = Pair("ours", lambda X: X[:, 0], "theirs", lambda X: X[:, 0] * 2)
    console = text_console()
    rows = {"zero": np.zeros((4, 1)), "mixed": np.array([[0.0], [1.0], [2.0]])}
    assert not check(console, [pair], rows)
    text = console.export_text()
    assert "4 zero  │ identical" in text
    assert "3 mixed │ 2 differ, the first in row 1" in text


def test_speed_names_both_and_fills_the_batch():
    seen = set()

    def predict(X):
        seen.add(X.shape)
        return X

    console = text_console()
    X = np.zeros((3, 5), np.float32)
    pair = Pair("ours", predict, "theirs", predict)
    speed(console, [pair], X, [1, 7], seconds=0.01)
    own_speed(console, "ours", predict, X, [64], seconds=0.01)
    assert seen == {(1, 5), (7, 5), (64, 5)}
    text = console.export_text()
    assert "ours" in text
    assert "theirs" in text


# -- exit codes of a comparison ---------------------------------------------------


class Walk:
    """Stands for a compiled module; ``nudge`` changes the last bit of row 3."""

    def __init__(self, forest, nudge):
        self.forest, self.nudge = forest, nudge

    schedules = {(1, 1): "for one row", (2, None): "for many"}  # noqa: RUF012

    def predict_raw(self, X):
        raw = reference_raw(self.forest, X)[:, 0]
        if self.nudge and len(raw) > 3:
            raw[3] = np.nextafter(raw[3], np.float32(np.inf))
        return raw

    def inspect(self, level):
        return f"the {level} of it"


@pytest.fixture
def small_model(tmp_path):
    xgboost = pytest.importorskip("xgboost")
    X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    model = xgboost.XGBRegressor(n_estimators=3, max_depth=2, n_jobs=1)
    path = tmp_path / "small.json"
    model.fit(X, X[:, 0] * X[:, 1]).save_model(path)
    return path


@pytest.mark.parametrize("peer", ["xgboost", "reference walk"])
@pytest.mark.parametrize(("nudge", "expected"), [(False, 0), (True, 1)])
def test_bench_exits_by_whether_bits_agree(
    run, small_model, monkeypatch, nudge, expected, peer
):
    def compile_forest(forest, schedule=None):
        return Walk(forest, nudge)

    monkeypatch.setitem(vars(skforge), "compile_forest", compile_forest)
    if peer == "reference walk":
        monkeypatch.setitem(sys.modules, "xgboost", None)
    code, out, _ = run("bench", small_model, "--seconds=0.02", "--batch-sizes=1,5")
    assert code == expected
    assert "small.json: 3 trees" in out
    assert "the loops of it" in out
    assert "2 and more" in out
    assert ("1 differ, the first in row 3" in out) == nudge
    assert ("identical" in out) == (not nudge)
    assert ("speedup" in out) == (peer == "xgboost")


def test_inspect_prints_the_level(run, small_model, monkeypatch):
    asked = {}

    def compile_forest(forest, **options):
        asked.update(options)
        return Walk(forest, nudge=False)

    monkeypatch.setitem(vars(skforge), "compile_forest", compile_forest)
    code, out, _ = run("inspect", small_model, "--level=mir", "--target=x86-64-v2")
    assert (code, out) == (0, "the mir of it\n")
    assert asked == {"schedule": None, "target": "x86-64-v2"}
