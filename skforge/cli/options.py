"""Arguments and options that several commands take."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from copy import copy
from inspect import cleandoc
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from skforge.exceptions import ScheduleError, shortened
from skforge.schedule.directives import BY_NAME
from skforge.schedule.schedule import Schedule


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make options of the parameters that a command's docstring tells about.

    A line ``:param name: help`` has the help of each. Flags have no negative form. Help
    shows what a value is, such as FILE, and not its type.
    """
    text, *entries = re.split(r"\n+:param ", cleandoc(command.__doc__ or ""))
    helps = dict(entry.split(": ", 1) for entry in entries)
    hints = get_type_hints(command, include_extras=True)
    del hints["return"]
    for name, hint in hints.items():
        own = getattr(hint, "__metadata__", ())
        kind = hint.__origin__ if own else hint
        flag = [f"--{name}"] if kind is bool else []
        option = copy(own[0]) if own else typer.Option(*flag)
        if name in helps:
            option.help = " ".join(helps[name].split())
        if option.metavar is None and kind is not bool:
            option.metavar = _metavar(name, kind)
        command.__annotations__[name] = Annotated[kind, option]
    command.__doc__ = text
    return command


#: What help calls the values of a type; of other types, the option's last word.
_METAVARS: dict[Any, str] = {int: "N", float: "SECONDS", Path: "FILE"}


def _metavar(name: str, kind: Any) -> str:
    kind = next((k for k in get_args(kind) if k is not NoneType), kind)
    return _METAVARS.get(kind, name.rpartition("_")[2].upper())


def load_schedule(text: str | None) -> Schedule | None:
    if text is None or text == "auto":
        return None
    if text == "-":
        text = sys.stdin.read()
    elif not text.lstrip().startswith(("{", "Schedule(")) and Path(text).suffix:
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ScheduleError(
                f"The schedule file {text!r} cannot be read: {why}."
            ) from error
    text = text.strip()
    if text.startswith("{"):
        return Schedule.from_json(text)
    return schedule_of(text) if text.startswith("Schedule") else Schedule.preset(text)


def schedule_of(text: str) -> Schedule:
    r"""Return the schedule whose calls a text spells; no code of the text is run.

    >>> schedule_of('Schedule().tile("batch", "b0", "b1", 8)\n  .unroll("b1")')
    Schedule().tile("batch", "b0", "b1", 8).unroll("b1")
    """
    calls: list[tuple[str, list[Any], dict[str, Any]]] = []
    try:
        node = ast.parse(f"({text})", mode="eval").body
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            args = [ast.literal_eval(value) for value in node.args]
            named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
            calls.append((node.func.attr, args, named))
            node = node.func.value
        begins = ast.unparse(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        begins = ""
    if begins != "Schedule()":
        raise ScheduleError(
            "A schedule is written as skforge inspect --level schedule prints it: "
            "Schedule() and calls with plain values. "
            f"Got {shortened(text, 60)!r} instead."
        )
    schedule = Schedule()
    for name, args, named in reversed(calls):
        if name not in BY_NAME:
            raise ScheduleError(
                f"A Schedule has no {name!r}; it has {', '.join(BY_NAME)}."
            )
        try:
            schedule = getattr(schedule, name)(*args, **named)
        except TypeError as error:
            raise ScheduleError(f"{name} in the schedule: {error}.") from error
    return schedule


T = TypeVar("T")

OutputOption = Annotated[T, typer.Option("--output", "-o")]
ModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        exists=True,
        dir_okay=False,
        readable=True,
        help="The model: a file of XGBoost, LightGBM, CatBoost or ONNX, .skforge, "
        ".joblib or .pkl.",
    ),
]


def _is_there(path: Path | None) -> Path | None:
    # The check of Typer 0.29 itself refuses a dash.
    if path is not None and str(path) != "-" and (path.is_dir() or not path.exists()):
        problem = "is a directory" if path.is_dir() else "does not exist"
        raise typer.BadParameter(f"file {str(path)!r} {problem}.")
    return path


RowsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="ROWS",
        callback=_is_there,
        help="The rows: .csv, .parquet, .arrow, .feather or .npy; - reads CSV from "
        "standard input.",
    ),
]
DataFile = Annotated[
    Path | None,
    typer.Option(
        callback=_is_there,
        help="A file of rows to use. Default: random rows around the thresholds.",
    ),
]
DataColumns = Annotated[
    str | None,
    typer.Option(
        help="The columns that are the features, in the order of training: names with "
        "commas, or a range such as 0:13."
    ),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        help="The schedule: a preset, JSON, what inspect --level schedule prints, a "
        "file with one of these, or - for standard input. Default: chosen by skforge."
    ),
]
SecondsOption = Annotated[
    float, typer.Option(min=0.01, max=3600, help="Seconds to measure each batch size.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Print the schedules and their loops.")
]
RunTarget = Annotated[
    str, typer.Option(help="Where to run: cpu, cuda, hip, auto or emulated.")
]


def sizes_of(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(
            f"{text!r} is not a list of positive numbers such as 1,64,4096.",
            param_hint="--batch-sizes",
        )
    return sizes
