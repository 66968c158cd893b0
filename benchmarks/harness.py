"""The harness: what is chosen, rounds in which systems take turns, results, tables.

A script names its cases and systems, compares their answers, times them here, and has
a function that writes its page from its results. ``publish`` keeps the results as JSON
with this page beside them; ``redraw.py`` writes pages anew from the stored results.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any, TypeVar

import typer

from skforge.tuning.measure.bench import in_rounds

Call = Callable[[Any], object]
Document = dict[str, Any]
T = TypeVar("T")

#: Calls of a few µs before a sample: entries are compiled once small calls are a habit.
HABIT = 40

# ------------------------------------------------------------ what is chosen

#: Arguments and options that scripts share.
Names = Annotated[
    list[str] | None, typer.Argument(help="Parts of names of models; default: all.")
]
Parts = Annotated[str, typer.Option(help="Parts of names, by commas.")]
Batches = Annotated[str, typer.Option(help="Rows of a call.")]
Rounds = Annotated[int, typer.Option(help="Samples of each system.")]
Slot = Annotated[float, typer.Option(help="Seconds of a sample.")]
Output = Annotated[Path | None, typer.Option(help="Folder of results.")]
Merge = Annotated[
    bool, typer.Option(help="Keep what the output has and is not measured now.")
]


def parts(text: str) -> list[str]:
    """Return the words of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    """Return the numbers of a list with commas."""
    return [int(word) for word in parts(text)]


def chosen(name: str, wanted: Sequence[str]) -> bool:
    """Tell whether a name has one of some parts; without parts all are chosen."""
    return not wanted or any(part in name for part in wanted)


def of_size(schedules: Mapping[tuple[int, int | None], T], rows: int) -> T:
    """Return what a table of ranges of batch sizes has for a number of rows.

    >>> of_size({(1, 7): "few", (8, None): "many"}, 9)
    'many'
    """
    return next(one for (a, b), one in schedules.items() if a <= rows <= (b or rows))


# ------------------------------------------------------------ rounds


def seconds(
    call: Call, rows: Any, clock: Callable[[], float] = time.perf_counter
) -> float:
    start = clock()
    call(rows)
    return clock() - start


def sampler(
    call: Call,
    pool: Sequence[Any],
    slot: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Callable[[], float]:
    """Return what takes a sample: the seconds of a call, of as many as fill a slot.

    Calls take the rows of a pool in turn. A sample begins with a call that is not
    timed, since the other systems had the caches.
    """
    count = 1
    for i in range(HABIT):
        taken = seconds(call, pool[i % len(pool)], clock)
        if taken > slot:
            break
    else:
        count = max(1, int(slot / max(taken, 1e-9)))
    given = [pool[i % len(pool)] for i in range(count)]

    def sample() -> float:
        call(pool[-1])
        start = clock()
        for rows in given:
            call(rows)
        return (clock() - start) / count

    return sample


def take_turns(
    samples: Mapping[str, Callable[[], T]], rounds: int
) -> dict[str, list[T]]:
    """Return a sample of each system in each round; the order rotates."""
    calls: Any = [*samples.values()]
    times: Any = zip(*in_rounds(calls, rounds, lambda: False), strict=True)
    return {name: [*some] for name, some in zip(samples, times, strict=True)}


def medians(
    calls: Mapping[str, Call],
    pools: Mapping[str, Sequence[Any]],
    slot: float,
    rounds: int,
    ours: str = "ours",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, float | None]]:
    """Return the seconds of each system's call, and how many times ours these are."""
    samples = {n: sampler(call, pools[n], slot, clock) for n, call in calls.items()}
    taken = take_turns(samples, rounds)
    own = taken.get(ours, [])
    return {name: (median(some), ratio(some, own)) for name, some in taken.items()}


def ratio(times: Sequence[float], ours: Sequence[float]) -> float | None:
    """Return the median of times by ours of the same round; None without any.

    >>> ratio([2.0, 6.0, 4.0], [1.0, 2.0])
    2.5
    """
    pairs = zip(times, ours, strict=False)
    return median(a / b for a, b in pairs) if times and ours else None


def printed(cells: Iterable[T], words: Callable[[T], str]) -> list[T]:
    """Return all cells, each printed as it is found."""
    found = []
    for cell in cells:
        found.append(cell)
        print(words(cell), flush=True)
    return found


# ------------------------------------------------------------ tables


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    texts: int = 1,
    kinds: str = "",
) -> list[str]:
    """Return the lines of a table; columns after the first few are of numbers.

    ``kinds`` has a letter for each column instead: t of texts, n of numbers.

    >>> table(["model", "µs"], [["airline", 3]])
    ['| model | µs |', '|---|--:|', '| airline | 3 |']
    """
    kinds = kinds or "t" * texts + "n" * (len(heads) - texts)
    rule = "".join({"t": "---|", "n": "--:|"}[kind] for kind in kinds)
    return [line(*heads), f"|{rule}", *(line(*row) for row in rows)]


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def paragraphs(*parts: str | Iterable[str]) -> str:
    r"""Return a page of texts and of the lines of tables; empty ones are left out.

    >>> paragraphs("# Title", "", ["| a |", "|---|"])
    '# Title\n\n| a |\n|---|\n'
    """
    texts = (part if isinstance(part, str) else "\n".join(part) for part in parts)
    return "\n\n".join(text.strip("\n") for text in texts if text) + "\n"


def digits(value: float) -> str:
    """Return a number with a decimal where it is below ten.

    >>> digits(1234.5), digits(9.87)
    ('1,234', '9.9')
    """
    return f"{value:,.{1 if value < 10 else 0}f}"


def micro(taken: float) -> str:
    return digits(taken * 1e6)


def beside_ours(taken: float, ratio: float | None, mark: str = "") -> str:
    """Return seconds in µs, and in bold how many times ours that is."""
    times = "" if ratio is None else f" **{digits(ratio)}×**"
    return f"{micro(taken)}{mark}{times}"


def rows_a_call(n: int) -> str:
    return f"{n:,} row{'s'[: n > 1]}"


def mean_and_worst(ratios: Sequence[float], places: int = 2) -> list[str]:
    """Return the geometric mean and the greatest, as two cells."""
    if not len(ratios):
        return ["", ""]
    return [f"{geometric_mean(ratios):.{places}f}", f"{max(ratios):.2f}"]


def short(error: Exception, most: int = 160) -> str:
    """Return the beginning of an error's text, as a cell can hold it."""
    words = " ".join(str(error).replace("|", "/").split()) or repr(error)
    return words if len(words) <= most else words[:most].rpartition(" ")[0] + " ..."


# ------------------------------------------------------------ results


def rounded(value: Any, places: int = 4) -> Any:
    """Return plain JSON with floats of four digits, None for NaN.

    >>> rounded({"seconds": [1.23456789e-06, 2]})
    {'seconds': [1.235e-06, 2]}
    """
    match value:
        case float():
            return float(f"{value:.{places}g}") if math.isfinite(value) else None
        case dict():
            return {key: rounded(item, places) for key, item in value.items()}
        case list() | tuple():
            return [rounded(item, places) for item in value]
        case _ if is_dataclass(value):
            return rounded(asdict(value), places)  # type: ignore[arg-type]
        case _:
            return value


def a_line_each(document: Any, *keys: str) -> str:
    """Return JSON with a line for each object that begins with one of some keys."""
    text = json.dumps(document, separators=(",", ":"), default=asdict)
    for key in keys:
        text = text.replace(f'{{"{key}"', f'\n{{"{key}"')
    return text


def stored(folder: Path, name: str) -> Any:
    file = folder / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def lines_of(file: Path) -> list[Document]:
    """Return the objects of a file of JSON lines, or of a gzip; none without a file."""
    if not file.exists():
        return []
    read = gzip.open if file.suffix == ".gz" else open
    with read(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def add_line(file: Path, record: Document) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


def records(kind: Callable[..., T], objects: Iterable[Document]) -> list[T]:
    """Return JSON's objects as the dataclass they were written from.

    Keys of dictionaries that were numbers are numbers again.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return [
        kind(**{k: _with_numbers(v) for k, v in one.items() if k in names})
        for one in objects
    ]


def _with_numbers(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {int(k) if k.isdigit() else k: v for k, v in value.items()}


def publish(
    folder: Path | None,
    name: str,
    document: Any,
    page: Callable[[Any], str],
    *keys: str,
    text: str = "",
) -> str:
    """Return the page of results; write both, if a folder is given.

    The page is that of the stored numbers, so that ``redraw.py`` gives the same. With
    keys, the JSON has a line for each object that begins with one of them; ``text`` is
    the JSON where it is laid out otherwise.
    """
    if not text and keys:
        text = a_line_each(document, *keys)
    text = text or json.dumps(document, indent=1, default=asdict)
    words = page(json.loads(text))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(text.rstrip() + "\n", encoding="utf-8")
        (folder / f"{name}.md").write_text(words, encoding="utf-8")
    return words


def between(page: str, name: str, text: str) -> str:
    """Return a page with another text between the two marks of a name.

    >>> between("A <!-- b:begin --> c <!-- b:end -->.", "b", "d")
    'A <!-- b:begin -->\\nd<!-- b:end -->.'
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"the page has no {begin} ... {end}")
    return f"{before}{begin}\n{text}{end}{after}"
