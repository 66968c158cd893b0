"""Where commands print: a terminal's lines break between words, a file's do not break.

What is piped or kept in a file has no width, so that nothing is cut or padded.
"""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.text import Text

#: Wider than any table.
_WIDEST = 100_000

#: Letters like those that an encoding lacks.
_LIKE = {"µ": "u", "×": "x", "–": "-", "…": "."}


def like(error: UnicodeError) -> tuple[str, int]:
    """Replace letters that the output cannot encode, as an error handler does.

    >>> import codecs
    >>> codecs.register_error("like", like)
    >>> "1.2 µs, 3×, é".encode("ascii", "like")
    b'1.2 us, 3x, ?'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_LIKE.get(letter, "?") for letter in letters), error.end


def screen(stderr: bool = False) -> Console:
    """Return the console of standard output, or of standard error."""
    terminal = Console(stderr=stderr)
    if terminal.is_terminal:
        return terminal
    return Console(stderr=stderr, width=_WIDEST, soft_wrap=True)


def say(text: str, style: str = "", stderr: bool = False) -> None:
    """Print text as it is; only a terminal breaks its lines."""
    screen(stderr).print(Text(text, style=style))


def show(console: Console, table: Any) -> None:
    """Print a table; in files, its lines have no blanks at their end."""
    if console.is_terminal or console.record:
        console.print(table)
        return
    with console.capture() as capture:
        console.print(table)
    lines = map(str.rstrip, capture.get().splitlines())
    typer.echo("\n".join(lines), file=console.file)
