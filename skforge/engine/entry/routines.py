"""The routines of a compiled entry point; :mod:`.entry` describes what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import BOOL, F32, I32, I64, Buffer, Routine, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.engine.entry.results import ResultWriter
from skforge.outputs.steps import MAX_SCRATCH, MAX_SLOTS, EntryKind
from skforge.runtime import python_objects
from skforge.runtime.entries import EntrySizes


def field(address: Value, offset: int, type_: lir.Scalar = I64) -> Value:
    return b.view("object", I64, address)[offset // 8, type_]


def fields_of_array(
    array: Value, ndarray: Value, decline: Callable[[Value], None]
) -> tuple[Buffer, Buffer, Value, Value]:
    decline(field(array, python_objects.OB_TYPE).ne(ndarray))
    decline(field(array, python_objects.ARRAY_NDIM, I32).ne(2))
    shape = b.view("shape", I64, field(array, python_objects.ARRAY_SHAPE))
    strides = b.view("strides", I64, field(array, python_objects.ARRAY_STRIDES))
    data = field(array, python_objects.ARRAY_DATA)
    code = (
        field(field(array, python_objects.ARRAY_DTYPE), python_objects.DTYPE_KIND, I32)
        & 0xFFFFFF
    )
    return shape, strides, data, code


def give_if(answer: Value | int, cond: Value, error: bool = False) -> None:
    with b.when(cond):
        if error:
            b.run("skf_clear")
        b.give(answer)


def write(kind: EntryKind) -> list[Routine | str]:
    """Return the functions of an entry point, and tables as text, without addresses.

    They call functions of CPython, NumPy and the C library, and use the symbols

    - ``skf_sizes`` and ``skf_table``, the model's ``EntrySizes`` and kernel table;
    - ``skf_none``, ``skf_ndarray``, ``skf_classes`` and ``skf_labels``: Python's None,
      NumPy's array class, and classes to take for their indices, as an array or as a
      table;
    - ``skf_counts``: the calls that the entry has answered, and their rows, to which
      it adds while the thread holds the GIL;
    - ``skf_method``'s two words ``skf_owner``: the method's object, and the function to
      call if the entry declines; both 0 if the entry is not a method.
    """
    entry = _Entry(kind)
    return [entry.body(), *functions(), *entry.results.tables()]


def functions() -> list[Routine]:
    return [_function(), _method()]


def size_of(name: str, k: Value | int = 0) -> Value:
    """Return one of the model's ``EntrySizes``, or its item ``k``."""
    words = b.view("sizes", I64, b.symbol("skf_sizes"))
    return words[k + EntrySizes._fields.index(name)]


def _function() -> Routine:
    self_, arg = Value("self", I64), Value("arg", I64)
    with Builder() as b:
        answer = b.call("skf_body", arg, size_of("most_rows"))
        with b.when(answer.ne(0)):
            b.give(answer)
        none = b.symbol("skf_none")
        b.run("skf_incref", none)
        b.give(none)
    return Routine("skf_entry", (self_, arg), b.finish(), I64)


def _method() -> Routine:
    self_, count, names = (Value(name, I64) for name in ("self", "count", "names"))
    args = Buffer("args", I64)
    with Builder() as b:
        owner = b.view("owner", I64, b.symbol("skf_owner"))
        with b.when(count.eq(2) & names.eq(0)), b.when(args[0].eq(owner[0])):
            answer = b.call("skf_body", args[1], size_of("method_rows"))
            with b.when(answer.ne(0)):
                b.give(answer)
        b.give(b.call("skf_vectorcall", owner[1], b.address(args), count, names))
    return Routine("skf_method", (self_, args, count, names), b.finish(), I64)


class _Entry:
    def __init__(self, kind: EntryKind) -> None:
        self.k = kind
        self.results = ResultWriter(kind.steps, kind.n_outputs, kind.sum_dtype)
        self.element = scalar_of(np.dtype(kind.row_dtype))
        self.n = self.columns = Value("n", I64)  # of the rows

    def body(self) -> Routine:
        arg, most = Value("arg", I64), Value("most", I64)
        with Builder() as body:
            rows, row_bytes, threads = self._rows(arg, most)
            out = self._answer(rows, row_bytes, threads)
            b.give(out)
        return Routine("skf_body", (arg, most), body.finish(), I64, local=True)

    def _decline(self, cond: Value) -> None:
        give_if(0, cond)

    # ------------------------------------------------------------ rows

    def _rows(self, array: Value, most: Value) -> tuple[Value, Value, Value]:
        k, item = self.k, self.element.bytes
        codes = python_objects.DTYPE_CODES
        wanted, other = (codes[f"float{8 * size}"] for size in (item, 12 - item))
        fields = fields_of_array(array, b.symbol("skf_ndarray"), self._decline)
        shape, strides, data, code = fields
        is_own = code.eq(wanted)
        is_float = is_own if np.isfinite(k.limit) else is_own | code.eq(other)
        size = b.select(is_own, b.const(item), 12 - item)
        self.n, self.columns = shape[0], size_of("n_features")
        given_bytes, step = strides[0], strides[1]
        unaligned = (data | given_bytes | step) & (size - 1)
        whole = is_float & shape[1].eq(self.columns)
        few = (self.n > 0) & (self.n <= most)
        self._decline(~(whole & unaligned.eq(0) & few))
        threads = self._pick_kernel()
        is_dense = step.eq(size)
        as_is = is_own & is_dense
        theirs = F32 if self.element == lir.F64 else lir.F64

        def copied() -> Value:
            self._decline(self.n * self.columns > MAX_SCRATCH)
            copy = b.alloc("copy", self.element, MAX_SCRATCH)

            def from_(type_: lir.Scalar, step: Value | int) -> Callable[[], None]:
                return lambda: self._copy(copy, type_, data, given_bytes, step)

            def converted() -> None:  # in vectors where columns lie side by side
                b.if_(is_dense, from_(theirs, theirs.bytes), from_(theirs, step))

            b.if_(is_own, from_(self.element, step), converted)
            return b.address(copy)

        rows = b.either(as_is, lambda: data, copied)
        dense = self.columns * item
        row_bytes = b.select(as_is, given_bytes, dense)
        self._scan(rows, row_bytes, dense)
        self._check_whole(rows, row_bytes)
        return rows, row_bytes, threads

    def _pick_kernel(self) -> Value:
        threads, number = b.const(1), [b.const(0)]  # ranges that end below the batch
        with b.repeat(lambda: self.n > size_of("last_rows", number[0]), number):
            number[0] = number[0] + 1
        index = number[0] * 3
        if self.k.shared:
            threads, shared_index = self._share()
            index = b.select(threads > 1, shared_index, index)
        table = b.view("table", I64, b.symbol("skf_table"))
        self.kernel = b.atomic("load", "acquire", table, at=index)
        self.model, self.model_bytes = table[index + 1], table[index + 2]
        self._decline(self.kernel.eq(0))
        return threads

    def _share(self) -> tuple[Value, Value]:
        known = b.view("known", I64, b.symbol("skf_shares"))
        shares = b.view("shares", I64, b.atomic("load", "acquire", known))
        index = [b.const(0)]
        with b.repeat(lambda: self.n >= shares[index[0] + 3], index):
            index[0] = index[0] + 3
        planned = shares[index[0] + 2]

        def several() -> Value:
            limit = b.call("skf_limit", gives=I32).to(I64)
            return b.either(limit < 2, lambda: b.const(1), lambda: shared(limit))

        def shared(limit: Value) -> Value:
            wanted = planned.min(limit)
            words = b.view("started", I64, b.symbol("skf_started"))
            started = b.atomic("load", "acquire", words)
            self._decline(~((started + 1 >= wanted) & (wanted > 0)))
            return wanted

        threads = b.either(planned.eq(1), lambda: b.const(1), several)
        return threads, shares[index[0] + 1]

    def _copy(
        self,
        copy: Buffer,
        theirs: lir.Scalar,
        address: Value,
        row_bytes: Value,
        step: Value | int,
    ) -> None:
        """Copy rows to the stack; decline numbers too large: some sources warn."""
        bad, given = [b.const(False, BOOL)], b.view("given", lir.U8, address)
        narrows = self.element == F32 and theirs != F32
        rows, columns = b.loop(self.n, carry=bad), b.loop(self.columns, carry=bad)
        with rows as i, columns as j:
            cell = b.view("cell", theirs, given, i * row_bytes + j * step)
            y = cell[0].to(self.element)
            copy[i * self.columns + j] = y
            if narrows:
                bits = b.bitcast(b.magnitude(y), I32)
                bad[0] = bad[0] | bits.eq(0xFF << 23)
        if narrows:
            self._decline(bad[0])

    def _scan(self, rows: Value, row_bytes: Value, dense: Value) -> None:
        """Decline if the source refuses to predict on a value.

        All exponent bits set means inf or NaN; the fraction tells them apart. Rows
        without gaps are read as one, in vectors, then remaining values one at a time.
        """
        if self.k.refused == "nothing":
            return
        item = self.element.bytes
        word = I32 if item == 4 else I64
        exponent = (0xFF << 23) if item == 4 else (0x7FF << 52)
        with np.errstate(over="ignore"):  # float64's largest is infinity in float32
            limit = int(np.array(self.k.limit, f"f{item}").view(f"u{item}"))
        lanes, one, columns = 64 // item, row_bytes.eq(dense), self.columns
        width = b.select(one, columns * self.n, columns)
        vectors = width & -lanes

        def refused(bits: Value) -> Value:
            size = bits & ~(-1 << (8 * item - 1))
            if self.k.refused == "not_finite":
                return size >= limit
            return (size >= limit) & (size <= exponent)

        data = b.view("rows", lir.U8, rows)
        with b.loop(b.select(one, b.const(1), self.n)) as i:
            row = b.view("row", word, data, i * row_bytes)
            vec = lir.Vec(word, lanes)
            none, bad = b.const(0, vec), [b.const(False, BOOL)]
            bad_bits = [none]
            with b.loop(0, vectors, lanes, carry=bad_bits) as j:
                # not masks: they are slow in loops without mask registers
                set_ = b.select(refused(row[j, vec]), b.const(-1, vec), none)
                bad_bits[0] = bad_bits[0] | set_
            with b.loop(vectors, width, carry=bad) as j:
                bad[0] = bad[0] | refused(row[j])
            self._decline(b.any_true(bad_bits[0].ne(none)) | bad[0])

    def _check_whole(self, rows: Value, row_bytes: Value) -> None:
        if not self.k.whole:
            return
        data, bad = b.view("rows", lir.U8, rows), [b.const(False, BOOL)]
        with b.loop(self.n, carry=bad) as i:
            row = b.view("row", self.element, data, i * row_bytes)
            for first, end, least, most in self.k.whole:
                with b.loop(first, end, carry=bad) as j:
                    x = row[j]
                    fits = (x >= float(least)) & (x <= float(most))
                    small = b.select(fits & (x < 2.0**63), x, 0.0)
                    whole = small.to(I64).to(self.element).eq(small)
                    bad[0] = bad[0] | ~(fits & whole)
        self._decline(bad[0])

    # ------------------------------------------------------------ answers

    def _answer(self, rows: Value, row_bytes: Value, threads: Value) -> Value:
        results = self.results
        dims = b.local("dims", I64, 2)
        held = b.const(0) if results.in_place else self._scratch(dims)
        dims[0], dims[1] = self.n, results.columns
        n_dims = b.const(1 + (results.columns > 1), I32)
        order = b.const(int(self.k.steps.by_columns), I32)
        if self.k.steps.one_by_row:
            order = b.select(self.n.eq(1), b.const(0, I32), order)
        out = self._empty(n_dims, dims, results.dtype, order)
        with b.when(out.eq(0) & held.ne(0)):
            b.run("skf_decref", held)
        self._forget(out)
        data = b.view("data", results.element, field(out, python_objects.ARRAY_DATA))
        sums = data
        if not results.in_place:
            few = b.alloc("sums", results.sum, MAX_SCRATCH)
            many = lambda: field(held, python_objects.ARRAY_DATA)  # noqa: E731
            at = b.either(held.eq(0), lambda: b.address(few), many)
            sums = b.view("sums_at", results.sum, at)
        self._run(rows, row_bytes, sums, threads)
        warned = results.write(sums, data, self.n)
        with b.when(held.ne(0)):
            b.run("skf_decref", held)
        if warned is not None:
            with b.when(warned):
                b.run("skf_decref", out)
                b.give(0)
        self._count()
        if not self.k.takes:
            return out
        taken = b.call("skf_take", b.symbol("skf_classes"), out)
        b.run("skf_decref", out)
        self._forget(taken)
        return taken

    def _empty(
        self, n_dims: Value, dims: Buffer, dtype: np.dtype[Any], order: Value
    ) -> Value:
        descr = b.call("skf_descr", b.const(dtype.num, I32))
        return b.call("skf_empty", n_dims, b.address(dims), descr, order)

    def _scratch(self, dims: Buffer) -> Value:
        """Return an array for the sums of many rows; 0 if the stack has room."""
        dims[0] = self.n * self.k.n_outputs

        def array() -> Value:
            dtype = np.dtype(self.k.sum_dtype)
            made = self._empty(b.const(1, I32), dims, dtype, b.const(0, I32))
            self._forget(made)
            return made

        return b.either(dims[0] > MAX_SCRATCH, array, lambda: b.const(0))

    def _forget(self, made: Value) -> None:
        give_if(made, made.eq(0), error=True)

    def _run(self, rows: Value, row_bytes: Value, sums: Buffer, threads: Value) -> None:
        """Call the kernel, without the GIL where it is worth it."""
        zero, one = b.const(0), b.const(1)
        slots = b.local("slots", I64, MAX_SLOTS + 4)
        b.run("memcpy", b.address(slots, 4), self.model, self.model_bytes)
        stride = row_bytes >> {4: 2, 8: 3}[self.element.bytes]
        for k, slot in enumerate((rows, self.n, stride, b.address(sums))):
            slots[k] = slot
        filled = b.address(slots)

        def free() -> None:
            pfor = b.symbol("skf_parallel") if self.k.shared else zero
            state = b.call("skf_save_thread")
            b.run(self.kernel, filled, pfor, threads)
            b.run("skf_restore_thread", state)

        frees = self.n >= size_of("gil_rows")
        if self.k.shared:
            frees = frees | (threads > 1)
        b.if_(frees, free, lambda: b.run(self.kernel, filled, zero, one))

    def _count(self) -> None:
        pair = lir.Vec(I64, 2)
        counts = b.view("counts", I64, b.symbol("skf_counts"))
        counts[0] = counts[0, pair] + b.pack([b.const(1), self.n])
