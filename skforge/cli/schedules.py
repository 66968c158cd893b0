"""Read a schedule that a user gives on the command line."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skforge.exceptions import ScheduleError, shortened

if TYPE_CHECKING:
    from skforge.compiler.schedule.schedule import Schedule


def load_schedule(text: str | None) -> Schedule | None:
    """Return the schedule that an option gives, None for the defaults.

    Parameters
    ----------
    text : str or None
        A preset's name, JSON, the calls that ``skforge inspect --level schedule``
        prints, a file with one of these, or ``-`` for standard input.

    Raises
    ------
    ScheduleError
        If it is none of these.
    """
    from skforge.compiler.schedule.schedule import Schedule

    if text is None or text == "auto":
        return None
    if text == "-":
        text = sys.stdin.read()
    elif not _is_text_of_schedule(text) and Path(text).suffix:
        text = _content(text)
    text = text.strip()
    if text.startswith("{"):
        return Schedule.from_json(text)
    if text.startswith("Schedule"):
        return schedule_of(text)
    return Schedule.preset(text)


def _is_text_of_schedule(text: str) -> bool:
    return text.lstrip().startswith(("{", "Schedule("))


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ScheduleError(
            f"The schedule file {path!r} cannot be read: {why}."
        ) from error


def schedule_of(text: str) -> Schedule:
    r"""Return the schedule whose calls a text spells; no code of the text is run.

    >>> schedule_of('Schedule().tile("batch", "b0", "b1", 8)\n  .unroll("b1")')
    Schedule().tile("batch", "b0", "b1", 8).unroll("b1")

    Raises
    ------
    ScheduleError
        If the text is anything else, or the schedule is not legal.
    """
    from skforge.compiler.schedule.directives import BY_NAME
    from skforge.compiler.schedule.schedule import Schedule

    calls: list[tuple[str, list[Any], dict[str, Any]]] = []
    try:
        node = ast.parse(f"({text})", mode="eval").body
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            args = [ast.literal_eval(one) for one in node.args]
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
    made = Schedule()
    for name, args, named in reversed(calls):
        if name not in BY_NAME:
            raise ScheduleError(
                f"A Schedule has no {name!r}; it has {', '.join(BY_NAME)}."
            )
        try:
            made = getattr(made, name)(*args, **named)
        except TypeError as error:
            raise ScheduleError(f"{name} in the schedule: {error}.") from error
    return made
