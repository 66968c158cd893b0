"""The code of an exported library: constants, dispatch, and its C functions.

::

    int name_predict_f32(model, rows, n, row_stride, column_stride, out):
      for part of rows:                                       # all at once if possible
        rows = convert(part)           # other dtype, missing marker or column stride
        run(model.variant, rows, sums)                    # kernel of the batch's range
        finish(sums, out)                                 # averages, transform, labels

This code gains nothing from newer CPUs, so it is compiled for the baseline; kernels
have attributes with their own CPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate

import numpy as np

from skforge._typing import Array
from skforge._version import __version__
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import BOOL, F32, F64, I32, I64, Routine, Value
from skforge.compiler.ir.lir.types import BUILDER, scalar_of
from skforge.engine.entry.entry import GIL_WORK
from skforge.engine.entry.hashing_routines import city_hash
from skforge.engine.entry.results import ResultWriter
from skforge.engine.entry.routines import field, fields_of_array
from skforge.exporters import llvm_model
from skforge.exporters.contents import ERRORS, LINE, ExportedKernel, Library
from skforge.exporters.llvm_model import fail
from skforge.outputs.steps import Steps
from skforge.runtime.python_objects import ARRAY_DATA, DTYPE_CODES

#: Padding bytes after constants, because kernels' vector loads may read past the end.
PADDING = 64

#: The type of rows, by the suffix of the functions that take them.
ROW_TYPES = {"f32": F32, "f64": F64}


def library_code(library: Library) -> list[str | Routine]:
    constants = [
        f"{_stored(symbol, payload + bytes(PADDING))}, align 64"
        for symbol, payload in constants_of(library).items()
    ]
    _, *whole = library.variants[0].ranges
    texts, facts = _facts(library)
    parts: list[str | Routine] = [
        "\n".join([*constants, *texts]),
        *llvm_model.variant_code(library.name, [v.target for v in library.variants]),
        *llvm_model.model_routines(library.name, sum(library.scratch)),
        *facts,
        *_run(library),
        *(_convert(library, suffix) for suffix in ROW_TYPES),
    ]
    if llvm_model.finishes_contributions(library):
        parts.append(llvm_model.contributions(library))
    parts += _encode(library)
    for output, steps in library.outputs.items():
        parts += _finish(f"{library.name}.finish.{output}", library, steps)
        parts += [_predict(library, suffix, output, steps) for suffix in ROW_TYPES]
    for output in whole:
        parts += [_predict(library, suffix, output) for suffix in ROW_TYPES]
    return parts


def kernel_text(text: str, cpu: str, features: str) -> str:
    attributes = f'"target-cpu"="{cpu}" "target-features"="{features}"'
    text = re.sub(
        r"^(define [^\n]*) nounwind( noinline)? \{$",
        rf"\1 nounwind\2 {attributes} {{",
        text,
        flags=re.MULTILINE,
    )
    return re.sub(r"^define void ", "define hidden void ", text, flags=re.MULTILINE)


def constants_of(library: Library) -> dict[str, bytes]:
    kernels = [kernel for variant in library.variants for kernel in variant.kernels]
    arrays = [array for kernel in kernels for array in kernel.data]
    if library.encoder is not None:
        arrays += [*library.encoder.data, np.array(library.categories, np.int32)]
    return dict(_constant(library, array) for array in arrays)


def _constant(library: Library, array: Array) -> tuple[str, bytes]:
    payload = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return f"{library.name}.data.{sha256(payload).hexdigest()[:16]}", payload


# ------------------------------------------------------------ dispatch

_MODEL, _SCRATCH, _ROWS, _N, _STRIDE, _SUMS = _HEAD = tuple(
    Value(name, I64) for name in ("model", "scratch", "rows", "n", "stride", "sums")
)


def _run(library: Library) -> Iterator[Routine]:
    name, forest = library.name, library.forest
    item = forest.accumulator_dtype.itemsize
    row_bytes = {
        "": item * forest.n_outputs,
        "apply": 4 * forest.n_trees,
        "predict_contribs": item * library.contribs * (forest.n_features + 1),
    }
    for function in library.variants[0].ranges:
        with Builder() as b:
            chosen = b.atomic("load", "monotonic", b.view("model", I32, _MODEL))
            for v, variant in enumerate(library.variants):
                with b.when(chosen.eq(v)):
                    for upper, k in variant.ranges[function]:
                        with b.when((upper or 1 << 62) >= _N):
                            b.run(f"{name}.call.{v}.{k}", *_HEAD)
                            b.give()
        symbol = f"{name}.run.{function}".rstrip(".")
        yield Routine(symbol, _HEAD, b.finish(), local=True)
        for v, variant in enumerate(library.variants):
            for k in sorted({k for _, k in variant.ranges[function]}):
                symbol, kernel = f"{name}.call.{v}.{k}", variant.kernels[k]
                yield _call(library, symbol, kernel, row_bytes[function])


def _call(
    library: Library, symbol: str, kernel: ExportedKernel, result_bytes: int
) -> Routine:
    most = kernel.most_rows or 1 << 62
    with Builder() as b:
        scratch = _SCRATCH + sum(library.scratch[:2])
        run = _runner(library, kernel, 4, scratch)
        row_bytes = _STRIDE * library.forest.input_dtype.itemsize
        with b.loop(0, _N, most) as i:
            rows, sums = _ROWS + i * row_bytes, _SUMS + i * result_bytes
            run(rows, (_N - i).min(most), _STRIDE, sums)
    return Routine(symbol, _HEAD, b.finish(), local=True)


def _runner(
    library: Library, kernel: ExportedKernel, n_values: int, scratch: Value
) -> Callable[..., None]:
    """Return what calls a kernel; addresses are taken here, before any loop."""
    b = BUILDER.get()
    fixed = [b.symbol(_constant(library, array)[0]) for array in kernel.data]
    ends = accumulate(kernel.scratch, initial=0)
    fixed += [scratch + at for at, _ in zip(ends, kernel.scratch, strict=False)]
    slots = b.local("slots", I64, n_values + len(fixed))
    filled = b.address(slots)

    def run(*values: Value) -> None:
        for k, value in enumerate([*values, *fixed]):
            slots[k] = value
        b.run(kernel.symbol, filled, b.const(0), b.const(1))

    return run


# ------------------------------------------------------------ rows and results


def _finish(symbol: str, library: Library, steps: Steps) -> Iterator[str | Routine]:
    n_outputs, labels = library.forest.n_outputs, f"{symbol}.labels"
    results = ResultWriter(steps, n_outputs, library.sum_dtype, labels)
    with Builder() as b:
        sums = b.view("sums", results.sum, _SUMS)
        results.write(sums, b.view("data", results.element, _TO), _N)
    yield Routine(symbol, (_SUMS, _TO, _N), b.finish(), local=True)
    if steps.labels:
        words = ", ".join(f"i64 {label}" for label in steps.labels)
        yield f"@{labels} = hidden constant [{len(steps.labels)} x i64] [ {words} ]"


_COLUMNS, _TO, _OUT = (Value(name, I64) for name in ("columns", "to", "out"))


def _convert(library: Library, suffix: str) -> Routine:
    """Return the function that copies rows densely in the forest's dtype, with NaN.

    The cast is that of C: round to nearest, and too large values become infinity.
    """
    theirs, mine = ROW_TYPES[suffix], scalar_of(np.dtype(library.row_dtype))
    n_features, marker = library.forest.n_features, library.forest.missing_value
    with Builder() as b:
        given, dense = b.view("rows", theirs, _ROWS), b.view("dense", mine, _TO)
        with b.loop(_N) as i:
            source = b.view("source", theirs, given, i * _STRIDE)
            target, at = b.view("target", mine, dense, i * n_features), [b.const(0)]
            with b.loop(n_features, carry=at) as j:
                x = source[at[0]].to(mine)
                if not np.isnan(marker):
                    x = b.select(x.eq(float(marker)), b.const(np.nan, mine), x)
                target[j] = x
                at[0] = at[0] + _COLUMNS
    params = _ROWS, _N, _STRIDE, _COLUMNS, _TO
    symbol = f"{library.name}.convert_{suffix}"
    return Routine(symbol, params, b.finish(), local=True)


def _predict(
    library: Library, suffix: str, output: str, steps: Steps | None = None
) -> Routine:
    name = library.name
    dtype, columns = library.results[output]
    in_place, run = steps is None or steps.in_place, f"{name}.run"
    finishes = steps is not None
    if steps is None:
        run = f"{run}.{output}"
        contributes = output == "predict_contribs"
        finishes = contributes and llvm_model.finishes_contributions(library)
    marked = not np.isnan(library.forest.missing_value)
    theirs, mine = ROW_TYPES[suffix], scalar_of(np.dtype(library.row_dtype))
    with Builder() as b:
        fail(_MODEL.eq(0), "NULL")
        fail(_N < 0, "COUNT")
        fail(_N.eq(0), "")
        fail(_ROWS.eq(0) | _OUT.eq(0), "NULL")
        always = b.const(True, BOOL)
        converts = always if marked or theirs != mine else _COLUMNS.ne(1)
        in_parts = converts if in_place else always
        most = b.select(in_parts, b.const(library.part_rows), b.const(1 << 62))
        takes = in_parts | (library.scratch_rows(output) <= _N)

        def acquired() -> Value:
            scratch = b.call(f"{name}.acquire", _MODEL)
            fail(scratch.eq(0), "MEMORY")
            return scratch

        scratch = b.either(takes, acquired, lambda: b.const(0))
        summed = scratch + library.scratch[0]
        with b.loop(0, _N, most) as i:
            count = (_N - i).min(most)
            rows = _ROWS + i * _STRIDE * theirs.bytes
            to = _OUT + i * (columns * np.dtype(dtype).itemsize)

            def converted() -> Value:
                parts = rows, count, _STRIDE, _COLUMNS, scratch
                b.run(f"{name}.convert_{suffix}", *parts)
                return scratch

            dense = b.either(converts, converted, lambda: rows)
            step = b.select(converts, b.const(library.forest.n_features), _STRIDE)
            sums = to if in_place else summed
            b.run(run, _MODEL, scratch, dense, count, step, sums)
            if finishes:
                b.run(f"{name}.finish.{output}", sums, to, count)
        with b.when(takes):
            b.run(f"{name}.give", scratch)
        b.give(b.const(0, I32))
    params = _MODEL, _ROWS, _N, _STRIDE, _COLUMNS, _OUT
    return Routine(f"{name}_{output}_{suffix}", params, b.finish(), I32)


def _encode(library: Library) -> Iterator[Routine]:
    if (encoder := library.encoder) is None:
        return
    city = replace(city_hash(), name=f"{library.name}.city")
    yield city
    n, numbers, texts, rows = params = tuple(
        Value(hint, I64) for hint in ("n", "numbers", "texts", "rows")
    )
    n_columns, n_categories = library.forest.n_columns, len(library.categories)
    places = np.array(library.categories, np.int32)
    with Builder() as b:
        fail(n < 0, "COUNT")
        fail(n.eq(0), "")
        fail(numbers.eq(0) | texts.eq(0) | rows.eq(0), "NULL")
        place = b.view("place", I32, b.symbol(_constant(library, places)[0]))
        given, text = b.view("given", I32, numbers), b.view("text", I64, texts)
        bits = b.view("bits", I32, rows)
        with b.loop(n) as r:
            row = r * library.forest.n_features
            with b.loop(n_columns) as j:
                bits[row + j] = given[r * n_columns + j]
            with b.loop(n_categories) as k:
                letters = text[r * n_categories + k]
                fail(letters.eq(0), "NULL")
                hash_ = b.call(city.name, letters, b.call("strlen", letters))
                bits[row + place[k].to(I64)] = hash_.to(I32)
        scratch = b.call("aligned_alloc", b.const(LINE), b.const(sum(encoder.scratch)))
        fail(scratch.eq(0), "MEMORY")
        sizes = [b.const(size) for size in library.encoder_sizes]
        _runner(library, encoder, 2 + len(sizes), scratch)(n, rows, *sizes)
        b.run("free", scratch)
        b.give(b.const(0, I32))
    yield Routine(f"{library.name}_encode", params, b.finish(), I32)


# ------------------------------------------------------------ facts


def _stored(symbol: str, payload: bytes) -> str:
    digits = payload.hex("\\")
    return f'@{symbol} = hidden constant [{len(payload)} x i8] c"\\{digits}"'


def _facts(library: Library) -> tuple[list[str], list[Routine]]:
    name, number = library.name, Value("k", I32)
    texts: list[str] = []
    routines: list[Routine] = []

    def text(b: Builder, symbol: str, value: str) -> Value:
        texts.append(_stored(f"{name}.text.{symbol}", value.encode() + b"\0"))
        return b.symbol(f"{name}.text.{symbol}")

    for symbol, values, last, otherwise in (
        ("version", [], "version", __version__),
        ("checksum", [], "checksum", library.forest.content_hash()),
        ("error", [*ERRORS.values()], "error.other", "unknown"),
        ("variant_name", library.cpus, "variant_name.other", "unknown"),
    ):
        # A table of pointers needs relocations; code stays in read-only pages.
        with Builder() as b:
            for k, value in enumerate(values):
                with b.when(number.eq(k)):
                    b.give(text(b, f"{symbol}.{k}", value))
            b.give(text(b, last, otherwise))
        params = (number,) if values else ()
        routines.append(Routine(f"{name}_{symbol}", params, b.finish(), I64))
    return texts, routines


# ------------------------------------------------------------ functions for Python

# Python calls them as its own, without ctypes:
#
#     NAME_python_predict(self, X):
#       if X is no small array of floats of shape (n, n_features): return None
#       out = numpy.empty(...)
#       NAME_predict_f32(model, X, out)              # or _f64
#       return out
#
# They find the addresses of Python's functions and objects in a table, ``NAME_python``,
# that the package fills when it is imported. So programs without Python can load the
# library, too.

#: The words of the table.
WORDS = "model", "none", "ndarray", "empty", "descr", "incref", "decref"


def python_code(library: Library) -> Iterator[str | Routine]:
    yield f"@{library.name}_python = global [{len(WORDS)} x i64] zeroinitializer"
    for output in library.outputs:
        yield _python_entry(library, output)


def _python_entry(library: Library, output: str) -> Routine:
    forest, name = library.forest, library.name
    dtype, columns = library.results[output]
    # from here on, ctypes is called, which lets other threads run meanwhile
    work = max(1.0, forest.n_trees * forest.mean_depth())
    most = max(1, int(GIL_WORK / work))
    self_, array = Value("self", I64), Value("X", I64)
    with Builder() as b:
        table = b.view("python", I64, b.symbol(f"{name}_python"))
        model, none, ndarray, empty, descr, incref, decref = (
            table[k] for k in range(len(WORDS))
        )

        def decline(cond: Value, made: Value | None = None) -> None:
            with b.when(cond):
                if made is not None:
                    b.run(decref, made)
                b.run(incref, none)
                b.give(none)

        shape, strides, data, code = fields_of_array(array, ndarray, decline)
        single = code.eq(DTYPE_CODES["float32"])
        floats = single | code.eq(DTYPE_CODES["float64"])
        last_bit = b.select(single, b.const(2), b.const(3))
        n, row, column = shape[0], strides[0], strides[1]
        whole = ((data | row | column) & ((b.const(1) << last_bit) - 1)).eq(0)
        fits = shape[1].eq(forest.n_features) & (n > 0) & (n <= most)
        decline(~(floats & whole & fits))
        dims = b.local("dims", I64, 2)
        dims[0], dims[1] = n, b.const(columns)
        long = "q" if "windows" in library.variants[0].target.triple else "l"
        c_type = {"int32": "i", "int64": long}.get(dtype, dtype)
        kind = b.call(descr, b.const(np.dtype(c_type).num, I32))
        n_dims = b.const(1 + (columns > 1), I32)
        out = b.call(empty, n_dims, b.address(dims), kind, b.const(0, I32))
        with b.when(out.eq(0)):
            b.give(out)
        to = field(out, ARRAY_DATA)
        given = model, data, n, row >> last_bit, column >> last_bit, to
        failed = b.either(
            single,
            lambda: b.call(f"{name}_{output}_f32", *given, gives=I32),
            lambda: b.call(f"{name}_{output}_f64", *given, gives=I32),
        )
        decline(failed.ne(0), out)
        b.give(out)
    return Routine(f"{name}_python_{output}", (self_, array), b.finish(), I64)
