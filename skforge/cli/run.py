"""The command ``run``: a program with its libraries accelerated."""

from __future__ import annotations

from typing import Annotated

import typer

from skforge.acceleration import launching
from skforge.exceptions import InvalidInputError


def run(
    program: Annotated[list[str] | None, typer.Argument(metavar="PROGRAM")] = None,
    report: bool = False,
    min_rows: int = 1,
    min_calls: int = 3,
) -> None:
    """Run a Python program; kernels answer for its models, with the same bits.

    PROGRAM is a script, or -m and a module; what follows it is its own. Processes
    that it starts are accelerated, too; SKFORGE_OFF=1 switches it off.

    :param report: At the end, print what kernels and libraries have answered.
    :param min_rows: Leave calls with fewer rows to the library.
    :param min_calls: Compile a model after so many calls at the earliest.
    """
    if not program or program == ["-m"]:
        raise InvalidInputError(
            "Name a program: skforge run SCRIPT, or skforge run -m MODULE."
        )
    launching.run(program, report, min_rows, min_calls)
