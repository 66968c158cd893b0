"""The same bits from exported code of every layout on Arm CPUs that qemu plays."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skforge.compiler.target import Target
from skforge.exceptions import SkforgeError
from skforge.exporters.contents import Library
from skforge.exporters.library import export_object, outputs_of
from skforge.schedule import families
from tests.exactness.checks import assert_same_bits, expected
from tests.exactness.forests import forest

GCC, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64"
BATCHES = (1, 3, 65, 1000)
SCHEDULES = {
    "lanes": families.lanes_schedule(),
    "bits of 64": families.bitsliced_schedule(64),
    "bits of 128": families.bitsliced_schedule(128),
    "tiles": families.tiled_schedule(256, 7),
    "larger tiles": families.tiled_schedule(256, 15),
    "tiles of a row": families.tiled_row_schedule(7),
    "values": families.tiled_schedule(64, 7, codes=False),
    "pieces": families.pieces_schedule(64),
    "rows": families.row_blocks(64).interleave("b1", 8),
}
_SVE = "+fp-armv8,+neon,+lse,+sve"
#: LLVM's names and features, and what qemu plays: vectors of SVE of 128 to 512 bits.
CPUS = {
    "generic": ("+fp-armv8,+neon", ["cortex-a53"]),
    "neoverse-n1": ("+fp-armv8,+neon,+lse,-sve", ["neoverse-n1"]),
    "neoverse-v1": (_SVE, ["max,sve-max-vq=2", "max,sve-max-vq=4"]),
    "neoverse-v2": (f"{_SVE},+sve2", ["max,sve-max-vq=1", "max,sve-max-vq=4"]),
}
_PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
{declared}
int main(void) {{
  const long batches[] = {{{batches}}};
  FILE *out = fopen("out", "wb");
  for (int k = 0; k < {count}; k++) for (int i = 0; i < 4; i++) {{
    const long n = batches[i];
    void *model, *rows = malloc(n * {row}), *raw = malloc(n * {answer});
    FILE *in = fopen("rows", "rb");
    int status = 1;
    if (fread(rows, {row}, n, in) != (size_t)n) return 2;
    switch (k) {{ {calls} }}
    if (status || fwrite(raw, {answer}, n, out) != (size_t)n) return 3;
    free(rows), free(raw), fclose(in);
  }}
  return fclose(out);
}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "name",
    ["scalar", "deep", "multiclass", "any missing", "categories", "double extremes"],
)
def test_every_layout(tmp_path: Path, name: str, cpu: str) -> None:
    if not (shutil.which(GCC) and shutil.which(QEMU)):
        pytest.skip(f"there is no {GCC}, or no {QEMU}")
    features, played = CPUS[cpu]
    target = replace(Target.aarch64(), cpu=cpu, features=features)
    made, (rows, raw, _) = forest(name), expected(name)
    suffix, layouts, declared, calls = f"f{8 * rows.itemsize}", [], [], []
    for layout, schedule in SCHEDULES.items():
        own = f"m{len(layouts)}"
        table = {(1, None): schedule}
        try:
            whole = Library(own, made, *outputs_of(made), apply=False)
            _, binary = export_object(whole, [target], [table])
        except SkforgeError:  # the forest does not allow it
            continue
        (tmp_path / f"{own}.o").write_bytes(binary)
        predict = f"{own}_predict_raw_{suffix}"
        declared.append(
            f"int {own}_open(int32_t, void **); int {predict}(void *, const void *, "
            "int64_t, int64_t, int32_t, void *);"
        )
        calls.append(
            f"case {len(layouts)}: if (!{own}_open(1, &model)) status = "
            f"{predict}(model, rows, n, {made.n_features}, 1, raw); break;"
        )
        layouts.append(layout)
    assert len(layouts) > 3
    text = _PROGRAM.format(
        declared="\n".join(declared),
        batches=", ".join(map(str, BATCHES)),
        count=len(layouts),
        row=made.n_features * rows.itemsize,
        answer=made.n_outputs * raw.itemsize,
        calls="\n".join(calls),
    )
    (tmp_path / "main.c").write_text(text)
    (tmp_path / "rows").write_bytes(np.ascontiguousarray(rows).tobytes())
    objects = [f"m{k}.o" for k in range(len(layouts))]
    build = [GCC, "-static", "-o", "main", "main.c", *objects, "-lm", "-lpthread"]
    subprocess.run(build, cwd=tmp_path, check=True)
    for emulated in played:
        subprocess.run([QEMU, "-cpu", emulated, "./main"], cwd=tmp_path, check=True)
        found = np.fromfile(tmp_path / "out", raw.dtype).reshape(-1, made.n_outputs)
        ends = np.cumsum(BATCHES * len(layouts))[:-1]
        cases = [(layout, n) for layout in layouts for n in BATCHES]
        for (layout, n), part in zip(cases, np.split(found, ends), strict=True):
            assert_same_bits(part, raw[:n], (name, emulated, layout, n))
