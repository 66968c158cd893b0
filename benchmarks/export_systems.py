"""Systems that predict from C: a model's library, and programs that call it.

Each is an adapter of a few lines around what the system offers to C, linked with
``export_driver.c``. Preparing one is what its users do: generate, compile, link.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case
from environments import python_of
from peers import treelite_model
from systems import NotForModelError

import skforge

DRIVER = Path(__file__).with_name("export_driver.c")
TYPES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True, slots=True)
class Built:
    """A program, the library it calls, and the CPU seconds that the library took."""

    program: Path
    library: Path | None  # None: it is the system's own, whatever the model
    seconds: float
    out: str  # dtype of an answer


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those it waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def run(command: list[Any], folder: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotForModelError(f"{command[0]}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _program(
    case: Case, folder: Path, adapter: str, linked: list[Any], out: str
) -> Path:
    (folder / "adapter.c").write_text(adapter)
    forest = case.forest
    defines = {
        "ROW": TYPES[forest.input_dtype.name],
        "OUT": TYPES[out],
        "N_FEATURES": forest.n_features,
        "N_OUTPUTS": forest.n_outputs,
    }
    flags = [f"-D{name}={value}" for name, value in defines.items()]
    command = ["gcc", "-O2", *flags, "-o", "program", DRIVER, "adapter.c", *linked]
    run([*command, "-Wl,-rpath,.", "-lm"], folder)
    return folder / "program"


def answers(built: Built, rows: Any) -> Any:
    """Return what a program answers to rows, which it finds beside it."""
    folder = built.program.parent
    rows.tofile(folder / "rows.bin")
    run([built.program, "rows.bin", len(rows), "answers", "out"], folder)
    return np.fromfile(folder / "out", built.out)


# ------------------------------------------------------------ skforge

_OURS = """
#include "model.h"
static model_model *model;
int system_open(void) {{ return model_open(1, &model); }}
int system_predict(const ROW *rows, int64_t n, OUT *out) {{
  return model_predict_raw_{suffix}(model, rows, n, MODEL_N_FEATURES, 1, out);
}}
"""


def ours(kind: str = "shared", target: str = "cpu", **options: Any) -> Any:
    def build(case: Case, folder: Path) -> Built:
        start = cpu_seconds()
        made = folder / "made"
        skforge.export(case.forest, made, kind, target, name="model", **options)
        if kind == "c":
            flags = ["-std=c99", "-O3", "-march=native", "-shared", "-fPIC"]
            run(["gcc", *flags, "-o", "libmodel.so", "model.c", "-lm"], made)
        seconds = cpu_seconds() - start
        suffix = "f32" if case.forest.input_dtype == np.float32 else "f64"
        out = case.forest.accumulator_dtype.name
        linked = ["-I", made, f"-Wl,-rpath,{made}", made / "libmodel.so"]
        program = _program(case, folder, _OURS.format(suffix=suffix), linked, out)
        return Built(program, made / "libmodel.so", seconds, out)

    return build


# ------------------------------------------------------------ peers

_TL2CGEN = """
#include <math.h>
#include <stdint.h>
#include "made/header.h"
int system_open(void) { return 0; }
int system_predict(const ROW *rows, int64_t n, OUT *out) {
  union Entry row[N_FEATURES];
  for (int64_t i = 0; i < n; i++) {
    for (int k = 0; k < N_FEATURES; k++)
      if (isnan(rows[i * N_FEATURES + k])) row[k].missing = -1;
      else row[k].fvalue = rows[i * N_FEATURES + k];
    for (int k = 0; k < N_OUTPUTS; k++) out[i * N_OUTPUTS + k] = 0;
    predict(row, 1, out + i * N_OUTPUTS);
  }
  return 0;
}
"""


def tl2cgen(case: Case, folder: Path) -> Built:
    """Build the C code that tl2cgen generates, with gcc's -O3 for this CPU."""
    try:
        import tl2cgen as generator
    except ImportError as error:
        raise NotForModelError(str(error)) from None
    start = cpu_seconds()
    if case.kind not in ("xgboost", "lightgbm"):
        raise NotForModelError("is measured on files of XGBoost and LightGBM")
    model = treelite_model({"kind": case.kind, "path": str(case.source)})
    made = folder / "made"
    generator.generate_c_code(model, str(made), {"parallel_comp": 8})
    sources = sorted(file.name for file in made.glob("*.c"))
    flags = ["-O3", "-march=native", "-fPIC", "-shared"]
    run(["gcc", *flags, "-o", "libmodel.so", *sources, "-lm"], made)
    seconds = cpu_seconds() - start
    header = (made / "header.h").read_text()
    out = "float32" if "float* result" in header else "float64"
    linked = [f"-Wl,-rpath,{made}", made / "libmodel.so"]
    return Built(
        _program(case, folder, _TL2CGEN, linked, out),
        made / "libmodel.so",
        seconds,
        out,
    )


_LLEAVES = """
#include <stdint.h>
void forest_root(const double *rows, double *out, int first, int end);
int system_open(void) { return 0; }
int system_predict(const ROW *rows, int64_t n, OUT *out) {
  forest_root(rows, out, 0, (int)n);
  return 0;
}
"""


def lleaves(case: Case, folder: Path) -> Built:
    """Build the object that lleaves keeps as its cache."""
    python = python_of("lleaves")
    if case.kind != "lightgbm":
        raise NotForModelError("reads LightGBM files only")
    if python is None:
        raise NotForModelError("environments.py lleaves was not run")
    code = (
        "import sys, lleaves\n"
        "lleaves.Model(sys.argv[1]).compile(cache=sys.argv[2], raw_score=True)"
    )
    start = cpu_seconds()
    run([python, "-c", code, case.source, folder / "model.o"], folder)
    seconds = cpu_seconds() - start
    program = _program(case, folder, _LLEAVES, ["-no-pie", "model.o"], "float64")
    return Built(program, folder / "model.o", seconds, "float64")


_XGBOOST = """
#include <math.h>
#include <stdint.h>
#include <stdio.h>
typedef uint64_t bst_ulong;
int XGBoosterCreate(const void *const *data, bst_ulong n, void **out);
int XGBoosterLoadModel(void *handle, const char *name);
int XGBoosterSetParam(void *handle, const char *name, const char *value);
int XGBoosterPredictFromDense(void *handle, const char *values, const char *config,
                              void *proxy, const bst_ulong **shape, bst_ulong *dim,
                              const float **result);
static void *booster;
int system_open(void) {{
  if (XGBoosterCreate(0, 0, &booster)) return 1;
  if (XGBoosterLoadModel(booster, "{path}")) return 1;
  return XGBoosterSetParam(booster, "nthread", "1");
}}
int system_predict(const ROW *rows, int64_t n, OUT *out) {{
  static const char config[] =
      "{{\\"type\\": 1, \\"training\\": false, \\"iteration_begin\\": 0, "
      "\\"iteration_end\\": 0, \\"missing\\": NaN, \\"strict_shape\\": false, "
      "\\"cache_id\\": 0}}";
  char values[160];
  const bst_ulong *shape;
  bst_ulong dim;
  const float *result;
  sprintf(values, "{{\\"data\\": [%llu, true], \\"shape\\": [%lld, %d], "
                  "\\"typestr\\": \\"<f4\\", \\"version\\": 3}}",
          (unsigned long long)rows, (long long)n, N_FEATURES);
  if (XGBoosterPredictFromDense(booster, values, config, 0, &shape, &dim, &result))
    return 1;
  for (int64_t k = 0; k < n * N_OUTPUTS; k++) out[k] = result[k];
  return 0;
}}
"""

_LIGHTGBM = """
#include <stdint.h>
int LGBM_BoosterCreateFromModelfile(const char *file, int *iterations, void **out);
int LGBM_BoosterPredictForMatSingleRowFastInit(
    void *handle, int predict_type, int start, int iterations, int data_type,
    int32_t columns, const char *parameters, void **config);
int LGBM_BoosterPredictForMatSingleRowFast(void *config, const void *row,
                                           int64_t *length, double *out);
int LGBM_BoosterPredictForMat(void *handle, const void *rows, int data_type,
                              int32_t n, int32_t columns, int row_major,
                              int predict_type, int start, int iterations,
                              const char *parameters, int64_t *length, double *out);
static void *booster, *config;
int system_open(void) {{
  int n;
  if (LGBM_BoosterCreateFromModelfile("{path}", &n, &booster)) return 1;
  return LGBM_BoosterPredictForMatSingleRowFastInit(booster, 1, 0, -1, 1, N_FEATURES,
                                                    "num_threads=1", &config);
}}
int system_predict(const ROW *rows, int64_t n, OUT *out) {{
  int64_t length;
  if (n == 1)
    return LGBM_BoosterPredictForMatSingleRowFast(config, rows, &length, out);
  return LGBM_BoosterPredictForMat(booster, rows, 1, (int32_t)n, N_FEATURES, 1, 1, 0,
                                   -1, "num_threads=1", &length, out);
}}
"""


def source(case: Case, folder: Path) -> Built:
    """Build a program around the C interface of the model's own library."""
    if case.kind == "xgboost":
        import xgboost

        (library,) = (Path(xgboost.__file__).parent / "lib").glob("libxgboost.so")
        # The name that programs look for; the wheel has no such file.
        (folder / "libxgboost.so.3").symlink_to(library)
        text, out = _XGBOOST, "float32"
    elif case.kind == "lightgbm":
        import lightgbm

        library = Path(lightgbm.__file__).parent / "lib" / "lib_lightgbm.so"
        text, out = _LIGHTGBM, "float64"
    else:
        raise NotForModelError("has no library with an interface for C")
    # What the library needs itself is found from its own path.
    rpaths = [folder, library.parent, library.parents[2] / "xgboost.libs"]
    linked = [library, "-Wl,--allow-shlib-undefined,--disable-new-dtags"]
    linked += [f"-Wl,-rpath,{path}" for path in rpaths]
    program = _program(case, folder, text.format(path=case.source), linked, out)
    return Built(program, None, 0.0, out)


SYSTEMS: dict[str, Callable[[Case, Path], Built]] = {
    "skforge, this CPU": ours(),
    "skforge, x86-64-v3": ours(target="x86-64-v3"),
    'skforge, `kind="c"`, gcc -O3': ours("c"),
    "the source's C interface": source,
    "tl2cgen, gcc -O3": tl2cgen,
    "lleaves": lleaves,
}
