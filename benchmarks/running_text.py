"""Writes the figures that pages name in running text, from the stored results.

    python -m benchmarks.running_text

A sentence is a template: ``[name]`` stands for a figure, and what stands in its place
on the page is written anew. Small tables lie between marks. Nothing is measured.
``tests/unit/test_running_text.py`` compares the pages with the results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import geometric_mean, median

from benchmarks import accelerated, harness
from benchmarks.harness import Document
from skforge.exceptions import duration

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
#: By page, its sentences.
SENTENCES = {
    "README.md": [
        "the first answer comes [skforge start] ms after NumPy is imported, over four "
        "models (lignum, which reads three of them, [lignum start]; ONNX Runtime [ONNX "
        "Runtime start]; XGBoost [XGBoost, bare start], and [XGBoost start] where "
        "scikit-learn and pandas are installed)",
        "geometric means over [models] models, with",
        "a call is [texts, scikit-learn] times as fast as scikit-learn's pipeline, but "
        "only [texts, ONNX Runtime] times as fast as ONNX Runtime.",
    ],
    "CHANGELOG.md": [
        "row of a fresh process comes [skforge start] ms after NumPy is imported, if a",
    ],
    "docs/index.md": ["geometric means over [models] models with"],
    "docs/start.md": ["has the figures of [models] models."],
    "docs/when_not.md": [
        "a core with skforge scores [engines] times as many rows a second as one with "
        "the library, and [dask] times as many in Dask",
        "random forests of full depth [sparse full, 2048] times at 2,048 rows and "
        "[sparse full, 64] times at 64, LightGBM and XGBoost [sparse boosting] times",
        "A smaller `max_depth` helps: [sparse depth 8] times at depth 8.",
        "no model's own library came closer than [own nearest]. Other compilers",
        "one row takes [mappings] µs, and [mappings, ONNX Runtime] times as long with "
        "ONNX Runtime.",
        "**XGBoost of depth 10, 12 and 14**, from 512 rows on: [deep] times as fast as "
        "daal4py, and [deep, AVX2] times with AVX2 alone.",
        "**Wide rows**, 968 and 3,000 columns, from 64 rows on: [wide] times as fast "
        "as daal4py, and [wide, AVX2] times with AVX2 alone.",
    ],
    "docs/without_changing_a_line.md": [
        "medians, runs a side: [program rounds], on: [program machine].",
        "warnings and exit codes of [compared programs] programs are the same then, "
        "and kernels answer [compared calls] of their calls.",
        "times: [own tests] tests end as they do without skforge, and kernels answer "
        "[own calls] of their calls.",
    ],
    "docs/export.md": [
        "Making an object takes [skforge, this CPU made] seconds, checks included; gcc "
        "takes [tl2cgen, gcc -O3 made] seconds for tl2cgen's code of the first two "
        "models.",
    ],
    "docs/benchmarks.md": [
        "For LightGBM, compiled and tuned by itself, it takes [lignum compiled, "
        "lightgbm, 1] times as long as skforge at one row, and [lignum compiled, "
        "lightgbm, 8] times at eight.",
        "For XGBoost, the faster of its two modes takes [lignum's faster, xgboost, 1] "
        "times as long at one row, and [lignum's faster, xgboost, 8] times at eight.",
        "There are [models] models and six batch sizes.",
        "skforge is [nvforest] times as fast at 1, 16, 128 and 1,024 rows",
        "99 % took at most [12 thousand] for a forest of 12 thousand nodes, [524 "
        "thousand] for 524 thousand and [4.2 million] for 4.2 million.",
    ],
}
OWN = {
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "sklearn": "sklearn",
    "onnx": "onnxruntime",
}
#: Cells below this are those "where another compiler is within a factor of two".
NEAR = 2.0
#: What the models are that have such cells.
NAMES = {
    "lightgbm/mixed_categorical.txt": "one LightGBM tree of 19 leaves, with categories",
    "one-tree-8": "one scikit-learn tree of depth 8",
    "one-tree-full": "one scikit-learn tree of full depth",
    "one-tree-boosted": "one boosted tree of XGBoost",
    "depth-10": "XGBoost of depth 10",
    "depth-12": "XGBoost of depth 12",
}
VECTORS = {"skforge": "", "skforge AVX2": ", AVX2 alone"}
#: Numbers of nodes of complete trees.
COMPLETE = {
    "complete-96x64-6": "12 thousand",
    "complete-512x128-9": "524 thousand",
    "complete-2048x1000-10": "4.2 million",
}
LIBRARIES = ("XGBoost", "LightGBM", "scikit-learn")
#: The pipeline without columns of text.
NUMBERS_ALONE = "scaler + forest"
CASES = {
    "Titanic: imputer, scaler, one-hot + forest": "Titanic, one-hot",
    "Adult: imputers, scaler, one-hot + forest": "Adult, one-hot",
    "Adult: target encoder + LightGBM": "Adult, target encoder + LightGBM",
}
#: The tables of gpu.md whose means are shown.
GPU_TABLES = {
    "Figure 6: kernel time, times that of nvForest": "nvForest 26.10, kernels",
    "XGBoost on the GPU: kernel time": "XGBoost 3.4, kernels",
    "Figure 6: total time with copies, × nvForest": "nvForest, rows in host memory",
    "XGBoost on the GPU: total time with copies": "XGBoost, rows in host memory",
}
EXPORTED = {
    "skforge, this CPU": "exported for this CPU",
    "skforge, x86-64-v3": "exported for x86-64-v3",
    'skforge, `kind="c"`, gcc -O3': '`kind="c"`, gcc -O3',
    "the source's C interface": "the C interface of the model's own library",
    "tl2cgen, gcc -O3": "C code of tl2cgen, gcc -O3",
    "lleaves": "object of lleaves",
    "skforge in Python, `predict_raw`": "skforge in Python, `predict_raw`",
}
STARTS = {
    "skforge": "**`skforge.load`, cache filled**",
    "skforge, empty cache": "`skforge.load`, cache empty",
    "skforge, exported wheel": "[exported wheel](export.md)",
    "ONNX Runtime": "ONNX Runtime",
    "lignum": "lignum",
    "": "the model's own library",
}
STARTED = {
    "XGBoost, 100 trees of depth 6": "100 trees of depth 6",
    "XGBoost, 1,000 trees of depth 8": "1,000 trees of depth 8",
    "random forest, 100 trees of full depth": "forest of full depth",
}


def rewritten(page: str, template: str, texts: Mapping[str, str]) -> str:
    """Return a page with a sentence's figures; raise ValueError if it is not there.

    Lines of the page may end between any two words; they end as before.

    >>> rewritten("Now it\\ntakes 2 ms.", "it takes [time].", {"time": "3 ms"})
    'Now it\\ntakes 3 ms.'
    """
    parts = [part.split(" ") for part in re.split(r"\[[^]]+\]", template)]
    fixed = [r"\s+".join(map(re.escape, part)) for part in parts]
    names = re.findall(r"\[([^]]+)\]", template)
    found = [*re.finditer(r"([^|]{1,60}?)".join(fixed), page)]
    if len(found) != 1:
        raise ValueError(f"the page has {len(found)} sentences like {template!r}")
    for place, name in reversed([*enumerate(names, 1)]):
        start, end = found[0].span(place)
        page = page[:start] + texts[name] + page[end:]
    return page


def number(value: float) -> str:
    """Return a number with two or three digits.

    >>> [number(x) for x in (0.8543, 1.27, 5.45, 13.07, 266.9, 1053.5)]
    ['0.85', '1.3', '5.5', '13', '267', '1,050']
    """
    if value >= 1000:
        return f"{round(value, -1):,.0f}"
    return f"{value:.2f}" if value < 1 else f"{value:.{value < 10:d}f}"


def short_number(value: float) -> str:
    """Return a number with three digits, without a last zero behind the point.

    >>> [short_number(x) for x in (0.3277799, 9.90093, 521.4, 10718.9)]
    ['0.328', '9.9', '521', '10,719']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def between(values: Iterable[float]) -> str:
    """Return the least and the greatest of values, as numbers.

    >>> between([3.2, 1.04, 17.1]), between([9.2, 9.21])
    ('1.0 to 17', '9.2')
    """
    values = [*values]
    least, most = number(min(values)), number(max(values))
    return least if least == most else f"{least} to {most}"


def figures(folder: Path = RESULTS) -> dict[str, str]:
    """Return the text of each figure that a sentence names."""
    return {
        **starts(folder),
        **pipelines(folder),
        **libraries(folder),
        **compilers(folder),
        **latencies(folder),
        **sparse(folder),
        **engines(folder),
        **exports(folder),
        **programs(folder),
    }


def starts(folder: Path) -> dict[str, str]:
    """Return the ms from NumPy's import to the first row, over the models."""
    times: dict[str, list[float]] = {}
    for start in started(folder):
        seconds = start["seconds"]
        ms = 1000 * (seconds["total"] - seconds["numpy"])
        times.setdefault(start["system"], []).append(ms)
    return {f"{system} start": between(times[system]) for system in times}


def started(folder: Path) -> list[Document]:
    """Return the starts that were measured: lignum reads some of the models."""
    starts = harness.stored(folder, "cold_start")["starts"]
    return [start for start in starts if start["seconds"]]


def pipelines(folder: Path) -> dict[str, str]:
    """Return how pipelines with columns of text compare, at one row."""
    cells = harness.stored(folder, "pipelines")["cells"]
    cells = [c for c in cells if c["case"] != NUMBERS_ALONE and c["rows"] == 1]
    kinds = {"texts": "pandas frame", "mappings": "mapping"}
    texts = {
        f"{name}, {system}": between(
            c["ratio"]
            for c in cells
            if (c["form"], c["system"]) == (form, system) and c["ratio"]
        )
        for name, form in kinds.items()
        for system in ("scikit-learn", "ONNX Runtime")
    }
    ours = [c for c in cells if (c["form"], c["system"]) == ("mapping", "skforge")]
    return {**texts, "mappings": between(1e6 * c["seconds"] for c in ours)}


def libraries(folder: Path) -> dict[str, str]:
    """Return where a model's own library comes nearest; how long lignum takes."""
    models = harness.stored(folder, "results")["models"]
    nearest = []
    ratios: dict[str, list[float]] = {}
    for model in models:
        own = (OWN[model["kind"]], f"{OWN[model['kind']]} wrapper")
        for rows, cells in by_rows(model).items():
            timed = [c for c in cells.values() if c["system"] in own]
            if timed:
                fastest = min(timed, key=lambda c: c["seconds"])
                nearest.append((fastest["ratio"], model["model"], rows))
            modes = {name: c["ratio"] for name, c in cells.items() if "lignum" in name}
            if modes:
                modes["lignum's faster"] = min(modes.values())
            for mode in modes:
                key = f"{mode}, {model['kind']}, {rows}"
                ratios.setdefault(key, []).append(modes[mode])
    ratio, name, rows = min(nearest)
    texts = {key: between(values) for key, values in ratios.items()}
    texts["own nearest"] = f"{number(ratio)} times ({name}, {rows:,} rows)"
    texts["models"] = str(len(models))
    logs: dict[int, list[float]] = {}
    for model in harness.stored(folder, "sweep")["models"]:
        for rows, cells in by_rows(model).items():
            logs.setdefault(rows, []).append(cells["nvforest"]["ratio"])
    means = [number(geometric_mean(logs[rows])) for rows in (1, 16, 128, 1024)]
    texts["nvforest"] = f"{', '.join(means[:-1])} and {means[-1]}"
    return texts


def compilers(folder: Path) -> dict[str, str]:
    """Return how many times as fast as daal4py deep and wide models are."""
    models = {m["model"]: m for m in harness.stored(folder, "weak")["models"]}
    groups = {
        "deep": (("depth-10", "depth-12", "depth-14"), 512),
        "wide": (("wide-968", "wide-3000"), 64),
    }
    return {
        f"{group}{suffix}": between(
            cells["daal4py"]["seconds"] / cells[ours]["seconds"]
            for name in names
            for rows, cells in by_rows(models[name]).items()
            if rows >= least and "daal4py" in cells
        )
        for group, (names, least) in groups.items()
        for ours, suffix in (("skforge", ""), ("skforge AVX2", ", AVX2"))
    }


def latencies(folder: Path) -> dict[str, str]:
    """Return the 99th percentile of a million calls from C, by the forest's size."""
    return {
        COMPLETE[line["model"]]: duration(line["p99"])
        for run in harness.stored(folder, "latency")
        for line in run["lines"]
        if line["model"] in COMPLETE
        and line["system"] == "C: skforge.export"
        and line["condition"] == "hot"
    }


def sparse(folder: Path) -> dict[str, str]:
    """Return how much faster rows of words in texts are, as CSR matrices."""
    ratios = {
        (c["model"], c["rows"]): c["ratio"]
        for c in harness.stored(folder, "sparse_rows")["cells"]
        if (c["rows_like"], c["form"]) == ("texts", "csr_matrix")
    }
    forest, boosting = "RandomForestClassifier", ("LGBMClassifier", "XGBClassifier")
    return {
        "sparse full, 64": number(ratios[forest, 64]),
        "sparse full, 2048": number(ratios[forest, 2048]),
        "sparse depth 8": number(ratios[f"{forest}, depth 8", 2048]),
        "sparse boosting": between(q for (m, _), q in ratios.items() if m in boosting),
    }


def engines(folder: Path) -> dict[str, str]:
    """Return how many times as many rows a core scores as with the library's own."""
    cells = harness.stored(folder, "distributed")["cells"]
    cpu = {(c["engine"], c["model"], c["system"]): c["cpu"] for c in cells}
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for (engine, model, system), seconds in cpu.items():
        if system == "own":
            ratio = seconds / cpu[engine, model, "skforge"]
            ratios[engine == "dask"].append(ratio)
    return {"dask": between(ratios[True]), "engines": between(ratios[False])}


def exports(folder: Path) -> dict[str, str]:
    """Return the seconds that libraries take to make; tl2cgen's, of XGBoost models."""
    seconds: dict[str, list[float]] = {}
    for line in harness.stored(folder, "export")["lines"]:
        others = line["system"].startswith("tl2cgen") and ".txt" in line["model"]
        if line["made_in"] and not others:
            seconds.setdefault(line["system"], []).append(line["made_in"])
    return {f"{system} made": between(taken) for system, taken in seconds.items()}


def programs(folder: Path) -> dict[str, str]:
    """Return how programs were measured, and how many tests of libraries agree."""
    document = harness.stored(folder, "accelerated")
    facts = document["machine"]
    load = f"load average {facts['load_average']:.0f}"
    tests = harness.stored(folder, "own_tests")["lines"]
    others = harness.stored(folder, "programs_compared")["lines"]
    agree = sum(sum(x["outcomes"].values()) - len(x["differing"]) for x in tests)
    return {
        "program rounds": accelerated.rounds_of(document),
        "program machine": f"{facts['target']}, {load}",
        "compared programs": f"{sum(line['same'] for line in others)}",
        "compared calls": f"{sum(line['kernel_calls'] for line in others):,}",
        "own tests": f"{agree:,}",
        "own calls": f"{sum(line['kernel_calls'] for line in tests):,}",
    }


def program_table(folder: Path) -> list[str]:
    """Return the table of programs that nobody edits."""
    return accelerated.programs_table(harness.stored(folder, "accelerated"))


def by_rows(model: Document) -> dict[int, dict[str, Document]]:
    """Return the timed cells of one thread, by rows and system."""
    found: dict[int, dict[str, Document]] = {}
    for cell in model["cells"]:
        if cell["threads"] == 1 and cell["seconds"]:
            found.setdefault(cell["rows"], {})[cell["system"]] = cell
    return found


def text_table(folder: Path) -> list[str]:
    """Return the table of frames with columns of text."""
    cells = harness.stored(folder, "pipelines")["cells"]
    ratios = {
        (c["case"], c["rows"], c["system"]): c
        for c in cells
        if c["form"] == "pandas frame" and c["seconds"]
    }
    rows = []
    for (case, n, system), ours in ratios.items():
        if system == "skforge" and (case, n, "ONNX Runtime") in ratios:
            if case == NUMBERS_ALONE:
                continue
            others = (ratios[case, n, s] for s in ("scikit-learn", "ONNX Runtime"))
            rows.append(
                [
                    f"{CASES[case]}, {harness.rows_a_call(n)}",
                    duration(ours["seconds"]),
                    *(f"{number(other['ratio'])}×" for other in others),
                ]
            )
    heads = ["a pandas frame", "skforge takes", "scikit-learn takes"]
    return harness.table([*heads, "ONNX Runtime takes"], rows)


def near_table(folder: Path) -> list[str]:
    """Return the table of cells in which another compiler is nearly as fast."""
    rows = []
    pages = (("results", "skforge"), ("weak", "skforge"), ("weak", "skforge AVX2"))
    for page, ours in pages:
        for model in harness.stored(folder, page)["models"]:
            near: dict[str, list[str]] = {}
            sizes: dict[str, list[str]] = {}
            for n, cells in by_rows(model).items():
                others = [c for s, c in cells.items() if not s.startswith("skforge")]
                if not others or ours not in cells:
                    continue
                best = min(others, key=lambda c: c["seconds"])
                ratio = best["ratio"]
                if page == "weak":  # as that page divides
                    ratio = best["seconds"] / cells[ours]["seconds"]
                if ratio < NEAR:
                    text = f"{ratio:.2f}×"
                    text = f"**{text}**" if ratio < 1 else text
                    near.setdefault(best["system"], []).append(text)
                    sizes.setdefault(best["system"], []).append(f"{n:,}")
            for system in near:
                name = NAMES[model["model"]] + VECTORS[ours]
                found = "; ".join(sizes[system]), "; ".join(near[system])
                rows.append([name, *found, system])
    return harness.table(["model", "rows", "skforge is … as fast", "as"], rows, 4)


def start_table(folder: Path) -> list[str]:
    """Return the table of starts: ms to the first row, and MiB beyond NumPy's."""
    starts = started(folder)
    by_name = {(s["model"], s["system"]): s for s in starts}
    rows = [["NumPy alone"], *([name] for name in STARTS.values())]
    for model in STARTED:
        numpy = [s["seconds"]["numpy"] for s in starts if s["model"] == model]
        rows[0].append(f"{1000 * median(numpy):.0f}")
        own = next(s for m, s in by_name if m == model and s in LIBRARIES)
        for row, system in zip(rows[1:], STARTS, strict=True):
            start = by_name.get((model, system or own))
            row.append(
                f"{1000 * start['seconds']['total']:,.0f}, "
                f"{start['bytes']['rss'] / 2**20:.0f} MiB"
                if start
                else "–"
            )
    return harness.table(["", *STARTED.values()], rows)


def export_table(folder: Path) -> list[str]:
    """Return the table of exported libraries: the first model, and others after it."""
    lines = harness.stored(folder, "export")["lines"]
    models = [*dict.fromkeys(line["model"] for line in lines)]
    by_name = {(line["system"], line["model"]): line for line in lines}
    rows = []
    for system, name in EXPORTED.items():
        found = [by_name[system, model] for model in models]
        row = [name]
        for n in ("1", "64", "4096"):
            first, *others = (
                short_number(1e6 * line["seconds"][n]) if n in line["seconds"] else ""
                for line in found
            )
            row.append(f"{first} ({'; '.join(filter(None, others))})".strip())
        bits = {"same bits": "the same"}
        first, *others = (
            bits.get(line["answers"], "others") if line["seconds"] else ""
            for line in found
        )
        row.append(f"{first} ({'; '.join(filter(None, others))})".strip())
        if {line["answers"] for line in found} == {*bits}:
            row[-1] = "the library's bits"
        rows.append(row)
    heads = ["µs", *(harness.rows_a_call(n) for n in (1, 64, 4096)), "answers"]
    return harness.table(heads, rows, kinds="tnnnt")


def gpu_table(folder: Path) -> list[str]:
    """Return the geometric means of the page of times on a GPU."""
    text = (folder / "gpu.md").read_text(encoding="utf-8")
    rows: list[list[str]] = []
    sizes: list[str] = []
    for title, name in GPU_TABLES.items():
        _, section = text.split(f"\n## {title}\n")
        heads = re.search(r"^\| model \| (.+) \|$", section, re.MULTILINE)
        means = re.search(r"^\| \*\*geomean\*\* \| (.+) \|$", section, re.MULTILINE)
        if heads is None or means is None:
            raise ValueError(f"gpu.md has no means below {title!r}")
        sizes = heads[1].split(" | ")
        found = [float(cell.strip("*")) for cell in means[1].split(" | ")]
        rows.append([name, *map(number, found)])
    head = "times as long as skforge, geometric mean"
    return harness.table([head, *sizes], rows)


#: Pages with tables between marks, and what writes these.
TABLES: dict[str, dict[str, Callable[[Path], list[str]]]] = {
    "docs/when_not.md": {"texts": text_table, "near": near_table},
    "docs/serving.md": {"starts": start_table},
    "docs/without_changing_a_line.md": {"programs": program_table},
    "docs/gpu.md": {"gpu": gpu_table},
    "docs/export.md": {"exported": export_table},
}


def with_figures(name: str, page: str, folder: Path = RESULTS) -> str:
    """Return the page of a name with the figures of the results."""
    texts = figures(folder)
    for template in SENTENCES.get(name, ()):
        page = rewritten(page, template, texts)
    for mark, write in TABLES.get(name, {}).items():
        lines = "\n".join(write(folder))
        page = harness.between(page, mark, f"{lines}\n")
    return page


def main() -> None:
    for name in {**SENTENCES, **TABLES}:
        page = (ROOT / name).read_text(encoding="utf-8")
        text = with_figures(name, page)
        (ROOT / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
