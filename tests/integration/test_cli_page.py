"""docs/cli.md names every command and option there is, and its examples are true.

``--update-golden`` writes what the examples print, all but what ``SHOWN`` leaves out.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import typer
from sklearn.datasets import make_classification

from skforge.cli.errors import BAD_USAGE, FAULT, MISMATCH
from skforge.cli.main import app

pytestmark = pytest.mark.doors

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
OLD_FILES = Path(__file__).parents[1] / "data" / "xgboost" / "old_binary.zip"
TEXT = PAGE.read_text(encoding="utf-8")
GROUP = typer.main.get_command(app)
BLOCK = re.compile(r"^```console\n\$ skforge (.*)\n(?s:(.*?))^```$", re.M)
CUT = "..."
#: Lines of long outputs that the page shows.
TABLES = r"Pred|skforge|predict|Time| *rows| *[\d,]+  | +predict|─|$"
SHOWN = {
    "demo": rf"training|XGB|trained|(?!predict(_proba)? .*identical)({TABLES})",
    "bench": f"model.json|read in|{TABLES}",
    "verify": r"tuned|method|─|predict(_proba)? +a frame|$",
    "warm": r"(?!)",
    "doctor": r"Machine|Profile| *work  |Cache|Libraries",
}


def section(name):
    return TEXT.split(f"\n## {name}\n")[1].split("\n## ")[0]


def rows_of_table(text):
    """Return option names and their default of the table in a section."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) ?\| .*\|$", text, re.MULTILINE)
    return {tuple(re.findall(r"`(.*?)`", names)): value for names, value in rows}


def shown_default(parameter):
    value = parameter.default
    return "" if value is None or value is False else str(value)


def test_every_command_has_its_section():
    sections = re.findall(r"^## (\w+)$", TEXT, re.MULTILINE)
    assert sections == [*GROUP.commands]
    listed = re.findall(r"^\| \[(\w+)\]\(#\1\) \|", TEXT, re.MULTILINE)
    assert listed == sections


@pytest.mark.parametrize("name", GROUP.commands)
def test_options_and_defaults_are_those_of_the_command(name):
    expected = {}
    for parameter in GROUP.commands[name].params:
        names = tuple(parameter.opts)
        if parameter.param_type_name == "argument":
            names = (parameter.metavar,)
        if names != ("--help",):
            expected[names] = shown_default(parameter)
    assert rows_of_table(section(name)) == expected


def test_options_of_no_command():
    expected = {tuple(p.opts) for p in GROUP.params} | {("--help",)}
    assert {*rows_of_table(section("Exit codes"))} == expected


def test_exit_codes():
    codes = re.findall(r"^\| (\d) \| (.*?)[:;] ", section("Exit codes"), re.MULTILINE)
    assert [int(code) for code, _ in codes] == [MISMATCH, BAD_USAGE, FAULT]


def test_other_pages_name_commands_and_options_that_exist():
    pages = [*PAGE.parent.glob("*.md"), PAGE.parents[1] / "README.md"]
    calls = [
        (page.name, *call)
        for page in pages
        for call in re.findall(
            r"(?:[`/]|\$ |^ {4})(?:\S*python -m )?skforge (\w+)([^`\n|]*)",
            page.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    assert len({name for name, *_ in calls}) > 4
    for name, command, rest in calls:
        if command == "COMMAND":
            continue
        if command == "run":  # what follows the program is its own
            rest = re.match(r"(?: --\S+)*", rest)[0]
        known = {o for p in GROUP.commands[command].params for o in p.opts}
        given = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest))
        assert given <= known | {"--help"}, (name, command)


def kind(command):
    """Return the name of the command."""
    return command.split()[0]


def as_shown(command, out):
    """Return the lines of an output that the page shows."""
    known = SHOWN.get(kind(command), "")
    lines: list[str] = []
    for line in out.splitlines():
        if not re.match(known, line):
            line = CUT
        if line != CUT or lines[-1:] != [CUT]:
            lines.append(line.rstrip())
    text = "\n".join(lines)
    text = re.sub(r"\n*^\.\.\.$\n*(\.\.\.\n*)*", "\n...\n", text, flags=re.MULTILINE)
    return text.strip("\n") + "\n" if text else ""


def unmeasured(command, text):
    """Return a text without what differs from run to run and machine to machine."""
    if kind(command) == "inspect":
        return text
    if kind(command) == "tune":  # what it finds is chance
        text = "\n".join(re.findall("^heuristic on|^saved .*", text, re.MULTILINE))
    text = re.sub(r"[\d.,]*\d ?(ns|µs|ms|s)\b", "t", text)
    return re.sub(r"[ ─]+", " ", re.sub(r"\d[\d.,]*", "#", text))


def test_examples_print_what_the_page_says(capsys, monkeypatch, tmp_path, request):
    xgboost = pytest.importorskip("xgboost")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "88")
    monkeypatch.setenv("TERMINAL_WIDTH", "88")
    X, y = make_classification(5_000, 20, n_informative=10, random_state=0)
    X = X.astype(np.float32)
    model = xgboost.XGBClassifier(n_estimators=50, max_depth=6, n_jobs=1).fit(X, y)
    model.save_model("model.json")
    np.savetxt("rows.csv", X[:1000], delimiter=",")
    examples = BLOCK.findall(TEXT)
    with zipfile.ZipFile(OLD_FILES) as files:
        Path("churn.model").write_bytes(files.read(files.namelist()[0]))
    # programs under run stay accelerated: test_acceleration_processes.py runs some
    names = [name for name in GROUP.commands if name != "run"]
    assert [*dict.fromkeys(kind(command) for command, _ in examples)] == names
    true = {}
    for command, _ in examples:
        with pytest.raises(SystemExit) as stopped:
            app(command.split(), prog_name="skforge")
        printed = capsys.readouterr()
        assert not stopped.value.code, printed.err
        shown = printed.out + printed.err if kind(command) == "predict" else printed.out
        true[command] = as_shown(command, shown)
    assert {p.name for p in tmp_path.iterdir()} >= {"tuned.skforge", "slowdown.png"}
    if request.config.getoption("--update-golden"):
        page = BLOCK.sub(
            lambda b: f"```console\n$ skforge {b[1]}\n{true[b[1]]}```", TEXT
        )
        PAGE.write_text(page, encoding="utf-8")
        pytest.skip("wrote cli.md; read the diff")
    for command, shown in examples:
        assert unmeasured(command, shown) == unmeasured(command, true[command])
