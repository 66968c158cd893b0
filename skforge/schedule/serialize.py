"""Schedules as JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, fields

from skforge.exceptions import ScheduleError
from skforge.schedule import directives as d

VERSION = 1


def dumps(directives: Iterable[d.Directive]) -> str:
    steps = [{"op": d.name_of(step), **asdict(step)} for step in directives]
    return json.dumps({"version": VERSION, "directives": steps})


def loads(text: str) -> tuple[d.Directive, ...]:
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ScheduleError("This JSON is nested too deeply for a schedule.") from error
    except ValueError as error:
        raise ScheduleError(f"A schedule must be JSON text: {error}.") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION or version is True:
        raise ScheduleError(
            f'A schedule in JSON is an object with "version": {VERSION}, but '
            f"here it is {json.dumps(version)}; to read a later version, update "
            "skforge."
        )
    steps = content.get("directives")
    if not isinstance(steps, list):
        raise ScheduleError('A schedule in JSON must have a list "directives".')
    return tuple(map(_from_step, steps))


def _from_step(step: object) -> d.Directive:
    op = step.get("op") if isinstance(step, dict) else step
    directive = d.BY_NAME.get(op) if isinstance(op, str) else None
    if directive is None or not isinstance(step, dict):
        raise ScheduleError(
            f"{op!r} is not a directive; the directives are {', '.join(d.BY_NAME)}."
        )
    arguments = {key: value for key, value in step.items() if key != "op"}
    wanted = [field.name for field in fields(directive)]
    if sorted(arguments) != sorted(wanted):
        raise ScheduleError(
            f'In JSON the directive "{op}" has the fields {_fields(wanted)}, not '
            f"{_fields(list(arguments))}."
        )
    if directive is d.Reorder:
        indices = arguments["indices"]
        if not isinstance(indices, list):
            raise ScheduleError('In JSON the directive "reorder" has a list "indices".')
        return d.Reorder(tuple(indices))
    if directive is d.TileNodes:
        arguments["kind"] = d.tile_kind(arguments["kind"])
    return directive(**arguments)


def _fields(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in ["op", *names])
