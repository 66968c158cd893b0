"""The figures of README: a picture and a small table, from a results file.

    python benchmarks/front_page.py benchmarks/results README.md

The picture is ``speed.svg`` in the folder of the results, and ``social.png`` of the
site. It shows how many times as long as skforge a library takes: the geometric mean
over its models. The table has a model of each library, and a sentence counts what was
tried to break skforge. Tests compare all with the results.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

import harness
import numpy as np
from harness import rows_a_call
from measure import Cell, Result, read
from plot import SVG
from remote import OURS
from report import at, best_peer
from systems import OWN

from skforge.cli.report import duration

PICTURE = "speed.svg"
SOCIAL = Path(__file__).parents[1] / "docs" / "_static" / "social.png"
#: The table's models, and what they are.
SHOWN = {
    "airline.json": "XGBoost, 100 trees",
    "lightgbm/NYC_taxi.txt": "LightGBM, 100 trees",
    "RandomForestClassifier-8": "scikit-learn, random forest, 100 trees",
    "HistGradientBoostingClassifier": "scikit-learn, histogram boosting, 100 trees",
    "airline.onnx": "ONNX Runtime, 100 trees",
}
#: What people call CPUs that LLVM calls otherwise.
CPUS = {
    "rocketlake": "Intel Rocket Lake",
    "emeraldrapids": "Intel Emerald Rapids",
    "znver3": "AMD Zen 3",
    "znver4": "AMD Zen 4",
    "znver5": "AMD Zen 5",
}
#: The picture's bars that stand for a library, from the slowest.
LIBRARIES = {"sklearn": "scikit-learn", "xgboost": "XGBoost", "lightgbm": "LightGBM"}
BEST = "best other system"
ROWS = {1: "One row", 4096: "4,096 rows"}
TITLE = "Time of one call, skforge = 1: shorter is better"
THREADS = 1
#: Inches: words stay readable where the picture is as wide as a phone.
SIZE = (5.2, 2.35)
#: For white, of which 4.5 times differ as WCAG asks, and for dark pages; also told
#: apart by those who do not see red or green.
COLORS = {"#6e6e6e": "#b4b4b4", "#0072b2": "#56b4e9"}
GREY, ACCENT = COLORS
#: So that equal pictures have equal bytes.
NO_DATE = {"Date": None}
#: Models that an interval takes.
FEWEST = 4


def bars(results: Sequence[Result], rows: int) -> dict[str, list[float]]:
    """Return how many times as long as skforge each bar's system takes, by model.

    A library's own predict is its fastest interface, over the library's models; the
    best other system is the fastest of all for each model, over all models.
    """
    ratios: dict[str, list[float]] = {name: [] for name in (*LIBRARIES.values(), BEST)}
    for result in results:
        cells = at(result, THREADS, rows)
        for name, cell in (
            (LIBRARIES.get(result.kind), _own(result, cells)),
            (BEST, best_peer(cells)),
        ):
            if name is not None and cell is not None and cell.ratio is not None:
                ratios[name].append(cell.ratio)
    return {**ratios, "skforge": [1.0]}


def interval(ratios: Sequence[float]) -> tuple[float, float] | None:
    """Return where the geometric mean over such models lies, with 95 % confidence.

    A bootstrap over the models (BCa: Efron 1987); None if they are too few.
    """
    from scipy.stats import bootstrap

    logs = np.log(ratios)
    if len(logs) < FEWEST:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where all models have the same ratio
        found = bootstrap((logs,), np.mean, rng=np.random.default_rng(0))
    low, high = np.exp(found.confidence_interval)
    return None if math.isnan(low) else (float(low), float(high))


def draw(results: Sequence[Result], file: Path) -> None:
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.use("Agg")
    grey = dict.fromkeys(("text.color", "xtick.color", "ytick.color"), GREY)
    with plt.rc_context({**SVG, **grey, "font.size": 12}):
        figure, panels = plt.subplots(1, len(ROWS), figsize=SIZE, sharex=True)
        for panel, (rows, title) in zip(panels, ROWS.items(), strict=True):
            panel.axvline(1, color=ACCENT, linewidth=2)
            for line, (name, ratios) in enumerate(bars(results, rows).items()):
                mean, ours = geometric_mean(ratios), name == "skforge"
                ends = interval(ratios) or (mean, mean)
                panel.barh(name, mean - 1, left=1, height=0.55, color=GREY, alpha=0.6)
                panel.plot(ends, (line, line), color=GREY, linewidth=1.5)
                look = {"color": ACCENT, "weight": "bold"} if ours else {"color": GREY}
                panel.text(ends[1] * 1.25, line, times(mean), va="center", **look)
            panel.set_xscale("log")
            panel.set_xlim(0.9, 400_000)  # room for the texts
            panel.set_title(title, loc="left", fontsize=12, weight="bold")
            panel.invert_yaxis()
            panel.xaxis.set_visible(False)
            panel.tick_params(left=False)
            panel.spines[:].set_visible(False)
        panels[1].yaxis.set_visible(False)
        figure.suptitle(TITLE, x=0.015, ha="left", fontsize=12)
        figure.tight_layout(w_pad=0.5)
        figure.savefig(
            file, transparent=file.suffix == ".svg", dpi=231, metadata=NO_DATE
        )
        plt.close(figure)
    if file.suffix == ".svg":
        text = file.read_text(encoding="utf-8")
        rules = (f'[style*="{o}"] {{fill: {n} !important}}' for o, n in COLORS.items())
        dark = f"@media (prefers-color-scheme: dark) {{{' '.join(rules)}}}"
        text = text.replace("</style>", f"{dark}</style>", 1)
        file.write_text(text, encoding="utf-8", newline="\n")


def times(ratio: float) -> str:
    """Return a ratio with two or three digits.

    >>> times(2144.5), times(12.83), times(1.0)
    ('2,140×', '13×', '1×')
    """
    if ratio >= 1000:
        ratio = round(ratio, -1)
    return f"{ratio:,.1f}×" if 1 < ratio < 10 else f"{ratio:,.0f}×"


def claim(results: Sequence[Result]) -> str:
    """Return how many times as fast as libraries skforge is: the least, the most."""
    found = [bars(results, rows) for rows in ROWS]
    means = [geometric_mean(one[name]) for one in found for name in LIBRARIES.values()]
    return f"{times(min(means)).rstrip('×')} to {times(max(means)).rstrip('×')} times"


def table(results: Sequence[Result]) -> str:
    by_name = {result.model: result for result in results}
    heads = [f"{rows_a_call(n)}: own library | best other | skforge" for n in ROWS]
    rows = [
        [what, *(_cells(by_name[name], n) for n in ROWS)]
        for name, what in SHOWN.items()
    ]
    head, _, *lines = harness.table(["a model of", *heads], rows)
    return "\n".join([head, "|---|" + "--:|" * 3 * len(ROWS), *lines]) + "\n"


def with_figures(page: str, folder: Path) -> str:
    """Return a page with what a folder's results say between its marks."""
    page = harness.between(page, "figures", figures(folder))
    return harness.between(page, "evidence", evidence(folder))


def figures(folder: Path) -> str:
    document = harness.stored(folder, "results")
    results = read(folder)
    target = document["machine"]["target"]
    day = max(r.measured for r in results)[:10]
    return (
        f"{table(results)}\nThe time of one call, on one thread: of `predict_raw` for "
        "XGBoost and LightGBM, `predict_proba` for scikit-learn and `predict` for "
        f"ONNX. {in_words(target)}, {day}. **Bold**: how many times as fast as the "
        "model's own library. That is the median over rounds of measurement, so it may "
        "differ a little from the quotient of the two times.\n"
    )


def in_words(target: str) -> str:
    """Return a machine with the name that people know.

    >>> in_words("cpu znver4, 512-bit vectors, 1 core")
    'AMD Zen 4, 512-bit vectors, 1 core'
    """
    cpu, comma, more = target.removeprefix("cpu ").partition(",")
    return CPUS.get(cpu, cpu) + comma + more


def evidence(folder: Path) -> str:
    families = [*harness.stored(folder, "reliability").values()]
    rows = [row for family in families for row in family["rows"]]
    kinds = {
        "calls from many threads": r"^predict calls",
        "changed or damaged files": r"^changed | file of [\d,]+ bytes",
        "forms of random models (live, pickled or from files)": r"^forms of",
    }
    counts = [
        f"{sum(r['tried'] for r in rows if re.search(kind, r['what'])):,} {what}"
        for what, kind in kinds.items()
    ]
    lost = sum(len(row["lost"]) for row in rows) or "none"
    machines = [family["machine"] for family in families]
    targets = {in_words(m["target"].split(",")[0]) for m in machines}
    return (
        f"Tried so far: {', '.join(counts)}. Wrong bits, crashes and hangs: {lost}. "
        f"CPUs: {', '.join(sorted(targets))}; last run on "
        f"{max(m['measured'] for m in machines)[:10]}. "
        "[What was tried, and how](docs/reliability.md).\n"
    )


def _own(result: Result, cells: Sequence[Cell]) -> Cell | None:
    own = (OWN[result.kind], f"{OWN[result.kind]} wrapper")
    timed = [c for c in cells if c.system in own and c.seconds is not None]
    return min(timed, key=lambda c: c.seconds or math.inf, default=None)


def _cells(result: Result, rows: int) -> str:
    """Return the time of a call of the source's own, the best other's, and ours."""
    cells = at(result, THREADS, rows)
    own = _own(result, cells)
    ours = next(c for c in cells if c.system == OURS[0])
    if own is None or own.ratio is None or own.seconds is None or not ours.seconds:
        raise ValueError(f"{result.model} was not timed at {rows} rows")
    names = (own.system, OWN[result.kind], f"{OWN[result.kind]} wrapper")
    other = best_peer([c for c in cells if c.system not in names])
    second = "–"
    if other is not None and other.seconds is not None:
        second = f"{duration(other.seconds)} ({other.system})"
    first, third = duration(own.seconds), duration(ours.seconds)
    return f"{first} | {second} | {third}, **{times(own.ratio)}**"


def main() -> None:
    folder, page = map(Path, sys.argv[1:])
    for picture in (folder / PICTURE, SOCIAL):
        draw(read(folder), picture)
    text = with_figures(page.read_text(encoding="utf-8"), folder)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
