"""A GPU's first run, in stages that fit in minutes and go on where they stopped.

    python -m benchmarks.gpu first-run --plan
    python -m benchmarks.gpu first-run --stage 1 --minutes 9 --output first-run
    python -m benchmarks.gpu first-run --report --output first-run

A stage is a list of items. Each item's result is a line of ``first_run.jsonl``, written
when the item ends, so that a process that is killed loses one item. The same command
goes on with the items that have no result. An item that began twice and never ended is
given up. If a kernel broke the device's context, the process starts itself anew.
"""

from __future__ import annotations

import os
import sys
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from models import EIGHT

from benchmarks.gpu import first_run_report, first_run_setup, first_run_stages
from benchmarks.gpu.first_run_items import Log, plan, run_stage

FILE = "first_run.jsonl"


def main(
    stage: Annotated[int, typer.Option(help="1 to 8; see --plan.")] = 0,
    minutes: Annotated[float, typer.Option(help="No item ends later.")] = 9.0,
    output: Annotated[
        Path, typer.Option(help="Folder for results, which are also read there.")
    ] = Path("first-run"),
    target: Annotated[
        str, typer.Option(help="cuda or hip; emulated rehearses on this CPU.")
    ] = "cuda",
    names: Annotated[
        str, typer.Option(help="Models, by commas; default: the paper's eight.")
    ] = "",
    packed: Annotated[
        Path | None, typer.Option(help="Models that --pack wrote, for a bare machine.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Few schedules: a rehearsal.")] = False,
    again: Annotated[bool, typer.Option(help="Run failed items again.")] = False,
    share: Annotated[
        str, typer.Option(help="2/8: the third of 8 shares, each by a process.")
    ] = "0/1",
    pack: Annotated[
        Path | None, typer.Option(help="Write the models to a zip file, and end.")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print what stages would take.")
    ] = False,
    report: Annotated[bool, typer.Option(help="Write first_run.md.")] = False,
    kernel: Annotated[
        str, typer.Option(help="MODEL:DESIGN:ROWS to run for a profiler.")
    ] = "",
) -> None:
    """Run a stage, or say what was found."""
    began = monotonic()
    wanted = [one for one in names.split(",") if one] or list(EIGHT)
    if pack is not None:
        first_run_setup.pack(wanted, pack)
        return
    setup = first_run_setup.Setup(target, tuple(wanted), packed, quick)
    setup.end = began + 60 * minutes
    if kernel:
        first_run_stages.run_kernel(setup, *kernel.rsplit(":", 2))
    elif plan_only:
        print("\n".join(plan(first_run_stages.STAGES, setup)))
    elif report:
        first_run_report.write(Log(output / FILE), setup, output)
    else:
        (one,) = [s for s in first_run_stages.STAGES if s.number == stage]
        print(f"{one.number} {one.title}", flush=True)
        log = Log(output / FILE)
        first, step = map(int, share.split("/"))
        items = islice(one.items(setup), first, None, step)
        status = run_stage(
            stage, items, log, setup.end, again=again, broken=setup.broken
        )
        setup.close()
        if setup.broken():
            _start_anew(setup.end - monotonic())
        sys.exit(status)


def _start_anew(seconds: float) -> None:
    """Become the same command with the time that is left."""
    given = list(sys.orig_argv[1:])
    if "--minutes" in given:
        at = given.index("--minutes")
        del given[at : at + 2]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *given, "--minutes", f"{seconds / 60}"])
