"""What engines.py measured, as Markdown: a table of engines, and one of sizes."""

from __future__ import annotations

from harness import Document, paragraphs, table
from machine import in_words

NETWORKS = (10, 25, 100)  # Gbit/s


def page(result: Document) -> str:
    parts = [
        "# Predictions inside Dask, Spark and Ray",
        f"The data are {result['features']} float32 columns in the memory of a local "
        "cluster of two processes with one core each. The models have 100 trees "
        "(XGBoost: depth 6, LightGBM: 31 leaves); their raw scores are summed up. All "
        "answers were compared first and are equal bit for bit. Times are medians over "
        "rounds in which all systems take turns. Ray's times contain the start of two "
        "actors, which Ray starts for every run.",
        "| word | meaning |\n|---|---|\n"
        "| own | the library's own predict on one thread, called by the engine's usual "
        "means (`map_blocks`, a pandas UDF, `map_batches`) |\n"
        "| nothing | a function that returns a column: what the engine itself costs |\n"
        "| CPU | CPU time of the driver and the whole cluster |\n"
        "| beyond the engine | CPU time less that of *nothing* |\n"
        "| by skforge | the time divided by that of skforge |",
        in_words(result["machine"]),
    ]
    heads = ["engine", "model", "rows", "rounds", "system", "wall, rows/s"]
    heads += ["CPU, µs a row", "beyond the engine", "by skforge"]
    rows = []
    for engine, model in sorted({(c["engine"], c["model"]) for c in result["cells"]}):
        cells = {
            c["system"]: c
            for c in result["cells"]
            if (c["engine"], c["model"]) == (engine, model)
        }
        for system, cell in cells.items():
            n_rows = cell["rows"]
            beyond = (cell["cpu"] - cells["nothing"]["cpu"]) / n_rows * 1e6
            ratio = ""
            if system not in ("skforge", "nothing"):
                ours = cells["skforge"]
                ratio = (
                    f"wall {cell['wall'] / ours['wall']:.2f}×, "
                    f"CPU {cell['cpu'] / ours['cpu']:.2f}×"
                )
            rows.append(
                [
                    *(engine, model, f"{n_rows:,}", len(cell["samples"]["wall"])),
                    *(system, f"{n_rows / cell['wall']:,.0f}"),
                    f"{cell['cpu'] / n_rows * 1e6:.2f}",
                    *("–" if system == "nothing" else f"{beyond:.2f}", ratio),
                ]
            )
    single = [
        f"- {model}: skforge {one['skforge'] * 1e6:.3f}, own {one['own'] * 1e6:.3f} "
        f"({one['own'] / one['skforge']:.1f}×)"
        for model, one in result["alone"].items()
    ]
    words = "CPU µs a row without an engine, in blocks of 16,384 rows:"
    cells = table(heads, rows, kinds="ttnntnnnn")
    return paragraphs(*parts, cells, words, single)


def sizing(result: Document) -> str:
    """Return rows a second and core, and what a billion rows need."""
    price = result["price"]
    n_bytes = 4 * result["features"] + 8
    lines = [
        in_words(result["machine"]) + "\n",
        f"{result['features']} float32 columns in, one float64 out: {n_bytes} bytes a "
        f"row. Price: {price:.2f} a core-hour.\n",
    ]
    heads = ["where", "model", "system", "rows/s and core"]
    heads += [f"cores that fill {n} Gbit/s" for n in NETWORKS]
    rows = []
    for where, model, system, seconds in _costs(result):
        rate = 1 / seconds
        cores = [f"{n * 1e9 / 8 / n_bytes / rate:,.1f}" for n in NETWORKS]
        hours = seconds * 1e9 / 3600
        rows.append([where, model, system, f"{rate:,.0f}", *cores])
        rows[-1] += [f"{hours:,.3f}", f"{hours * price:,.4f}"]
    lines += table([*heads, "core-hours, 10⁹ rows", "cost"], rows, texts=3)
    return "\n".join(lines) + "\n"


def _costs(result: Document) -> list[tuple[str, str, str, float]]:
    """Return CPU seconds a row, without an engine and inside each."""
    found = [
        ("no engine", model, system, seconds)
        for model, single in result["alone"].items()
        for system, seconds in single.items()
    ]
    for cell in result["cells"]:
        if cell["system"] != "nothing":
            seconds = cell["cpu"] / cell["rows"]
            found.append((cell["engine"], cell["model"], cell["system"], seconds))
    return found
