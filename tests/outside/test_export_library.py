"""Exported libraries as C programs see them: handles, memory, threads, compilers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skforge
from skforge.forest.reference import draw_rows
from tests.export_tools import (
    COMPILER,
    compare,
    expected,
    exported,
    metadata,
    needs_compiler,
    run,
    small_forest,
)

DOCS = Path(__file__).parents[2] / "docs"

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="as Linux does it")


@pytest.fixture(scope="module")
def forest() -> Any:
    return small_forest()


def build(folder: Path, text: str, *flags: str) -> None:
    """Build the program ``main`` from C text and the export in a folder."""
    (folder / "main.c").write_text(text)
    command = [COMPILER or "cc", "-O1", *flags, "-o", "main", "main.c"]
    run([*command, metadata(folder)["library"], "-lm"], folder)


# ------------------------------------------------------------ what it needs


@needs_compiler
@on_linux
def test_it_needs_the_c_library_only(tmp_path: Path) -> None:
    for tool in ("nm", "readelf"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}")
    folder = exported(tmp_path)
    text = run(["nm", "-u", "tiny.o"], folder)
    assert set(text.split()) - {"U"} == {"aligned_alloc", "free", "memset"}
    text = run(["nm", "-g", "--defined-only", "tiny.o"], folder)
    assert {line.split()[-1][:5] for line in text.splitlines()} == {"tiny_"}
    folder = exported(tmp_path / "shared", "shared")
    text = run(["nm", "-D", "--defined-only", "libtiny.so"], folder)
    symbols = {line.split()[-1] for line in text.splitlines()}
    header = (folder / "tiny.h").read_text()
    assert symbols == set(re.findall(r"\b(tiny_\w+)\(", header))
    text = run(["readelf", "-d", "libtiny.so"], folder)
    needed = re.findall(r"NEEDED.*\[(.*)\]", text)
    assert not needed
    assert b"GLIBC" not in (folder / "libtiny.so").read_bytes()
    stack = [
        line
        for line in run(["readelf", "-lW", "libtiny.so"], folder).splitlines()
        if "GNU_STACK" in line
    ]
    assert "RWE" not in stack[0]


# ------------------------------------------------------------ compilers


@needs_compiler
def test_the_example_prints_predictions(forest: Any, tmp_path: Path) -> None:
    folder = exported(tmp_path)
    assert len((folder / "example.c").read_text().splitlines()) < 120
    rows = draw_rows(forest, 20, 3, 0.1)
    given = "\n".join(" ".join(repr(float(v)) for v in row) for row in rows)
    strict = ["-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    compilers = [c for c in (COMPILER, shutil.which("clang")) if c]
    for compiler in dict.fromkeys(compilers):
        for standard in ("c99", "c11"):
            flags = [f"-std={standard}", *strict, "-o", "example", "example.c"]
            run([compiler, *flags, "tiny.o", "-lm"], folder)
            text = run(["./example"], folder, input=given)
            found = np.array(text.split(), np.float64).astype(np.float32)
            np.testing.assert_array_equal(found, expected(forest, "predict", rows))


@needs_compiler
def test_the_example_reads_files_of_comma_separated_values(
    forest: Any, tmp_path: Path
) -> None:
    folder = exported(tmp_path)
    flags = ["-std=c99", "-o", "example", "example.c"]
    run([str(COMPILER), *flags, "tiny.o", "-lm"], folder)
    rows = draw_rows(forest, 20, 3, 0.1)
    rows[3], rows[4, -1] = np.nan, np.nan  # a line of commas, and one that ends in one
    lines = [",".join("" if v != v else repr(float(v)) for v in row) for row in rows]
    names = ",".join(f'"column {i}"' for i in range(rows.shape[1]))
    wanted = expected(forest, "predict", rows)
    for text in (
        "\n".join(lines) + "\n",
        "\n".join([names, *lines]),
        "\ufeff" + "\r\n".join(lines) + "\r\n\r\n",
        "\n".join(line.replace(",", ", ") for line in lines),
    ):
        found = run(["./example"], folder, input=text).split()
        np.testing.assert_array_equal(np.array(found, np.float64), wanted)
    for wrong in (lines[0] + ",1", lines[0].rpartition(",")[0], lines[0] + "x", "a"):
        text = "\n".join([lines[1], "", wrong, *lines])
        result = subprocess.run(
            ["./example"], cwd=folder, input=text, text=True, capture_output=True
        )
        assert result.returncode == 1
        n = rows.shape[1]
        assert result.stderr == f"line 3 does not have {n} numbers\n"
        assert float(result.stdout) == wanted[1]  # of the line before


@pytest.mark.sampled(3)
@needs_compiler
@pytest.mark.parametrize("kind", ["object", "shared", "c"])
@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_the_example_checks_a_library(
    forest: Any, tmp_path: Path, kind: str, reduction: str
) -> None:
    if kind == "c" and reduction == "fast":
        pytest.skip("portable C sums in the source's order")
    module = skforge.compile_forest(forest, reduction=reduction)
    folder = skforge.export(module, tmp_path / "tiny", kind)
    facts = metadata(folder)
    linked = facts["library"]
    if kind == "shared":
        linked = "-L. -ltiny -Wl,-rpath,."
    strict = ["-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    command = [str(COMPILER), "-std=c99", *strict, "-o", "example", "example.c"]
    run([*command, *linked.split(), "-lm"], folder)

    def check(text: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["./example", "--check"],
            cwd=folder,
            input=text,
            text=True,
            capture_output=True,
        )
        return done.returncode, done.stdout, done.stderr

    text = (folder / "check.csv").read_text()
    assert check(text) == (0, "0 of 100 rows differ\n", "")
    names, *lines = text.splitlines()
    listed = [name.partition(" ")[0] for name in names.split(",")][forest.n_features :]
    results = [name for name in facts["functions"] if name not in facts["left_out"]]
    assert sorted({*listed}) == (
        ["predict_raw"] if reduction == "fast" else sorted(results)
    )
    cells = lines[4].split(",")
    for column in range(forest.n_features, len(cells)):
        value = float(cells[column])
        other = value + 1 if value.is_integer() else value * (1 + 1e-4)
        if column == forest.n_features and reduction == "exact":  # the next float
            other = float(np.nextafter(np.float32(value), np.float32(np.inf)))
        changed = [*cells[:column], repr(other), *cells[column + 1 :]]
        wrong = "\n".join([names, *lines[:4], ",".join(changed), *lines[5:]])
        code, out, error = check(wrong)
        assert (code, out) == (1, "1 of 100 rows differ\n")
        function = listed[column - forest.n_features]
        said = f"{function} returns {value:.17g}, and the model {other:.17g}"
        assert error.startswith(said)
    code, out, error = check("\n".join([names, lines[0] + ",3"]))
    assert (code, out) == (1, "")
    assert error == f"line 2 does not have {len(cells)} numbers\n"
    assert check(names)[:2] == (1, "0 of 0 rows differ\n")


@needs_compiler
@pytest.mark.parametrize("kind", ["object", "c"])
def test_the_header_is_cpp(forest: Any, tmp_path: Path, kind: str) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = exported(tmp_path, kind)
    if kind == "c":
        flags = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
        run([COMPILER or "cc", *flags, "-c", "tiny.c"], folder)
    (folder / "main.cpp").write_text(
        '#include "tiny.h"\n#include <cstdio>\n#include <vector>\n'
        "int main() {\n"
        "  std::vector<double> rows(3 * TINY_N_FEATURES), out(3);\n"
        "  std::vector<float> raw(3);\n"
        "  tiny_model *model = nullptr;\n"
        "  int code = tiny_open(1, &model);\n"
        "  if (!code) code = tiny_predict_raw_f64(model, rows.data(), 3,\n"
        "                                         TINY_N_FEATURES, 1, raw.data());\n"
        '  std::printf("%.9g", static_cast<double>(raw[2]));\n'
        "  tiny_close(model);\n  return code;\n}\n"
    )
    flags = ["-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-o", "main"]
    run([compiler, *flags, "main.cpp", "tiny.o", "-lm"], folder)
    wanted = expected(forest, "predict_raw", np.zeros((1, 6), np.float32))
    assert np.float32(run(["./main"], folder)) == wanted.item()


@pytest.fixture(scope="module")
def price(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    xgboost = pytest.importorskip("xgboost")
    X = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)
    model = xgboost.XGBRegressor(n_estimators=9, max_depth=4, n_jobs=1)
    forest = skforge.load_forest(model.fit(X, X.sum(axis=1)))
    folder = tmp_path_factory.mktemp("docs") / "price"
    skforge.export(forest, folder, "shared")
    skforge.export(forest, folder.with_name("object"), name="price")
    return folder, forest


@needs_compiler
@pytest.mark.parametrize("language", ["c", "rust", "go"])
def test_programs_of_the_documentation(
    price: tuple[Path, Any], language: str, tmp_path: Path
) -> None:
    folder, forest = price
    folder = Path(shutil.copytree(folder, tmp_path / "price"))
    shutil.copy(price[0].with_name("object") / "price.o", folder)
    page = DOCS / ("export.md" if language == "c" else "appendix/rust_and_go.md")
    texts = re.findall(r"```(\w+)\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    programs = [text for tag, text in texts if tag == language]
    if language == "c":
        build(folder, programs[0], "-std=c11", "-Wall", "-Wextra", "-Werror")
    elif language == "rust":
        if shutil.which("rustc") is None:
            pytest.skip("there is no rustc")
        (folder / "main.rs").write_text(programs[0])
        flags = ["-D", "warnings", "-C", "link-arg=price.o", "-C", "link-arg=-lm"]
        run(["rustc", "-o", "main", *flags, "main.rs"], folder)
    else:
        if shutil.which("go") is None:
            pytest.skip("there is no go")
        (folder / "main.go").write_text(programs[0])
        (folder / "example.c").unlink()
        (folder / "go.mod").write_text("module main\n\ngo 1.18\n")
        env = {**os.environ, "GOCACHE": str(folder / "cache"), "CGO_ENABLED": "1"}
        run(["go", "build", "-o", "main", "."], folder, env=env)
    said = run(["./main"], folder, env={"LD_LIBRARY_PATH": str(folder)}).split()
    rows = np.array([[0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]], np.float32)
    wanted = skforge.compile_forest(forest).predict(rows).reshape(-1)
    np.testing.assert_array_equal(np.array(said, np.float32), wanted.astype(np.float32))


# ------------------------------------------------------------ handles and memory


@needs_compiler
@pytest.mark.parametrize("kind", ["object", "c"])
def test_the_header_names_the_columns(forest: Any, tmp_path: Path, kind: str) -> None:
    names = ("age", "income/*", "*/ #error", 'a "b"\\', "späte\n", "x")
    named = replace(forest, feature_names=names)
    folder = skforge.export(named, tmp_path / "tiny", kind)
    text = (folder / "tiny.h").read_text("utf-8")
    assert (
        "/* The columns of a row:\n"
        ' *   0 "age"\n'
        ' *   1 "income/ *"\n'
        ' *   2 "* / #error"\n'
        ' *   3 "a \\"b\\"\\\\"\n'
        ' *   4 "sp\\u00e4te\\n"\n'
        ' *   5 "x"\n'
        " */\n"
    ) in text
    build(folder, '#include "tiny.h"\nint main(void) { return 0; }', "-Wall", "-Werror")


@needs_compiler
@pytest.mark.parametrize("kind", ["object", "c"])
def test_arguments(forest: Any, tmp_path: Path, kind: str) -> None:
    folder = exported(tmp_path, kind)
    build(folder, _ARGUMENTS)
    said = run(["./main"], folder).split()
    assert said == [forest.content_hash(), skforge.__version__]


_ARGUMENTS = """
#include <stdio.h>
#include <string.h>
#include "tiny.h"
int main(void) {
  float x[6] = {0}, y;
  tiny_model *m = (tiny_model *)x;
  if (tiny_open(1, 0) != TINY_ERROR_NULL) return 1;
  if (tiny_open(-1, &m) != TINY_ERROR_COUNT || m) return 2;
  if (tiny_predict_raw_f32(m, x, 1, 6, 1, &y) != TINY_ERROR_NULL) return 3;
  if (tiny_variant(m) != -1 || !tiny_select(m, 0)) return 4;
  tiny_close(m);
  if (tiny_open(0, &m) != TINY_OK) return 5;
  if (tiny_predict_raw_f32(m, 0, 1, 6, 1, &y) != TINY_ERROR_NULL) return 6;
  if (tiny_predict_raw_f32(m, x, 1, 6, 1, 0) != TINY_ERROR_NULL) return 7;
  if (tiny_predict_raw_f32(m, x, -1, 6, 1, &y) != TINY_ERROR_COUNT) return 8;
  if (tiny_predict_raw_f32(m, 0, 0, 6, 1, 0) != TINY_OK) return 9;
  if (tiny_select(m, 9) != TINY_ERROR_CPU || tiny_variant(m)) return 10;
  if (tiny_select(m, -1) != TINY_ERROR_CPU) return 11;
  if (strcmp(tiny_error(77), "unknown")) return 12;
  if (strcmp(tiny_variant_name(9), "unknown")) return 14;
  if (!strcmp(tiny_variant_name(tiny_variant(m)), "unknown")) return 15;
  if (strcmp(tiny_error(TINY_ERROR_MEMORY), "out of memory")) return 13;
  puts(tiny_checksum());
  puts(tiny_version());
  tiny_close(m);
  return 0;
}
"""


#: What programs read before they work.
_ROWS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tiny.h"
static double rows[700 * 6];
static float wanted[700 * 2];
static int read_rows(void) {
  FILE *a = fopen("rows.bin", "rb"), *b = fopen("wanted.bin", "rb");
  return fread(rows, 8, 700 * 6, a) == 700 * 6 && fread(wanted, 4, 700 * 2, b) == 1400;
}
"""


def run_on_rows(forest: Any, folder: Path, program: str, *flags: str) -> None:
    """Build and run a program that compares probabilities of 700 rows."""
    rows = draw_rows(forest, 700, 8, 0.1)
    rows.astype(np.float64).tofile(folder / "rows.bin")
    expected(forest, "predict_proba", rows).tofile(folder / "wanted.bin")
    build(folder, _ROWS + program, *flags)
    run(["./main"], folder, timeout=120)


@needs_compiler
@on_linux
def test_calls_allocate_nothing_and_survive_without_memory(
    forest: Any, tmp_path: Path
) -> None:
    run_on_rows(forest, exported(tmp_path), _MEMORY)


#: The program's own functions take the place of the C library's.
_MEMORY = """
static int taken, none;
void *aligned_alloc(size_t align, size_t size) {
  void *at;
  if (none) return 0;
  taken++;
  return posix_memalign(&at, align, size) ? 0 : at;
}
static float out[700 * 2], one[700];
static int32_t leaves[700 * TINY_APPLY_COLUMNS];
static float given[700 * TINY_PREDICT_CONTRIBS_COLUMNS];
static int all(tiny_model *m, int n) {
  int code = 0;
  memset(out, 0, sizeof out);
  code |= tiny_predict_proba_f64(m, rows, n, 6, 1, out);
  if (!code && memcmp(out, wanted, n * 2 * sizeof *out)) return 99;
  code |= tiny_predict_raw_f64(m, rows, n, 1, 700, one);
  code |= tiny_predict_raw_f32(m, (float *)rows, n, 6, 1, one);
  code |= tiny_apply_f64(m, rows, n, 6, 1, leaves);
  code |= tiny_predict_contribs_f64(m, rows, n, 6, 1, given);
  return code;
}
int main(void) {
  tiny_model *m, *small;
  if (!read_rows()) return 1;
  none = 1;
  if (tiny_open(2, &m) != TINY_ERROR_MEMORY || m) return 3;
  none = 0;
  if (tiny_open(2, &m) || tiny_open(0, &small) || taken != 2) return 4;
  for (int n = 1; n <= 700; n += 33)
    if (all(m, n)) return 5;
  if (taken != 2) return 6;  /* nothing in calls */
  for (int n = 1; n <= 700; n += 33)
    if (all(small, n)) return 7;
  if (taken == 2) return 8;
  none = 1;
  if (all(m, 700)) return 9;
  if (all(small, 700) != TINY_ERROR_MEMORY) return 10;
  tiny_close(m);
  tiny_close(small);
  return 0;
}
"""


@needs_compiler
def test_threads_share_a_handle(forest: Any, tmp_path: Path) -> None:
    run_on_rows(forest, exported(tmp_path), _THREADS, "-pthread")


#: Eight threads with little stack, and a handle for four.
_THREADS = """
#include <limits.h>
#include <pthread.h>
static tiny_model *model;
static void *work(void *arg) {
  float *out = malloc(700 * 2 * sizeof *out);
  void *said = 0;
  for (int k = 0; k < 200 && !said; k++) {
    int n = 1 + (int)((k * 37 + (long)arg * 101) % 700);
    memset(out, 0, n * 2 * sizeof *out);
    if (tiny_predict_proba_f64(model, rows, n, 6, 1, out)) said = (void *)1;
    if (memcmp(out, wanted, n * 2 * sizeof *out)) said = (void *)2;
  }
  free(out);
  return said;
}
int main(void) {
  if (!read_rows()) return 4;
  if (tiny_open(4, &model)) return 5;
  pthread_t threads[8];
  pthread_attr_t small;
  pthread_attr_init(&small);
  size_t least = PTHREAD_STACK_MIN;  /* 128 KiB on 64-bit Arm */
  if (least < 64 << 10) least = 64 << 10;
  if (pthread_attr_setstacksize(&small, least)) return 6;
  for (long k = 0; k < 8; k++)
    if (pthread_create(&threads[k], &small, work, (void *)k)) return 7;
  long bad = 0;
  for (int k = 0; k < 8; k++) {
    void *said;
    pthread_join(threads[k], &said);
    bad |= (long)said;
  }
  tiny_close(model);
  return (int)bad;
}
"""


@needs_compiler
@on_linux
@pytest.mark.parametrize("target", ["cpu", "x86-64"])
def test_nothing_is_read_or_written_past_the_rows(tmp_path: Path, target: str) -> None:
    folder = exported(tmp_path, target=target)
    build(folder, _GUARD)
    run(["./main"], folder, timeout=120)


_GUARD = """
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include "tiny.h"
static char *before_guard(size_t bytes) {
  size_t whole = (bytes + 4095) / 4096 * 4096;
  char *at = mmap(0, whole + 8192, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(at, 4096, PROT_NONE);
  mprotect(at + 4096 + whole, 4096, PROT_NONE);
  return at + 4096 + whole - bytes;
}
int main(void) {
  tiny_model *model;
  if (tiny_open(1, &model)) return 9;
  for (int v = 0; v < 3; v++) {
    if (tiny_select(model, v)) continue;
    for (int n = 1; n < 700; n += n < 130 ? 1 : 41) {
      float *rows = (float *)before_guard(n * 6 * sizeof *rows);
      double *wide = (double *)before_guard(n * 6 * sizeof *wide);
      float *out = (float *)before_guard(n * 2 * sizeof *out);
      int32_t *leaves = (int32_t *)before_guard(n * TINY_APPLY_COLUMNS * 4);
      if (tiny_predict_raw_f32(model, rows, n, 6, 1, out + n)) return 1;
      if (tiny_predict_proba_f32(model, rows, n, 6, 1, out)) return 2;
      if (tiny_predict_proba_f64(model, wide, n, 1, n, out)) return 3;
      if (tiny_apply_f32(model, rows, n, 6, 1, leaves)) return 4;
      float *given = (float *)before_guard(n * TINY_PREDICT_CONTRIBS_COLUMNS * 4);
      if (tiny_predict_contribs_f32(model, rows, n, 6, 1, given)) return 5;
    }
  }
  tiny_close(model);
  return 0;
}
"""


# ------------------------------------------------------------ other CPUs


@needs_compiler
@pytest.mark.parametrize(
    ("cpu", "wanted"),
    [("Haswell", "x86-64-v3"), ("Nehalem", "x86-64-v2"), ("core2duo", None)],
)
def test_old_cpus_get_what_they_run(
    forest: Any, tmp_path: Path, cpu: str, wanted: str | None
) -> None:
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        pytest.skip("there is no qemu-x86_64")
    folder = exported(tmp_path, target="x86-64")
    build(folder, _WHICH)
    runner = (emulator, "-cpu", cpu)
    said = run([*runner, "./main"], folder, timeout=120).split()
    assert said == (["3", "unknown"] if wanted is None else ["0", wanted])
    if wanted is not None:
        rows = draw_rows(forest, 200, 4, 0.1)
        for part in (rows[:1], rows):
            compare(folder, forest, "predict_raw", part, runner=runner)


_WHICH = """
#include <stdio.h>
#include "tiny.h"
int main(void) {
  tiny_model *model;
  int code = tiny_open(1, &model);
  printf("%d %s\\n", code, tiny_variant_name(tiny_variant(model)));
  tiny_close(model);
  return 0;
}
"""
