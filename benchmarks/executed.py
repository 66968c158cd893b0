"""Instructions that a model's exported code executes, counted by valgrind.

The code is that of ``skforge.export`` for x86-64-v3, which valgrind can run, in a small
program of C: only the call that predicts is counted, the same number in every run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

LEVEL = "x86-64-v3"

_PROGRAM = """\
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

int main(int argc, char **argv) {
  long n = atol(argv[1]);
  size_t size = (size_t)n * MODEL_N_FEATURES * sizeof(VALUE);
  VALUE *rows = malloc(size);
  void *out = malloc((size_t)n * OUTPUTS * sizeof(double));
  model_model *model;
  FILE *file = fopen(argv[2], "rb");
  if (!file || fread(rows, 1, size, file) != size) return 2;
  if (model_open(1, &model)) return 3;
  return model_predict_raw_SUFFIX(model, rows, n, MODEL_N_FEATURES, 1, out);
}
"""
_COUNTED = re.compile(r"Collected\s*:\s*(\d+)")


def executed(forest: Any, rows: Any) -> int:
    """Return the instructions of one prediction of C-contiguous rows, of their dtype.

    Raises RuntimeError if valgrind or gcc is not here, or the program does not run.
    """
    import skforge

    for tool in ("valgrind", "gcc"):
        if shutil.which(tool) is None:
            raise RuntimeError(f"{tool} is not installed")
    suffix = {4: "f32", 8: "f64"}[rows.itemsize]
    words = {
        "VALUE": "float" if suffix == "f32" else "double",
        "SUFFIX": suffix,
        "OUTPUTS": str(forest.n_outputs),
    }
    program = re.sub("|".join(words), lambda found: words[found[0]], _PROGRAM)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = skforge.export(forest, folder / "model", target=LEVEL)
        (folder / "count.c").write_text(program)
        (folder / "rows").write_bytes(rows.tobytes())
        built = ["-o", "count", "-I", made, "count.c", made / "model.o", "-lm"]
        _run(["gcc", "-O1", *built], folder)
        text = _run(
            [
                *("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"),
                f"--toggle-collect=model_predict_raw_{suffix}",
                *("./count", str(len(rows)), "rows"),
            ],
            folder,
        )
    counted = _COUNTED.search(text)
    if counted is None:
        raise RuntimeError("valgrind counted nothing")
    return int(counted[1])


def _run(command: list[Any], folder: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        said = next((line for line in lines if "error" in line), "")
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {said}")
    return done.stderr
