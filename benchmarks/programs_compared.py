"""Programs that nobody edits, with kernels as soon as they can answer, compared.

    python -m benchmarks.programs_compared --output benchmarks/results

The programs of ``accelerated.py`` run once as ``python PROGRAM`` and once as ``skforge
run PROGRAM``, with models compiled in their first call, also where kernels are slower.
What comes out, what is written to stderr and how the program ends have to be the same,
or the script ends with 1. Nothing is timed, so a busy machine will do.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from accelerated import PROGRAMS, Program, able, make, run, versions
from harness import Document, paragraphs, parts, publish, stored, table
from machine import in_words, machine


def compared(program: Program) -> Document:
    """Run a program on both sides; return whether they agree, and the calls."""
    with tempfile.TemporaryDirectory() as folder:
        make(program, Path(folder))
        usual, _ = run(program, Path(folder), accelerated=False)
        ours, calls = run(program, Path(folder), accelerated=True, eager=True)
    if usual.said != ours.said:
        print(usual.said, ours.said, sep="\n--- with skforge:\n")
    same = (usual.digest, usual.said) == (ours.digest, ours.said)
    line = {"name": program.name, "environment": program.environment} | calls
    print(line | {"same": same}, flush=True)
    return line | {"same": same}


def compared_table(document: Document) -> list[str]:
    rows = []
    for line in document["lines"]:
        total = line["kernel_calls"] + line["library_calls"]
        ends = "the same" if line["same"] else "**others**"
        rows.append([line["name"], f"{line['kernel_calls']:,} of {total:,}", ends])
    heads = ["program", "calls by kernels", "bytes, warnings, exit codes"]
    return table(heads, rows, kinds="tnt")


def page(document: Document) -> str:
    packages = ", ".join(f"{k} {v}" for k, v in document["packages"].items())
    return paragraphs(
        "# Programs that nobody edits, compared",
        "Under `python` and under `skforge run`, with kernels in each call in which "
        "they can answer, also where they are slower; see "
        "`benchmarks/programs_compared.py`. Of servers, bytes are compared.",
        compared_table(document),
        f"Besides: {packages}." if packages else "",
        in_words(document["machine"]),
    )


def main(
    only: Annotated[str, typer.Option(help="Parts of names of programs.")] = "",
    requests: Annotated[int, typer.Option(help="Requests of a server.")] = 60,
    output: Annotated[Path | None, typer.Option(help="Folder of results.")] = None,
) -> None:
    """Compare; print and write what is compared now and what is there of others."""
    name = "programs_compared"
    lines = [] if output is None else stored(output, name).get("lines", [])
    for program in able(parts(only)):
        line = compared(replace(program, requests=requests))
        known = {**{one["name"]: one for one in lines}, program.name: line}
        lines = [known[one.name] for one in PROGRAMS if one.name in known]
        document: Any = {
            "machine": machine(),
            "packages": versions(lines),
            "lines": lines,
        }
        publish(output, name, document, page)
    print(*compared_table({"lines": lines}), sep="\n")
    if not all(line["same"] for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
