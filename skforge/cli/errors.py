"""What the command line cannot do, in one line: refusals, warnings, exit codes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from skforge.exceptions import (
    InconsistentVersionWarning,
    InvalidInputError,
    SkforgeError,
    TuningWarning,
    VerificationError,
)

MISMATCH, BAD_USAGE = 1, 2

#: Base class of what the parser of options raises; releases of Typer have it elsewhere.
_ParserError: type[Any] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)


class OneLineGroup(TyperGroup):
    """Commands whose bad options end in one line, as all other errors do."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command, and end the process."""
        given = args[0] if args else options.get("args")
        if not (sys.argv[1:] if given is None else given):
            try:
                super().main(*args, **options)  # shows the help
            except SystemExit as stopped:  # 0 with releases of Click before 8.2
                sys.exit(stopped.code or BAD_USAGE)
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except _ParserError as error:
            context = getattr(error, "ctx", None)
            path = "skforge" if context is None else context.command_path
            text = " ".join(error.format_message().split())
            _print("error", f"{text.rstrip('.')}. See {path} --help.", "red")
            sys.exit(BAD_USAGE)
        except typer.Abort:
            sys.exit(130)  # as shells count Ctrl-C
        sys.exit(code or 0)


@contextmanager
def reported() -> Iterator[None]:
    """Turn the errors that users can mend into one red line and an exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning(warnings.showwarning)
            yield
    except SkforgeError as error:
        _print("error", str(error), "red")
        mismatch = isinstance(error, VerificationError)
        raise typer.Exit(MISMATCH if mismatch else BAD_USAGE) from error
    except BrokenPipeError:
        raise  # whoever read has seen enough
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        _print("error", f"{where}{error.strerror or error}.", "red")
        raise typer.Exit(BAD_USAGE) from error
    except MemoryError as error:
        text = "There is not enough memory; take fewer rows, or a smaller model."
        _print("error", text, "red")
        raise typer.Exit(BAD_USAGE) from error


def check_output(path: Path, *endings: str) -> None:
    """Refuse, before any work is done, a file that could not be written after it.

    Parameters
    ----------
    path : Path
        The file to write.
    *endings : str
        What its name may end in; anything if none is given.

    Raises
    ------
    InvalidInputError
        If it ends otherwise, is a folder, or lies in none that can be written.
    """
    if endings and path.suffix.lower() not in endings:
        raise InvalidInputError(f"{path} does not end in {' or '.join(endings)}.")
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder; name a file.")
    if not path.parent.is_dir():
        raise InvalidInputError(
            f"{path} cannot be written: there is no folder {path.parent}."
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInputError(f"{path} cannot be written: permission denied.")


def _show_warning(usual: Any) -> Any:
    def show(message: Any, category: type[Warning], *where: Any) -> None:
        if issubclass(category, (TuningWarning, InconsistentVersionWarning)):
            _print("warning", str(message), "yellow")
        else:
            usual(message, category, *where)

    return show


def _print(kind: str, text: str, style: str) -> None:
    Console(stderr=True).print(Text(f"{kind}: {text}", style=style), soft_wrap=True)
