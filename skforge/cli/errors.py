"""Report errors and warnings of the command line in one line, with exit codes."""

from __future__ import annotations

import os
import sys
import warnings
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

#: The parser's base class of errors for bad options.
_UsageError: type[Any] = typer.BadParameter.__bases__[0]


class OneLineGroup(TyperGroup):
    """A command group that reports user errors in one line."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command and exit the process."""
        options["standalone_mode"] = False
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning(warnings.showwarning)
            try:
                code = super().main(*args, **options)
            except (typer.Abort, KeyboardInterrupt):
                code = 130  # as shells count Ctrl-C
            except (_UsageError, SkforgeError, OSError, MemoryError) as error:
                _print("error", _one_line(error), "red")
                mismatch = isinstance(error, VerificationError)
                code = MISMATCH if mismatch else BAD_USAGE
        sys.exit(code or 0)


def _one_line(error: Any) -> str:
    match error:
        case _UsageError():
            path = "skforge" if error.ctx is None else error.ctx.command_path
            text = " ".join(error.format_message().split())
            return f"{text.rstrip('.')}. See {path} --help."
        case OSError():
            where = "" if error.filename is None else f"{error.filename}: "
            return f"{where}{error.strerror or error}."
        case MemoryError():
            return "There is not enough memory; take fewer rows, or a smaller model."
        case _:
            return str(error)


def check_output(path: Path, *endings: str) -> None:
    """Raise before any work is done if an output file could not be written.

    Without ``endings``, its name may end as it likes.
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
            warn(str(message))
        else:
            usual(message, category, *where)

    return show


def warn(text: str) -> None:
    """Print a warning in one line."""
    _print("warning", text, "yellow")


def say(text: str) -> None:
    """Print a line that is no result, on standard error."""
    Console(stderr=True, highlight=False).print(Text(text), soft_wrap=True)


def _print(kind: str, text: str, style: str) -> None:
    Console(stderr=True).print(Text(f"{kind}: {text}", style=style), soft_wrap=True)
