"""Exported C under sanitizers: no bad access, no undefined behaviour, no race.

``kind="c"`` is compiled by gcc or clang with AddressSanitizer and
UndefinedBehaviorSanitizer, and again with ThreadSanitizer and several threads that
predict at once. Rows are random, and at the edges: thresholds and their neighbours,
NaN, infinities, denormal and huge numbers. Every bit is compared.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import skforge
from skforge.exporters.check import expected
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, reference_leaves
from tests.export_tools import C_TYPES, COMPILER, metadata
from tests.kinds import MODELS
from tests.reliability.rows import Row

FLAGS = {
    "address,undefined": ("-fsanitize=address,undefined,float-cast-overflow",),
    "thread": ("-fsanitize=thread",),
}
#: Kinds of models, as ``tests/kinds.py`` names them.
KINDS = (
    *("xgboost of three", "xgboost, missing", "lightgbm of categories as numbers"),
    *("forest of three", "isolation", "gb of names"),
)
_COMMON = ("-g", "-O1", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")

#: Each thread asks for slices of its own of exactly as many bytes as it needs, so that
#: a byte too far is a byte of nobody; what it gets is compared with what is wanted.
_DRIVER = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "{name}.h"
enum {{ N = {n}, WIDTH = {width}, COLUMNS = {columns}, THREADS = {threads} }};
static {given} all[(size_t)N * WIDTH];
static {out} wanted[(size_t)N * COLUMNS];
static {name}_model *model;
static long compared;
static void *work(void *arg) {{
  long seed = (long)arg, done = 0;
  for (int k = 0; k < {calls}; k++) {{
    size_t n = 1 + (size_t)((k * 37 + seed * 101) % 97), gap = (size_t)(k % 3);
    size_t from = (size_t)(k * 53 + seed * 17) % N;
    if (n > N - from) n = N - from;
    int turned = k % 5 == 4;  /* columns without gaps, not rows */
    size_t row = turned ? 1 : WIDTH + gap, column = turned ? n + gap : 1;
    size_t size = (n - 1) * row + (WIDTH - 1) * column + 1;
    {given} *rows = malloc(size * sizeof *rows);
    {out} *out = malloc(n * COLUMNS * sizeof *out);
    for (size_t r = 0; r < n; r++)
      for (size_t c = 0; c < WIDTH; c++)
        rows[r * row + c * column] = all[(from + r) * WIDTH + c];
    if ({name}_{function}(model, rows, (int64_t)n, (int64_t)row, (int64_t)column, out))
      return (void *)1;
    if (memcmp(out, wanted + from * COLUMNS, n * COLUMNS * sizeof *out))
      return (void *)2;
    free(rows);
    free(out);
    done += (long)n;
  }}
  __atomic_fetch_add(&compared, done, __ATOMIC_RELAXED);
  return 0;
}}
int main(void) {{
  FILE *a = fopen("rows.bin", "rb"), *b = fopen("wanted.bin", "rb");
  if (fread(all, sizeof *all, (size_t)N * WIDTH, a) != (size_t)N * WIDTH) return 3;
  if (fread(wanted, sizeof *wanted, (size_t)N * COLUMNS, b) != (size_t)N * COLUMNS)
    return 4;
  fclose(a);
  fclose(b);
  if ({name}_open(THREADS, &model)) return 5;
  pthread_t threads[THREADS];
  long bad = 0;
  for (long k = 0; k < THREADS; k++) pthread_create(&threads[k], 0, work, (void *)k);
  for (int k = 0; k < THREADS; k++) {{
    void *said;
    pthread_join(threads[k], &said);
    bad |= (long)said;
  }}
  {name}_close(model);
  printf("%ld\\n", compared);
  return (int)bad;
}}
"""


def run(
    folder: Path, n_rows: int, calls: int, names: tuple[str, ...] = ()
) -> list[Row]:
    """Try the models (all, unless names are given) under both kinds of sanitizers."""
    made = []
    for kind, flags in FLAGS.items():
        threads = 4 if kind == "thread" else 1
        said = f"{threads} threads at once" if threads > 1 else "one thread"
        row = Row("sanitizers", f"exported C, {kind}, {said}")
        made.append(row)
        if COMPILER is None or not _works(COMPILER, flags, folder):
            row.left_out = "there is no compiler with this sanitizer"
            continue
        compared = 0
        for name in names or KINDS:
            forest = skforge.load_forest(MODELS[name].fitted())
            for what, count in _try(
                COMPILER, flags, folder, forest, n_rows, calls, threads
            ):
                row.count(count >= 0, f"{name}: {what}")
                compared += max(count, 0)
        row.notes = f"functions of models, {compared:,} rows compared bit by bit"
    return made


def _works(compiler: str, flags: tuple[str, ...], folder: Path) -> bool:
    (folder / "try.c").write_text("int main(void) { return 0; }")
    command = [compiler, *flags, "-o", "try", "try.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return done.returncode == 0 and not _execute(folder / "try")[0]


def _execute(program: Path) -> tuple[int, str, str]:
    # ThreadSanitizer does not find its place in memory on kernels that move it far.
    setarch = ["setarch", "-R"] if shutil.which("setarch") else []
    done = subprocess.run(
        [*setarch, str(program)],
        cwd=program.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.returncode, done.stdout, done.stderr


def _try(
    compiler: str,
    flags: tuple[str, ...],
    folder: Path,
    forest: Forest,
    n_rows: int,
    calls: int,
    threads: int,
) -> list[tuple[str, int]]:
    """Return for each function what went wrong, and rows compared or -1."""
    place = folder / "exported"
    skforge.export(forest, place, "c", name="tiny", apply=True, overwrite=True)
    facts = metadata(place)
    module = skforge.compile_forest(forest)
    found = []
    for function, result in facts["functions"].items():
        for dtype in ("float32", "float64"):
            with np.errstate(over="ignore"):
                rows = edge_rows(forest, n_rows).astype(dtype)
            leaves = reference_leaves(forest, rows)
            wanted = expected(forest, function, module.predict_raw(rows), leaves)
            rows.tofile(place / "rows.bin")
            np.ascontiguousarray(wanted).tofile(place / "wanted.bin")
            symbol = f"{function}_f{dtype[-2:]}"
            text = _DRIVER.format(
                name="tiny",
                function=symbol,
                n=n_rows,
                width=forest.n_features,
                columns=result["columns"],
                given=C_TYPES[dtype],
                out=C_TYPES[result["dtype"]],
                calls=calls,
                threads=threads,
            )
            (place / "driver.c").write_text(text)
            command = [compiler, "-std=gnu11", *_COMMON, *flags, "-pthread"]
            command += ["-o", "driver", "driver.c", facts["library"], "-lm"]
            built = subprocess.run(
                command, cwd=place, capture_output=True, text=True, check=False
            )
            if built.returncode:
                found.append((f"{symbol} is not built: {built.stderr[:300]}", -1))
                continue
            code, out, err = _execute(place / "driver")
            if code:
                why = next((x for x in err.splitlines() if "Sanitizer" in x), err)
                why = why or "wrong bits"
                found.append(
                    (f"{symbol} ended with {code}: {' '.join(why.split())[:200]}", -1)
                )
            else:
                found.append((symbol, int(out)))
    return found


def edge_rows(forest: Forest, n: int) -> Any:
    """Return rows drawn around thresholds, and every sixth at the edges of its type."""
    rows = draw_rows(forest, n, 0, 0.05).astype(np.float64)
    random = np.random.default_rng(1)
    edges = np.array(
        [
            *(0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1e-320, 3.4e38),
            *(-3.4e38, 1.7e308, 2.0**31, 2.0**32, -(2.0**63), 2.0**24 + 1, 0.5),
            *(-0.999, 33.0),
        ]
    )
    extreme = random.choice(edges, (len(rows[::6]), rows.shape[1]))
    rows[::6] = np.where(random.random(extreme.shape) < 0.5, extreme, rows[::6])
    with np.errstate(over="ignore"):
        return rows.astype(forest.input_dtype)
