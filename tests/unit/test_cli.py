from __future__ import annotations

import io
import os
import re
import sys
from dataclasses import replace
from functools import partial
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console
from sklearn.ensemble import RandomForestRegressor
from typer import BadParameter

import skforge
from skforge.cli import report
from skforge.cli.data import load_rows
from skforge.cli.doctor import _cache, _facts
from skforge.cli.errors import warn
from skforge.cli.library import library_of
from skforge.cli.main import app
from skforge.cli.options import load_schedule, sizes_of
from skforge.cli.report import (
    Pair,
    check,
    describe_difference,
    differing_rows,
    interleave,
    new_table,
    speed,
)
from skforge.cli.screen import say, screen, show
from skforge.exceptions import InvalidInputError, ScheduleError
from skforge.frontends import load_forest
from skforge.runtime import object_cache
from skforge.schedule.presets import PRESETS
from skforge.sources.row_spec import row_spec
from tests.programs import command
from tests.refusals import error_of

pd = pytest.importorskip("pandas")


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")

    return partial(command, capsys)


@pytest.fixture
def two_columns():
    """Return a forest of two features with names, which takes float32 rows."""
    frame = pd.DataFrame({"age": [1.0, 2.0], "size": [2.0, 3.0]})
    return skforge.load_forest(RandomForestRegressor(1).fit(frame, [0, 1]))


def text_console():
    return Console(width=200, file=io.StringIO())


def test_doctor_lists_xgboost_without_its_code_for_gpus(run, monkeypatch):
    version = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda n: "9.8.7" if n == "xgboost-cpu" else version(n)
    )
    _, out, _ = run("doctor")
    assert re.search(r"xgboost-cpu +9\.8\.7", out)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("mode", [0o700, 0o1777])
def test_doctor_says_whether_the_cache_is_used(monkeypatch, tmp_path, mode, made):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    if made:
        (tmp_path / "machines").mkdir()
    tmp_path.chmod(mode)
    loose = "not used: other users could write here"
    wanted = "none yet" if mode == 0o700 else loose
    assert _cache() == {"folder": str(tmp_path), "kernels": wanted}


@pytest.mark.parametrize("made", [False, True])
def test_doctor_says_that_a_read_only_cache_keeps_nothing(monkeypatch, tmp_path, made):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    if made:
        object_cache.store("ab" * 32, b"code")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    anew = "; the folder is read-only, so that every process compiles new kernels anew"
    assert _cache()["kernels"].endswith(("0.0 MB" if made else "none yet") + anew)


def test_entries_that_another_process_removes_are_not_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    for key in ("ab", "cd"):
        object_cache.store(key * 32, b"code")
    (folder,) = {path.parent for path in tmp_path.glob("*/*")}
    listed = [*os.scandir(folder)]
    os.unlink(listed[0].path)
    monkeypatch.setattr(os, "scandir", lambda path: listed)
    assert _cache()["kernels"].startswith("1 files, ")


def test_warm_says_what_it_cannot_do(run, tmp_path, monkeypatch, two_columns):
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    path = tmp_path / "forest.skforge"
    skforge.save(two_columns, path)
    code, _, err = run("warm", path)
    assert code == 2
    assert "cannot be written. Set SKFORGE_CACHE_DIR" in err
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    code, _, err = run("warm", path)
    assert code == 2
    assert "forest.skforge holds no compiled model" in err


@pytest.mark.parametrize("sizes", ["", "0", "1,x", "-3", "1,,2"])
def test_bad_batch_sizes(sizes):
    with pytest.raises(BadParameter, match="is not a list of positive numbers such as"):
        sizes_of(sizes)


def test_no_command_shows_the_commands(run):
    code, out, err = run()
    assert code == 2
    assert all(name in out + err for name in ("demo", "bench", "inspect"))


# -- data -------------------------------------------------------------------------


def refusal(*args):
    return error_of(InvalidInputError, load_rows, *args)


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("1.5,2\n,nan\n", None, [[1.5, 2], [np.nan, np.nan]]),
        ("size,label,age\n1,0,2\n", None, [[2, 1]]),
        ("1,2,3\n", "1:3", [[2, 3]]),
        ("1,2,3\n", ":2", [[1, 2]]),
        ('a,"size, m",age\n1,2,3\n', "age, a", [[3, 1]]),
        ('a,"size, m",age\n1,2,3\n', 'age, "size, m"', [[3, 2]]),
    ],
)
def test_columns_are_found_by_name_or_place(
    tmp_path, two_columns, text, columns, expected
):
    (tmp_path / "x.csv").write_text(text)
    X = load_rows(tmp_path / "x.csv", two_columns, columns)
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, expected)


def test_words_of_other_columns_are_not_read(tmp_path, two_columns):
    pytest.importorskip("pyarrow", exc_type=ImportError)
    path = tmp_path / "x.parquet"
    frame = {"who": ["Ann", None], "size": [1.5, None], "age": [3, 4]}
    pd.DataFrame(frame).to_parquet(path)
    X = load_rows(path, two_columns)
    np.testing.assert_array_equal(X, [[3, 1.5], [4, np.nan]])
    pd.DataFrame({**frame, "age": [None, "old"]}).to_parquet(path)
    assert refusal(path, two_columns).startswith(
        "x.parquet cannot be read as rows of the model: row 2 of column 'age' has 'old'"
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (np.zeros(3), "holds an array of shape (3,) and dtype float64; rows are "),
        (np.array([["a", "b"]]), "holds an array of shape (1, 2) and dtype <U1; rows "),
        (
            np.array([[object()]]),
            "cannot be read as a table: it holds pickled objects, which are not ",
        ),
        (np.zeros((0, 2)), "has no rows; give at least one."),
    ],
    ids=["flat", "words", "pickles", "none"],
)
def test_arrays_that_are_no_rows(tmp_path, two_columns, given, why):
    np.save(tmp_path / "x.npy", given, allow_pickle=True)
    assert refusal(tmp_path / "x.npy", two_columns).startswith(f"x.npy {why}")


def test_npy_rows(tmp_path, two_columns):
    path = tmp_path / "x.npy"
    np.save(path, np.array([[1, 2], [3, 4]], order="F"))
    X = load_rows(path, two_columns)
    assert X.dtype == np.float32
    assert X.flags.c_contiguous
    assert X.tolist() == [[1, 2], [3, 4]]


def test_names_that_lightgbm_made_up_are_not_looked_for(tmp_path, two_columns):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    invented = replace(two_columns, feature_names=("Column_0", "Column_1"))
    assert load_rows(path, invented).tolist() == [[1, 2]]
    path.write_text("Column_1,Column_2,Column_3\n1,2,3\n")  # some of a table's own
    chosen = replace(two_columns, feature_names=("Column_3", "Column_1"))
    assert load_rows(path, chosen).tolist() == [[3, 1]]


# -- schedules --------------------------------------------------------------------


def test_schedules_by_json_file_and_name(tmp_path, monkeypatch):
    schedule = skforge.Schedule().tile("batch", "b0", "b1", 8).unroll("b1")
    for text in (
        schedule.to_json(),
        repr(schedule),
        "\n  .unroll".join(repr(schedule).split(".unroll")),
    ):
        path = tmp_path / "s.json"
        path.write_text(f"{text}\n")
        assert load_schedule(text) == schedule
        assert load_schedule(str(path)) == schedule
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert load_schedule("-") == schedule
    assert load_schedule("xgboost") == skforge.Schedule.preset("xgboost")
    assert load_schedule("auto") is None
    assert load_schedule(None) is None


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_read_as_it_is_printed(name):
    schedule = skforge.Schedule.preset(name)
    assert load_schedule(repr(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Schedule().fly('batch')", "A Schedule has no 'fly'; it has tile, split, "),
        ("Schedule().tile('batch')", "tile in the schedule: "),
        ("Schedule().tile(print(1), 'a', 'b', 8)", "calls with plain values. Got"),
        ("Schedule(1).parallel('batch')", "calls with plain values. Got"),
        ("Schedule(", "calls with plain values. Got"),
        ("Schedule().parallel('nowhere')", "which is not a loop"),
    ],
)
def test_texts_that_are_no_schedule(text, why):
    assert why in error_of(ScheduleError, load_schedule, text)


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nans_of_two_signs_are_equal_and_zeros_are_not(dtype):
    ones = np.array([[np.nan, 1], [0.0, 1], [np.inf, 1]], dtype)
    others = np.array([[np.copysign(np.nan, -1), 1], [-0.0, 1], [np.inf, 1]], dtype)
    assert np.signbit(others[0, 0]) != np.signbit(ones[0, 0])
    assert differing_rows(ones, others).tolist() == [1]


def test_check_reports_the_first_row_that_differs():
    pair = Pair("ours", lambda X: X[:, 0], "theirs", lambda X: X[:, 0] * 2)
    console = text_console()
    rows = {"zero": np.zeros((4, 1)), "mixed": np.array([[0.0], [1.0], [2.0]])}
    assert not check(console, [pair], rows)
    text = console.file.getvalue()
    assert re.search("4 zero +identical", text)
    assert re.search("3 mixed +2 differ, the first in row 1", text)


def test_speed_names_both_and_fills_the_batch():
    seen = set()

    def predict(X):
        seen.add(X.shape)
        return X

    console = text_console()
    X = np.zeros((3, 5), np.float32)
    pair = Pair("ours", predict, "theirs", predict)
    speed(console, [pair], X, [1, 7], seconds=0.01)
    speed(console, [replace(pair, is_timed=False)], X, [64], seconds=0.01)
    assert seen == {(1, 5), (7, 5), (64, 5)}
    text = console.file.getvalue()
    assert "ours" in text
    assert "theirs" in text


# -- exit codes of a comparison ---------------------------------------------------


@pytest.fixture
def small_model(tmp_path):
    xgboost = pytest.importorskip("xgboost")
    X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    model = xgboost.XGBRegressor(n_estimators=3, max_depth=2, n_jobs=1)
    path = tmp_path / "small.json"
    model.fit(X, X[:, 0] * X[:, 1]).save_model(path)
    return path


def test_bench_of_a_gpu_schedule_is_refused_with_its_nest(run, small_model):
    code, _, err = run("bench", small_model, "--schedule=tahoe-direct")
    assert code == 2
    assert err.splitlines()[0] == (
        'error: gpu_dimension("b0", "grid.x") maps a loop to a GPU, but the target is '
        "a CPU."
    )
    assert "<-- here" in err


def test_inspect_prints_the_module_s_levels(run, small_model):
    module = skforge.compile_forest(skforge.load_forest(small_model))
    for level in ("schedule", "loops", "hir", "mir", "lir", "unroll-walks"):
        code, out, _ = run("inspect", small_model, f"--level={level}")
        assert (code, out) == (0, module.inspect(level).rstrip() + "\n"), level
        _, one, _ = run("inspect", small_model, f"--level={level}", "--rows=1")
        assert one == module.inspect(level, n_rows=1).rstrip() + "\n"
        assert one != out


@pytest.mark.parametrize("n_rows", [1, 4096])
def test_schedule_takes_what_inspect_prints(run, small_model, tmp_path, n_rows):
    one = f"--rows={n_rows}"
    _, printed, _ = run("inspect", small_model, "--level=schedule", one)
    file = tmp_path / "schedule.txt"
    file.write_text(printed)
    for given in (printed, str(file)):
        code, again, _ = run(
            "inspect", small_model, "--level=schedule", "--schedule", given
        )
        assert (code, again) == (0, printed)
    _, loops, _ = run("inspect", small_model, one)
    assert run("inspect", small_model, f"--schedule={file}")[1] == loops


def test_inspect_of_a_gpu_schedule_ends_at_its_text(run, small_model):
    options = (small_model, "--target=cuda", "--schedule=rapids")
    code, out, _ = run("inspect", *options)
    assert code == 0
    assert "grid.x" in out
    code, out, _ = run("inspect", *options, "--level=lir")
    assert code == 0
    assert "block_region block.x" in out
    code, out, _ = run("inspect", *options, "--level=cuda")
    assert code == 0
    assert "\nSKF_KERNEL(" in out
    code, out, err = run("inspect", *options, "--level=asm")
    assert (code, out) == (2, "")
    assert ", cuda, ptx. Got 'asm' instead." in err


# ------------------------------------------------------------ cli library


X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=[*"abc"])
LABELS = {2: (X["a"] > 0).astype(int), 3: np.digitize(X["a"], [-0.5, 0.5])}


def judge(booster: Any) -> Any:
    found = library_of(Path("m"), booster, load_forest(booster), row_spec(booster))
    assert found is not None
    return found


@pytest.mark.parametrize("classes", LABELS)
@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_booster_answers_as_the_classifier_it_is_of(name: str, classes: int) -> None:
    library = pytest.importorskip(name)
    if name == "xgboost":
        model = library.XGBClassifier(n_estimators=3).fit(X, LABELS[classes])
        booster = model.get_booster()
    else:
        model = library.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1)
        booster = model.fit(X, LABELS[classes]).booster_
    found = judge(booster)
    for method in ("predict", "predict_proba"):
        answer = found.answer(method, found.taken(X))
        np.testing.assert_array_equal(answer, getattr(model, method)(X))


def test_a_booster_that_predicts_labels_has_probabilities() -> None:
    xgboost = pytest.importorskip("xgboost")
    rows = xgboost.DMatrix(X, LABELS[3])
    given = {"num_class": 3, "max_depth": 3}
    labels, several = (
        judge(xgboost.train({"objective": f"multi:{name}"} | given, rows, 3))
        for name in ("softmax", "softprob")
    )
    frame = labels.taken(X)
    np.testing.assert_array_equal(
        labels.answer("predict", frame), several.answer("predict", frame)
    )
    np.testing.assert_allclose(
        labels.answer("predict_proba", frame),
        several.answer("predict_proba", frame),
        rtol=1e-6,
    )


def test_a_regressor_has_no_probabilities() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=3, n_jobs=1, verbose=-1)
    booster = model.fit(X, X["a"]).booster_
    found = judge(booster)
    assert [*found.answers] == ["predict", "predict_raw", "apply"]
    np.testing.assert_array_equal(found.answer("predict", X), booster.predict(X))


# ------------------------------------------------------------ cli screen


GROUP = typer.main.get_command(app)
WORDS = "every word of this sentence is in one line of a terminal that is narrow"
LONG = "/a/folder/" + "0123456789abcdef" * 8


class Terminal(io.StringIO):
    """A terminal: what colours and widths are asked of."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch, width):
    """Replace standard output and error by a terminal of some columns."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def plain(shown):
    return re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue())


@pytest.mark.parametrize("width", [20, 80])
@pytest.mark.parametrize("tell", [say, warn])
def test_a_terminal_breaks_lines_between_words(monkeypatch, tell, width):
    shown = terminal(monkeypatch, width)
    tell(WORDS)
    lines = plain(shown).splitlines()
    assert len(lines) > (width == 20)
    assert max(map(len, lines)) <= width
    assert " ".join(map(str.strip, lines)).removeprefix("warning: ") == WORDS


@pytest.mark.parametrize("tell", [say, warn])
def test_a_file_has_whole_lines(capsys, monkeypatch, tell):
    monkeypatch.setenv("COLUMNS", "20")
    tell(WORDS)
    out, err = capsys.readouterr()
    assert out + err == {say: "", warn: "warning: "}[tell] + WORDS + "\n"


def test_a_table_is_whole_in_a_file(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    _facts("Cache", {"folder": LONG, "kernels": "12"})
    assert capsys.readouterr().out == (f"Cache\n folder   {LONG}\n kernels  12\n\n")


@pytest.mark.parametrize("width", [20, 80])
def test_a_terminal_breaks_cells_and_cuts_none(monkeypatch, width):
    shown = terminal(monkeypatch, width)
    table = new_table("skforge")
    table.add_row(LONG)
    show(screen(), table)
    _facts("", {"folder": LONG})
    lines = plain(shown).splitlines()
    assert max(map(len, lines)) <= width
    text = re.sub(r"[\s─]", "", "".join(lines))
    assert text == f"skforge{LONG}folder{LONG}"


def test_texts_of_libraries_are_no_markup(capsys):
    say("[bold]xgboost[/] cannot read [00:11:22] model.json")
    assert capsys.readouterr().out == (
        "[bold]xgboost[/] cannot read [00:11:22] model.json\n"
    )


@pytest.mark.parametrize("name", ["", *GROUP.commands])
def test_help_has_no_types_and_fits(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)  # read when it is imported
    with pytest.raises(SystemExit):
        app([*name.split(), "--help"], prog_name="skforge")
    out = capsys.readouterr().out
    assert re.findall(r"<\w[^>]*>|\bPath\b|--no-", out) == []
    assert max(map(len, out.splitlines())) <= 80
    assert f"Usage: skforge {name}" in out and " Show this message and exit." in out


# ------------------------------------------------------------ timing


class Machine:
    """A clock that calls move forward."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def call(self, name, seconds):
        def run():
            self.log.append(name)
            self.now += seconds() if callable(seconds) else seconds

        return run

    def clock(self):
        return self.now


def test_a_sample_of_each_call_and_round():
    machine = Machine()
    calls = {"fast": machine.call("fast", 0.001), "slow": machine.call("slow", 0.008)}
    times = interleave(calls, rounds=5, seconds=1.0, clock=machine.clock)
    assert times["fast"] == pytest.approx([0.001] * 5)
    assert times["slow"] == pytest.approx([0.008] * 5)


def test_rounds_are_interleaved_and_rotate():
    machine = Machine()
    calls = {name: machine.call(name, 1.0) for name in "abc"}
    interleave(calls, rounds=3, seconds=0.0, clock=machine.clock)
    warm_up = len("aabbcc")
    assert "".join(machine.log[warm_up:]) == "abcbcacab"


def test_ratios_are_taken_within_a_round(monkeypatch):
    # The machine changes its speed between rounds: the ratio of medians is 4.
    times = {"skforge f": [1.0, 4.0, 2.0], "source f": [3.0, 12.0, 8.0]}
    times = {name: np.array(samples) for name, samples in times.items()}
    monkeypatch.setattr(report, "interleave", lambda calls, seconds: times)
    text = StringIO()
    pair = report.Pair("f", len, "its f", len)
    report.speed(Console(width=200, file=text), [pair], np.zeros((4, 1)), [4])
    assert text.getvalue().split()[-1] == "3.00×"


def test_short_calls_are_repeated_to_fill_their_slot():
    machine = Machine()
    interleave(
        {"a": machine.call("a", 1e-6)}, rounds=10, seconds=1.0, clock=machine.clock
    )
    assert machine.now == pytest.approx(1.0, rel=0.6)


def test_slow_calls_still_get_three_rounds():
    machine = Machine()
    times = interleave(
        {"a": machine.call("a", 100.0)}, rounds=50, seconds=1.0, clock=machine.clock
    )
    assert len(times["a"]) == 3
