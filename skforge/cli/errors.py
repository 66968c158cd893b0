"""Report errors and warnings of the command line in one line, with exit codes."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from skforge.cli.screen import say
from skforge.exceptions import (
    InconsistentVersionWarning,
    InvalidInputError,
    SkforgeError,
    TuningWarning,
    VerificationError,
)

MISMATCH, BAD_USAGE, FAULT, INTERRUPTED = 1, 2, 3, 130


class FaultError(SkforgeError):
    """A fault of skforge that a comparison found; the text says what to do."""


#: Arguments of Python that are options of commands, as errors name them.
_ARGUMENT = re.compile(r"\b(kind|target|contribs|overwrite)=(?:True|'([\w-]+)')")

#: Arguments at the start of an error for a wrong choice.
_CHOICE = re.compile(r"^(kind|level) (?=must be one of )")

#: The parser's base class of errors for bad options.
_UsageError: type[Any] = typer.BadParameter.__bases__[0]


_CODES = (VerificationError, MISMATCH), (FaultError, FAULT)


class _WithoutTypes:
    """A base of commands: flags and arguments have no type of Python in their help."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.param_type_name == "argument":  # its name says what it is
                param.display_type_rich = lambda ctx: None
        return params


class PlainCommand(_WithoutTypes, TyperCommand):
    pass


class OneLineGroup(_WithoutTypes, TyperGroup):
    def main(self, *args: Any, **options: Any) -> Any:
        options["standalone_mode"] = False
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            try:
                code = super().main(*args, **options)
            except (typer.Abort, KeyboardInterrupt):
                code = 130  # as shells count Ctrl-C
            except (_UsageError, SkforgeError, OSError, MemoryError) as error:
                _print("error", _one_line(error), "red")
                code = next((c for k, c in _CODES if isinstance(error, k)), BAD_USAGE)
            except Exception:  # noqa: BLE001 - exit code 1 would say that bits differ
                traceback.print_exc()
                _print("error", "This is a fault of skforge; please report it.", "red")
                code = FAULT
        sys.exit(code or 0)


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Name the file in errors of libraries about rows; skforge's own errors pass."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith("skforge."):
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise InvalidInputError(f"{file} is refused: {why}") from error


def _one_line(error: Any) -> str:
    match error:
        case _UsageError():
            path = "skforge" if error.ctx is None else error.ctx.command_path
            text = " ".join(error.format_message().split())
            ends = "" if text.endswith("?") else "."
            return f"{text.rstrip('.')}{ends} See {path} --help."
        case OSError():
            where = "" if error.filename is None else f"{error.filename}: "
            return f"{where}{error.strerror or error}."
        case MemoryError():
            return "There is not enough memory; take fewer rows, or a smaller model."
        case _:
            text = _ARGUMENT.sub(
                lambda m: f"--{m[1]} {m[2]}" if m[2] else f"--{m[1]}", str(error)
            )
            return _CHOICE.sub(r"--\1 ", text)


def check_output(path: Path, *endings: str) -> None:
    if endings and path.suffix.lower() not in endings:
        raise InvalidInputError(f"{path} does not end in {either(endings)}.")
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder; name a file.")
    if not path.parent.is_dir():
        raise InvalidInputError(
            f"{path} cannot be written: there is no folder {path.parent}."
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInputError(f"{path} cannot be written: permission denied.")


def either(words: Sequence[str]) -> str:
    """Return words with commas, and "or" before the last.

    >>> either([".csv", ".npy", ".ipc"]), either([".skforge"])
    ('.csv, .npy or .ipc', '.skforge')
    """
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _show_warning(usual: Any, message: Any, category: Any, *where: Any) -> None:
    if issubclass(category, (TuningWarning, InconsistentVersionWarning)):
        warn(str(message))
    else:
        usual(message, category, *where)


def warn(text: str) -> None:
    _print("warning", text, "yellow")


def _print(kind: str, text: str, style: str) -> None:
    say(f"{kind}: {text}", style, stderr=True)
