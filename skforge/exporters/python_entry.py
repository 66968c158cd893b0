"""Functions of an exported library that Python calls as its own, without ctypes.

::

    NAME_python_predict(self, X):
      if X is no small array of floats of shape (n, n_features): return None
      out = numpy.empty(...)
      NAME_predict_f32(model, X, out)              # or _f64
      return out

They find the addresses of Python's functions and objects in a table, ``NAME_python``,
that the package fills when it is imported. So programs without Python can load the
library, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I32, I64, Routine, Value
from skforge.compiler.runtime.entry.entry import GIL_WORK
from skforge.compiler.runtime.entry.routines import field, fields_of_array
from skforge.exporters.contents import Library
from skforge.runtime.python_objects import ARRAY_DATA, DTYPE_CODES

#: The words of the table.
WORDS = "model", "none", "ndarray", "empty", "descr", "incref", "decref"


def python_code(library: Library) -> Iterator[str | Routine]:
    yield f"@{library.name}_python = global [{len(WORDS)} x i64] zeroinitializer"
    for output in library.outputs:
        yield _entry(library, output)


def _entry(library: Library, output: str) -> Routine:
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

        shape, strides, data, code = fields_of_array(b, array, ndarray, decline)
        single = code.eq(DTYPE_CODES["float32"])
        floats = single | code.eq(DTYPE_CODES["float64"])
        last_bit = b.select(single, b.const(2), b.const(3))
        n, row, column = shape[0], strides[0], strides[1]
        whole = ((data | row | column) & ((b.const(1) << last_bit) - 1)).eq(0)
        fits = shape[1].eq(forest.n_features) & (n > 0) & (n <= most)
        decline(~(floats & whole & fits))
        dims = b.local("dims", I64, 2)
        dims[0], dims[1] = n, b.const(columns)
        kind = b.call(descr, b.const(np.dtype(dtype).num, I32))
        n_dims = b.const(1 + (columns > 1), I32)
        out = b.call(empty, n_dims, b.address(dims), kind, b.const(0, I32))
        with b.when(out.eq(0)):
            b.give(out)
        to = field(b, out, ARRAY_DATA)
        given = model, data, n, row >> last_bit, column >> last_bit, to
        failed = b.either(
            single,
            lambda: b.call(f"{name}_{output}_f32", *given, gives=I32),
            lambda: b.call(f"{name}_{output}_f64", *given, gives=I32),
        )
        decline(failed.ne(0), out)
        b.give(out)
    return Routine(f"{name}_python_{output}", (self_, array), b.finish(), I64)
