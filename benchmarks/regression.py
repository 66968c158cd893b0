"""Compare two commits: what is counted of their code, and how long their calls take.

    python -m benchmarks.regression BASE [HEAD]

checks both out beside the repository, compiles the same models with each in a process
of its own, compares the bits of their answers, then counts (instructions, bytes, calls:
the same numbers in every run) and the times of interleaved rounds. Ends with status 1
if a bit differs or a count got worse by more than ``--counts``; times are only shown,
as a busy machine makes any of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from harness import Batches, Rounds, numbers, parts, ratio, table, take_turns
from models import Model, models
from remote import Entry, Remote, SystemFailedError

ROOT = Path(__file__).resolve().parents[1]

#: One of each kind of code: bit logic, lanes, tiles, walks, categories, classes.
USUAL = (
    "xgb-missing",
    "xgb-5-classes",
    "lgbm-categories",
    "RandomForestClassifier-full",
    "synthetic-300x64-7",
)
#: Seconds that one step of one commit may take.
LOAD, COUNT = 300.0, 600.0
SLOT = 0.02


class CommitRemote(Remote):
    worker = Path(__file__).with_name("regression_worker.py")


@dataclass(frozen=True, slots=True)
class Line:
    """One measure of both commits; fewer is better."""

    model: str
    rows: int
    measure: str
    base: float
    head: float
    is_time: bool = False

    @property
    def ratio(self) -> float:
        """Head by base; infinite where there was nothing."""
        if self.base == 0:
            return 1.0 if self.head == 0 else float("inf")
        return self.head / self.base


@dataclass(slots=True)
class Comparison:
    lines: list[Line] = field(default_factory=list)
    different: list[str] = field(default_factory=list)  # answers, or who gave none
    left_out: dict[str, str] = field(default_factory=dict)  # measures, with reasons


def main(
    base: Annotated[str, typer.Argument(help="What is compared with: any revision.")],
    head: Annotated[
        str, typer.Argument(help="A revision, or . for the files as they are.")
    ] = "HEAD",
    names: Annotated[str, typer.Option("--models", help="Parts of names.")] = ",".join(
        USUAL
    ),
    batches: Batches = "1,64,4096",
    counts: Annotated[float, typer.Option(help="Share a count may grow by.")] = 0.02,
    times: Annotated[float, typer.Option(help="Share a time may grow by.")] = 0.1,
    rounds: Rounds = 15,
    allow: Annotated[
        str, typer.Option(help="Measures that may get worse, by commas.")
    ] = "",
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Compare two commits, print a table, and end with 1 if a count got worse."""
    sizes, allowed = numbers(batches), parts(allow)
    found = Comparison()
    with checkout(base) as before, checkout(head) as after:
        for model in models(parts(names)):
            print(f"{model.name} ...", file=sys.stderr, flush=True)
            compare(model, {"base": before, "head": after}, sizes, rounds, found)
    print(report(found, base, head, counts, times))
    if json_file is not None:
        document = {"base": base, "head": head, **asdict(found)}
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    bad = [line for line in worse(found.lines, counts) if line.measure not in allowed]
    raise typer.Exit(1 if bad or found.different else 0)


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Give a folder with the files of a revision; ``.`` is this one as it is."""
    if revision == ".":
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="skforge-regression-") as temporary:
        folder = Path(temporary).resolve() / "files"
        _git("worktree", "add", "--detach", "--quiet", str(folder), revision)
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _git(*words: str) -> None:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True
    )
    if done.returncode:
        raise typer.BadParameter(done.stderr.strip() or f"git {words[0]} failed")


def compare(
    model: Model,
    packages: Mapping[str, Path],
    sizes: Sequence[int],
    rounds: int,
    found: Comparison,
) -> None:
    """Add what is found of one model to ``found``."""
    remotes = {name: CommitRemote(Entry(name, "", "")) for name in packages}
    try:
        for name, remote in remotes.items():
            remote.ask(
                "load",
                LOAD,
                package=str(packages[name]),
                path=model.path,
                kind=model.kind,
                rows=model.rows,
            )
        for size in sizes:
            found.different += _different(model, size, remotes)
            found.lines += _counted(model, size, remotes, found.left_out)
            if rounds:
                found.lines.append(_timed(model, size, remotes, rounds))
    except SystemFailedError as error:
        found.different.append(f"{model.name}: {error}")
    finally:
        for remote in remotes.values():
            remote.close()


def _different(model: Model, size: int, remotes: Mapping[str, Remote]) -> list[str]:
    """Return a sentence if the two do not answer with the same bits."""
    one, other = (remote.array("answer", rows=size) for remote in remotes.values())
    if one.dtype == other.dtype and one.shape == other.shape:
        bits = f"u{one.itemsize}"
        differ = int((one.view(bits) != other.view(bits)).sum())
        if not differ:
            return []
        return [f"{model.name}, {size:,} rows: {differ:,} of {one.size:,} values"]
    shapes = f"{one.dtype}{list(one.shape)} and {other.dtype}{list(other.shape)}"
    return [f"{model.name}, {size:,} rows: {shapes}"]


def _counted(
    model: Model, size: int, remotes: Mapping[str, Remote], left_out: dict[str, str]
) -> list[Line]:
    """Return counts that both have; note in ``left_out`` why others are missing."""
    counts = {}
    for name, remote in remotes.items():
        answer = remote.ask("counts", COUNT, rows=size)
        counts[name] = answer["counts"]
        for measure, reason in answer["reasons"].items():
            left_out.setdefault(measure, f"{reason} ({name}, {model.name})")
    return [
        Line(model.name, size, measure, counts["base"][measure], value)
        for measure, value in counts["head"].items()
        if measure in counts["base"]
    ]


def _timed(model: Model, size: int, remotes: Mapping[str, Remote], rounds: int) -> Line:
    for remote in remotes.values():
        remote.ask("warm", rows=size, slot=SLOT)
    calls = {
        name: lambda remote=remote: remote.ask("sample")["seconds"]
        for name, remote in remotes.items()
    }
    samples = take_turns(calls, rounds)
    base = median(samples["base"])
    # Of rounds, not of medians: the two of a round met the same machine.
    times = ratio(samples["head"], samples["base"]) or 1.0
    return Line(model.name, size, "µs a call", base * 1e6, base * times * 1e6, True)


def worse(lines: Sequence[Line], share: float, times: bool = False) -> list[Line]:
    """Return counts, or times, that grew by more than a share, worst first."""
    chosen = (line for line in lines if line.is_time == times)
    return sorted(
        (line for line in chosen if line.ratio > 1 + share),
        key=lambda line: -line.ratio,
    )


def report(found: Comparison, base: str, head: str, counts: float, times: float) -> str:
    parts = [f"## {head} by {base}\n"]
    if found.different:
        told = "\n".join(f"- {sentence}" for sentence in found.different)
        parts.append(f"**Answers differ, or are missing**\n\n{told}\n")
    for title, share, is_time in (
        ("Counts that got worse", counts, False),
        ("Times that got worse (this machine's; not in the exit status)", times, True),
    ):
        bad = worse(found.lines, share, is_time)
        title = f"{title}, by more than {share:.0%}"
        parts.append(f"{title}:{'' if bad else ' none'}\n")
        if bad:
            parts.append(_table(bad))
    parts.append("All of them, as the median and the extremes of head by base:\n")
    parts.append(_summary(found.lines))
    for measure, reason in found.left_out.items():
        parts.append(f"Not compared – {measure}: {reason}")
    return "\n".join(parts)


def _table(lines: Sequence[Line]) -> str:
    rows = []
    for one in lines:
        values = (f"{x:,.{2 if one.is_time else 0}f}" for x in (one.base, one.head))
        rows.append([one.model, f"{one.rows:,}", one.measure, *values])
        rows[-1].append(f"**{one.ratio:.3f}**")
    heads = ["model", "rows", "measure", "base", "head", "ratio"]
    return "\n".join(table(heads, rows, kinds="tntnnn")) + "\n"


def _summary(lines: Sequence[Line]) -> str:
    by_measure: dict[str, list[Line]] = {}
    for line in lines:
        by_measure.setdefault(line.measure, []).append(line)
    rows = []
    for measure, some in by_measure.items():
        ratios = sorted(line.ratio for line in some)
        shown = (ratios[0], median(ratios), ratios[-1])
        rows.append([measure, len(some), *(f"{value:.3f}" for value in shown)])
    heads = ["measure", "compared", "least", "median", "most"]
    return "\n".join(table(heads, rows)) + "\n"


if __name__ == "__main__":
    typer.run(main)
