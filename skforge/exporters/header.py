"""Write the header of an exported library, and an example that uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from skforge._version import __version__
from skforge.exporters.contents import ERRORS, Library

#: The dtype and the number of columns of each function's results.
Results: TypeAlias = Mapping[str, tuple[str, int]]

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
}

_SAYS = {
    "predict_raw": "margins (raw scores)",
    "predict": "the predictions of the model's own booster or estimator:\n"
    " * margins after the objective's transform",
    "predict_proba": "probabilities of the classes",
    "predict_class": "the position of the predicted class among the classes",
    "apply": "the leaf of each tree, numbered as in the source model",
    "predict_contribs": "what each feature contributes to a margin (SHAP values),\n"
    " * then the expected margin; they add up to the margin. Several outputs follow\n"
    " * one another",
}


def header_text(library: Library) -> str:
    """Return the C header of a library."""
    name, variants, results = library.name, library.variants, library.results
    upper, model = name.upper(), f"{name}_model"
    lines = [
        f"/* {name}: a model as plain C functions. Made by skforge {__version__}. */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"#define {upper}_N_FEATURES {library.forest.n_features}",
        *(
            f"#define {upper}_{function.upper()}_COLUMNS {columns}"
            for function, (_, columns) in results.items()
        ),
        f"/* {name}_checksum() of the library that this header belongs to. */",
        f'#define {upper}_CHECKSUM "{library.forest.content_hash()}"',
        "",
        f"/* Return codes of the functions; {name}_error(code) gives the text of one. "
        "*/",
        "enum {",
        *(
            f"  {upper}_{code} = {k}{',' if k + 1 < len(ERRORS) else ''} /* {text} */"
            for k, (code, text) in enumerate(ERRORS.items())
        ),
        "};",
        "",
        "/* An open model. Any number of threads may use it at once. */",
        f"typedef struct {model} {model};",
        "",
        *_open_says(name, library.scratch.bytes),
        f"int {name}_open(int threads, {model} **model);",
        "",
        "/* Frees a model. Nobody may use it afterwards. NULL is allowed. */",
        f"void {name}_close({model} *model);",
        "",
        f"/* Functions read n_rows rows of {upper}_N_FEATURES values: value c of row r",
        " * is rows[r * row_stride + c * column_stride]. Rows without gaps have the",
        f" * strides {upper}_N_FEATURES and 1, columns without gaps 1 and n_rows.",
        " * Missing values are NaN, unless the model marks them by another value.",
        " * Results are dense, row after row. */",
    ]
    for column, codes in library.texts.items():
        lines += ["", *_codes_say(library, column, codes)]
    for function, (dtype, columns) in results.items():
        out = C_TYPES[dtype]
        each = f"{columns} {out}{'s' if columns != 1 else ''} per row"
        lines += ["", f"/* {each}: {_SAYS[function]}. */"]
        for given, c_type in (("f32", "float"), ("f64", "double")):
            head = f"int {name}_{function}_{given}("
            space = " " * len(head)
            lines += [
                f"{head}const {model} *model, const {c_type} *rows,",
                f"{space}int64_t n_rows, int64_t row_stride,",
                f"{space}int64_t column_stride, {out} *out);",
            ]
    lines += [
        "",
        "/* The version of skforge; a digest of the model; the text of a code. */",
        f"const char *{name}_version(void);",
        f"const char *{name}_checksum(void);",
        f"const char *{name}_error(int code);",
    ]
    if variants:
        lines += [
            "",
            "/* The library has one variant of the code for each of these CPUs, the",
            " * best first. The functions return the variant that a model uses and the",
            " * name of a variant, and make a model use a variant",
            f" * ({upper}_ERROR_CPU if this CPU cannot run it). */",
            *(f"/*   {k}: {one.target.cpu} */" for k, one in enumerate(variants)),
            f"int {name}_variant(const {model} *model);",
            f"const char *{name}_variant_name(int variant);",
            f"int {name}_select({model} *model, int variant);",
        ]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def _codes_say(library: Library, column: int, codes: Mapping[str, Any]) -> list[str]:
    """Return the comment about a column of texts."""
    names = library.forest.feature_names
    name = "" if names is None else f" ({json.dumps(names[column])})"
    others = {
        "missing strings": codes["missing"],
        "Python's None": codes["none"],
        "other strings": codes["other"],
    }
    known = {json.dumps(text): code for text, code in codes["codes"].items()}
    lines = [
        f"Column {column}{name} takes codes for strings, see {library.name}.json:",
        *(
            f"  {'refused by the pipeline:' if code is None else code} {what}"
            for what, code in (known | others).items()
        ),
    ]
    said = [line.replace("*/", "* /") for line in lines]
    return ["/* " + said[0], *(" * " + line for line in said[1:]), " */"]


def _open_says(name: str, scratch_bytes: int) -> list[str]:
    if not scratch_bytes:
        return [
            "/* Opens the model: sets *model to a handle, or to NULL and returns a",
            " * code. The number of threads does not matter: calls need no memory. */",
        ]
    return [
        "/* Opens the model for a number of threads: sets *model to a handle, or to",
        f" * NULL and returns an error code. It allocates {scratch_bytes:,} bytes of",
        " * scratch for each thread. Up to that many calls at once allocate nothing;",
        " * each further call allocates and frees its own scratch.",
        f" * {name}_close frees the model. */",
    ]


def example_text(name: str, results: Results, build: str) -> str:
    """Return a C program that predicts rows read as text from standard input."""
    function = "predict" if "predict" in results else "predict_raw"
    dtype, columns = results[function]
    out, width = C_TYPES[dtype], f"{name.upper()}_N_FEATURES"
    form, cast = ("%lld", "(long long)") if out == "int64_t" else ("%.17g", "")
    return f"""/* Reads lines of {width} numbers with commas or blanks between,
 * prints predictions. Empty cells are missing; a first line of names is skipped.
 * {build} */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "{name}.h"
#define BLANKS " \\t\\r\\n\\xef\\xbb\\xbf"

/* Returns how many cells a line has, or -1 if one of them is not a number. */
static int read_row(const char *at, double *row) {{
  int n = 0;
  at += strspn(at, BLANKS);
  while (*at || n) {{
    char *end;
    double value = strtod(at, &end);
    if (n == {width}) return -1;
    row[n++] = end == at ? (double)NAN : value;
    if (end == at && *at && *at != ',') return -1;
    end += strspn(end, BLANKS);
    if (!*end) break;
    at = *end == ',' ? end + 1 + strspn(end + 1, BLANKS) : end;
  }}
  return n;
}}

int main(void) {{
  static char line[64 * {width} + 4096];
  double row[{width} + 1];
  {out} out[{columns}];
  {name}_model *model;
  int code = {name}_open(1, &model);
  for (int at = 1; !code && fgets(line, sizeof line, stdin); at++) {{
    int n = strchr(line, '\\n') || feof(stdin) ? read_row(line, row) : -1;
    if (n == 0 || (n < 0 && at == 1)) continue;
    if (n != {width}) {{
      fprintf(stderr, "line %d does not have %d numbers\\n", at, {width});
      return 1;
    }}
    code = {name}_{function}_f64(model, row, 1, {width}, 1, out);
    for (int k = 0; !code && k < {columns}; k++)
      printf("{form}%c", {cast}out[k], k + 1 < {columns} ? ' ' : '\\n');
  }}
  if (code) fprintf(stderr, "%s\\n", {name}_error(code));
  {name}_close(model);
  return code;
}}
"""
