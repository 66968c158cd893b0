"""Copy the model and the rows to a GPU before the launches, and the results back.

    grid grid.x %x: i32 < %n {           upload @nodes <once>
      ...                                copy_in @rows[%n_rows, %row_stride]
    }                              =>    grid grid.x %x: i32 < %n {
                                           ...
                                         }
                                         copy_out @result[%n_rows, %width]

SilvanForge inserts the same transfers into its LIR (§4). The runtime follows them.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Buffer, Function, Let, Transfer, Value


def run(function: Function, width: int) -> Function:
    rows, n_rows, stride, result, *model = function.params
    assert isinstance(rows, Buffer) and isinstance(result, Buffer)
    assert isinstance(n_rows, Value) and isinstance(stride, Value)
    columns = Value("width", n_rows.type)  # all other names in the body have a dot
    before: list[lir.Stmt] = [Let(columns, lir.Const(width))]
    before += [
        Transfer("upload", array) for array in model if isinstance(array, Buffer)
    ]
    before.append(Transfer("copy_in", rows, (n_rows, stride)))
    after = Transfer("copy_out", result, (n_rows, columns))
    return replace(function, body=(*before, *function.body, after))
