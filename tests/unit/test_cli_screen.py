"""What the command line prints in a terminal, and in a file or a pipe."""

from __future__ import annotations

import io
import re
import sys

import pytest
import typer

from skforge.cli.doctor import _facts
from skforge.cli.errors import warn
from skforge.cli.main import app
from skforge.cli.report import new_table
from skforge.cli.screen import say, screen, show

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
