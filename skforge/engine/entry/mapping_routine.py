"""The code that reads the numbers of dicts; :mod:`.mappings` describes what it does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial, reduce
from math import nan
from operator import or_

from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F64, I32, I64, Buffer, Routine, Value
from skforge.engine.entry.routines import field, give_if
from skforge.runtime.python_objects import OB_TYPE


def routine(classes: Iterable[str]) -> Routine:
    """Return a function of rows ``first`` to ``end``; it returns the first declined."""
    rows, first, end, many, width = (
        Value(name, I64) for name in ("rows", "first", "end", "many", "width")
    )
    keys, places, tables = (Buffer(n, I64) for n in ("keys", "places", "tables"))
    out = Buffer("out", F64)
    with Builder() as b:
        position, key, value = (b.local(n, I64) for n in ("position", "key", "value"))
        cells = [b.address(cell) for cell in (position, key, value)]
        kinds = {name: b.symbol(f"skf_{name}") for name in classes}
        none = b.symbol("skf_none")

        def is_a(object_: Value, *names: str) -> Value:
            kind = field(object_, OB_TYPE)
            return reduce(or_, (kind.eq(kinds[name]) for name in names))

        with b.loop(first, end) as r:
            decline = partial(give_if, r)
            mapping = b.call("skf_item", rows, r)
            decline(~is_a(mapping, "dict"))
            position[0] = 0
            count = [b.const(0)]
            step = partial(b.call, "skf_next", mapping, *cells, gives=I32)
            with b.repeat(lambda: step().ne(0), count):
                k = count[0]
                decline(k.eq(many))
                actual, wanted = key[0], keys[k]
                with b.when(actual.ne(wanted)):
                    decline(~is_a(actual, "str"))
                    order = b.call("skf_compare", actual, wanted, gives=I32)
                    decline(order.ne(0), error=True)
                column = places[k]
                with b.when(column >= 0):
                    object_, table = value[0], tables[k]

                    def number(real: Value) -> Value:
                        x = b.call("skf_number", real, gives=F64)
                        with b.when(x.eq(-1.0)):
                            decline(b.call("skf_error").ne(0), error=True)
                        return x

                    def plain() -> Value:
                        real = is_a(object_, "float", "int", "bool")
                        return b.either(real, partial(number, object_), missing)

                    def missing() -> Value:
                        decline(object_.ne(none))
                        return b.const(nan, F64)

                    def coded() -> Value:
                        decline(~(is_a(object_, "str") | object_.eq(none)))
                        code = b.call("skf_find", table, object_)
                        decline(code.eq(0), error=True)
                        return number(code)

                    out[r * width + column] = b.either(table.eq(0), plain, coded)
                count[0] = k + 1
            decline(count[0].ne(many))
        b.give(end)
    params = rows, first, end, many, keys, places, tables, width, out
    return Routine("skf_read", params, b.finish(), I64)
