"""Measure skforge against other predictors: models x batch sizes x threads x systems.

Each system runs in a process of its own; all of a batch size take turns on the same
rows. What skforge returns is first compared with the model's own library: a bit that
differs ends the run with status 1, after everything is written.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import harness
import typer
from machine import machine
from measure import Limits, Result, measure, read
from models import Model, get, models
from models import names as names_of_models
from plot import heat_map
from remote import OURS, SYSTEMS, Entry, Remote, SystemFailedError
from report import page, to_markdown
from systems import OWN

DEFAULT = Limits()
#: Enough to see that all works; a few minutes.
QUICK = ("airline.json", "NYC_taxi", "RandomForestClassifier-8")
QUICK_LIMITS = Limits(rounds=3, slot=0.01, call=0.5, cell=0.5, prepare=30.0)


def main(
    names: harness.Names = None,
    systems: Annotated[
        str, typer.Option(help="Only these peers, by commas; the own library stays.")
    ] = "",
    batches: harness.Batches = "1,8,64,512,4096,65536",
    threads: Annotated[str, typer.Option(help="Threads; default: one and all.")] = "",
    quick: Annotated[bool, typer.Option(help="Three models, short samples.")] = False,
    call: Annotated[
        float, typer.Option(help="Seconds: calls expected to take longer are left out.")
    ] = DEFAULT.call,
    prepare: Annotated[
        float, typer.Option(help="Seconds a system may take to prepare a model.")
    ] = DEFAULT.prepare,
    rounds: harness.Rounds = DEFAULT.rounds,
    output: harness.Output = None,
    merge: harness.Merge = False,
) -> None:
    """Measure and print; write JSON, Markdown and a picture where asked.

    Results are written after each model, so that a run that is ended keeps them.
    """
    limits = QUICK_LIMITS if quick else Limits(rounds, call=call, prepare=prepare)
    sizes = sorted(harness.numbers(batches))
    counts = (
        sorted(harness.numbers(threads))
        if threads
        else sorted({1, len(os.sched_getaffinity(0))})
    )
    remotes = chosen(systems)
    old = read(output) if merge and output is not None else []
    facts, results = machine(), []
    wanted = names or (list(QUICK) if quick else [])
    # As Ctrl-C does: systems are closed, results of models that are done stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        for model in models(wanted):
            print(f"{model.name} ({model.rows_from})", flush=True)
            able = [r for r in remotes if _belongs(r, model.kind, systems)]
            try:
                result = measure(model, able, sizes, counts, limits, say)
            except SystemFailedError as error:
                print(f"  left out, its own library fails: {error}")
                continue
            results.append(result)
            if output is not None:
                write(merged(old, results), facts, output)
    finally:
        for remote in remotes:
            remote.close()
    results = merged(old, results)
    print("\n" + to_markdown(results, facts))
    end_if_different(results)


def short_run(
    name: str,
    of_page: Callable[[harness.Document], str],
    wanted: Iterable[str],
    entries: Iterable[Entry],
    sizes: list[int],
    limits: Limits,
    output: Path | None,
    refused: Callable[[Model], set[str]] = lambda model: set(),
    **packages: str,
) -> None:
    """Measure models on one thread; write and print a page of them."""
    remotes = [Remote(entry) for entry in entries]
    facts, results = machine(), []
    facts["packages"] |= packages
    try:
        for model in map(get, wanted):
            say(f"{model.name}: {model.facts}")
            others = set(OWN.values()) - {OWN[model.kind], "onnxruntime"}
            others |= refused(model)
            able = [r for r in remotes if r.entry.name not in others]
            results.append(measure(model, able, sizes, [1], limits, say))
            document = harness.rounded({"machine": facts, "models": results})
            text = harness.publish(output, name, document, of_page, "threads")
    finally:
        for remote in remotes:
            remote.close()
    print(text)
    end_if_different(results)


def chosen(systems: str) -> list[Remote]:
    """Return skforge, the named peers (all if none is named) and own libraries."""
    wanted = harness.parts(systems)
    known = {entry.name for entry in SYSTEMS}
    if unknown := [name for name in wanted if name not in known]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(sorted(known))}."
        )
    needed = {*wanted, *OURS, *OWN.values()} if wanted else known
    return [Remote(entry) for entry in SYSTEMS if entry.name in needed]


def _belongs(remote: Remote, kind: str, systems: str) -> bool:
    """Leave out the own libraries of other models where peers were named."""
    name = remote.entry.name
    others = set(OWN.values()) - {OWN[kind]}
    return not systems or name not in others or name in harness.parts(systems)


def say(line: str) -> None:
    print(line, flush=True)


def end_if_different(results: list[Result]) -> None:
    """End with an error where skforge's answers are not the own library's bits."""
    wrong = [
        result.model
        for result in results
        for known in result.systems
        if known.system in OURS and not (known.same_bits or known.reason)
    ]
    if wrong:
        sys.exit("predictions of skforge differ: " + ", ".join(wrong))


def write(results: list[Result], facts: dict[str, Any], folder: Path) -> None:
    document = {"machine": facts, "models": results}
    # A line for each model, system and cell: small, and readable in a diff.
    keys = ("system", "threads", "model")
    harness.publish(folder, "results", harness.rounded(document), page, *keys)
    heat_map(results, folder / "results.svg")


def merged(old: list[Result], new: list[Result]) -> list[Result]:
    """Return results of all models, new ones in place of old, in the usual order."""
    by_name = {result.model: result for result in [*old, *new]}
    order = {name: number for number, name in enumerate(names_of_models())}
    last = len(order)
    return sorted(by_name.values(), key=lambda result: order.get(result.model, last))


if __name__ == "__main__":
    typer.run(main)
