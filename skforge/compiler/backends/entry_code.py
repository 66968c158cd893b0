"""The LLVM text of a compiled entry point; see :mod:`.entry` for what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from skforge.compiler.backends.entry_steps import Steps

Refused: TypeAlias = Literal["nothing", "infinite", "not_finite"]
REFUSED: tuple[Refused, ...] = get_args(Refused)

#: Model slots a kernel may have to be called from here.
MAX_SLOTS = 60
#: Numbers of scratch on the stack: rows in the other precision, sums to be transformed.
MAX_SCRATCH = 2048

#: Offsets in Py_buffer, PyObject and PyArrayObject of CPython on 64-bit machines.
_BUF, _NDIM, _FORMAT, _SHAPE, _STRIDES = 0, 36, 40, 48, 56
OB_TYPE, ARRAY_DATA = 8, 16
_PYBUF_FULL_RO = 0x11C
_LLVM = {"float32": "float", "float64": "double", "int64": "i64"}


@dataclass(frozen=True, slots=True)
class EntryKind:
    """What an entry point computes, as far as its code depends on it."""

    n_features: int
    n_outputs: int
    row_dtype: str
    sum_dtype: str
    steps: Steps
    refused: Refused
    last_rows: tuple[int, ...]  # upper end of each batch range but the last
    most_rows: int  # more are left to the ordinary path
    gil_rows: int  # from this many the GIL is released


def write(kind: EntryKind, table: int, array_type: int) -> str:
    """Return the module of an entry point.

    Parameters
    ----------
    kind : EntryKind
        What it computes.
    table : int
        Address of the kernels' table.
    array_type : int
        Address of ``numpy.ndarray``.

    Returns
    -------
    str
        It declares ``skf_*`` functions of CPython, NumPy and the C library.
    """
    return _Writer(kind, table, array_type).text()


class _Writer:
    """Writes the LLVM text of one entry point."""

    def __init__(self, kind: EntryKind, table: int, array_type: int) -> None:
        self.k, self.table, self.array_type = kind, table, array_type
        self.sum = _LLVM[kind.sum_dtype]
        self.suffix = "f" if self.sum == "float" else ""
        self.in_place = kind.steps.result == "values"
        match kind.steps.result:
            case "values":
                self.dtype, self.columns = kind.sum_dtype, kind.n_outputs
            case "both_classes":
                self.dtype, self.columns = kind.sum_dtype, 2
            case "above":
                self.columns = kind.n_outputs
                self.dtype = "int64" if kind.n_outputs == 1 else "float64"
            case "best":
                self.dtype, self.columns = "int64", 1

    def text(self) -> str:
        """Return the module."""
        k = self.k
        item = np.dtype(k.row_dtype).itemsize
        own, other = ("f", "d") if item == 4 else ("d", "f")
        row_bytes = k.n_features * item
        most = k.most_rows
        if not self.in_place:
            most = min(most, MAX_SCRATCH // k.n_outputs)
        return f"""
declare i32 @skf_get_buffer(ptr, ptr, i32)
declare void @skf_release(ptr)
declare void @skf_clear()
declare void @skf_incref(ptr)
declare ptr @skf_save_thread()
declare void @skf_restore_thread(ptr)
declare ptr @skf_empty(i32, ptr, ptr, i32)
declare ptr @skf_descr(i32)
declare {self.sum} @skf_exp{self.suffix}({self.sum})
declare double @skf_log1p(double)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define ptr @skf_entry(ptr %self, ptr %arg) {{
entry:
  %view = alloca [80 x i8], align 16
  %dims = alloca [2 x i64], align 16
  %slots = alloca [{MAX_SLOTS + 4} x i64], align 16
  %type.at = getelementptr i8, ptr %arg, i64 {OB_TYPE}
  %type = load i64, ptr %type.at
  %is.array = icmp eq i64 %type, {self.array_type}
  br i1 %is.array, label %open, label %none
open:
  %failed = call i32 @skf_get_buffer(ptr %arg, ptr %view, i32 {_PYBUF_FULL_RO})
  %opened = icmp eq i32 %failed, 0
  br i1 %opened, label %look, label %forget
forget:
  call void @skf_clear()
  br label %none
look:
{self._field("ndim", _NDIM, "i32")}
  %is.matrix = icmp eq i32 %ndim, 2
  br i1 %is.matrix, label %matrix, label %decline
matrix:
{self._field("format", _FORMAT, "ptr")}
{self._field("shape", _SHAPE, "ptr")}
{self._field("strides", _STRIDES, "ptr")}
{self._field("given", _BUF, "ptr")}
  %code = load i16, ptr %format, align 1
  %is.own = icmp eq i16 %code, {ord(own)}
  %is.other = icmp eq i16 %code, {ord(other)}
  %is.float = or i1 %is.own, %is.other
  %item = select i1 %is.own, i64 {item}, i64 {12 - item}
  %in.item = sub i64 %item, 1
  %n = load i64, ptr %shape
  %columns.at = getelementptr i64, ptr %shape, i64 1
  %columns = load i64, ptr %columns.at
  %is.width = icmp eq i64 %columns, {k.n_features}
  %given.bytes = load i64, ptr %strides
  %step.at = getelementptr i64, ptr %strides, i64 1
  %step = load i64, ptr %step.at
  %is.step = icmp eq i64 %step, %item
  %given.int = ptrtoint ptr %given to i64
  %places = or i64 %given.int, %given.bytes
  %odd = and i64 %places, %in.item
  %is.aligned = icmp eq i64 %odd, 0
  %some = icmp sgt i64 %n, 0
  %few = icmp sle i64 %n, {most}
  %a1 = and i1 %is.float, %is.width
  %a2 = and i1 %is.step, %is.aligned
  %a3 = and i1 %some, %few
  %a4 = and i1 %a1, %a2
  %fits = and i1 %a4, %a3
  br i1 %fits, label %range, label %decline
range:
{self._pick_range()}
  %kernel.at = getelementptr i64, ptr inttoptr (i64 {self.table} to ptr), i64 %base
  %kernel.int = load atomic i64, ptr %kernel.at acquire, align 8
  %ready = icmp ne i64 %kernel.int, 0
  br i1 %ready, label %precision, label %decline
precision:
  br i1 %is.own, label %scan, label %convert
{self._convert(item)}
scan:
  %rows = phi ptr [ %given, %precision ], [ %cast, %converted ]
  %row.bytes = phi i64 [ %given.bytes, %precision ], [ {row_bytes}, %converted ]
{self._scan(item)}
allocate:
  store i64 %n, ptr %dims
  %dims.1 = getelementptr i64, ptr %dims, i64 1
  store i64 {self.columns}, ptr %dims.1
  %descr = call ptr @skf_descr(i32 {np.dtype(self.dtype).num})
  %out = call ptr @skf_empty(i32 {1 + (self.columns > 1)}, ptr %dims, ptr %descr, i32 0)
  %made = icmp ne ptr %out, null
  br i1 %made, label %run, label %forget.view
forget.view:
  call void @skf_clear()
  br label %decline
run:
  %data.at = getelementptr i8, ptr %out, i64 {ARRAY_DATA}
  %data = load ptr, ptr %data.at
{self._sums()}
  %kernel = inttoptr i64 %kernel.int to ptr
  %model.at = getelementptr i64, ptr %kernel.at, i64 1
  %model.int = load i64, ptr %model.at
  %model = inttoptr i64 %model.int to ptr
  %size.at = getelementptr i64, ptr %kernel.at, i64 2
  %size = load i64, ptr %size.at
  %tail = getelementptr i64, ptr %slots, i64 4
  call void @llvm.memcpy.p0.p0.i64(ptr %tail, ptr %model, i64 %size, i1 false)
  %stride = sdiv i64 %row.bytes, {item}
  store ptr %rows, ptr %slots
  %slot.1 = getelementptr i64, ptr %slots, i64 1
  store i64 %n, ptr %slot.1
  %slot.2 = getelementptr i64, ptr %slots, i64 2
  store i64 %stride, ptr %slot.2
  %slot.3 = getelementptr i64, ptr %slots, i64 3
  store ptr %sums, ptr %slot.3
  %long = icmp sge i64 %n, {k.gil_rows}
  br i1 %long, label %free, label %held
free:
  %state = call ptr @skf_save_thread()
  call void %kernel(ptr %slots, ptr null, i64 1)
  call void @skf_restore_thread(ptr %state)
  br label %done
held:
  call void %kernel(ptr %slots, ptr null, i64 1)
  br label %done
done:
  call void @skf_release(ptr %view)
  %count = mul i64 %n, {k.n_outputs}
  br label %divide0
{self._divide()}
{self._transform()}
{self._finish()}
return:
  ret ptr %out
decline:
  call void @skf_release(ptr %view)
  br label %none
none:
  %nothing = inttoptr i64 {id(None)} to ptr
  call void @skf_incref(ptr %nothing)
  ret ptr %nothing
}}
"""

    # ------------------------------------------------------------ rows

    def _field(self, name: str, offset: int, type_: str) -> str:
        return (
            f"  %{name}.at = getelementptr i8, ptr %view, i64 {offset}\n"
            f"  %{name} = load {type_}, ptr %{name}.at"
        )

    def _pick_range(self) -> str:
        """Count three words of the table for each range that ends below n."""
        lines, total = [], "0"
        for i, last in enumerate(self.k.last_rows):
            lines.append(f"  %past{i} = icmp sgt i64 %n, {last}")
            lines.append(f"  %more{i} = select i1 %past{i}, i64 3, i64 0")
            lines.append(f"  %sum{i} = add i64 {total}, %more{i}")
            total = f"%sum{i}"
        lines.append(f"  %base = add i64 {total}, 0")
        return "\n".join(lines)

    def _convert(self, item: int) -> str:
        """Copy rows of the other precision to the stack, in the forest's.

        A number too large for float32 is declined: some sources warn about it.
        """
        columns, wide = self.k.n_features, item == 8
        mine, theirs = ("double", "float") if wide else ("float", "double")
        check = (
            "  %cv.bad = or i1 %cv.was, false"
            if wide
            else "  %cv.bits = bitcast float %cv.y to i32\n"
            f"  %cv.abs = and i32 %cv.bits, {(1 << 31) - 1}\n"
            f"  %cv.inf = icmp eq i32 %cv.abs, {0xFF << 23}\n"
            "  %cv.bad = or i1 %cv.was, %cv.inf"
        )
        return f"""convert:
  %values = mul i64 %n, {columns}
  %is.small = icmp sle i64 %values, {MAX_SCRATCH}
  br i1 %is.small, label %cast.start, label %decline
cast.start:
  %cast = alloca {mine}, i64 %values, align 64
  br label %cast.row
cast.row:
  %cr = phi i64 [ 0, %cast.start ], [ %cr.next, %cast.row.end ]
  %cr.was = phi i1 [ false, %cast.start ], [ %cv.bad, %cast.row.end ]
  %cr.bytes = mul i64 %cr, %given.bytes
  %cr.from = getelementptr i8, ptr %given, i64 %cr.bytes
  %cr.at = mul i64 %cr, {columns}
  %cr.to = getelementptr {mine}, ptr %cast, i64 %cr.at
  br label %cast.value
cast.value:
  %cv = phi i64 [ 0, %cast.row ], [ %cv.next, %cast.value ]
  %cv.was = phi i1 [ %cr.was, %cast.row ], [ %cv.bad, %cast.value ]
  %cv.from = getelementptr {theirs}, ptr %cr.from, i64 %cv
  %cv.x = load {theirs}, ptr %cv.from
  %cv.y = {"fpext" if wide else "fptrunc"} {theirs} %cv.x to {mine}
  %cv.to = getelementptr {mine}, ptr %cr.to, i64 %cv
  store {mine} %cv.y, ptr %cv.to
{check}
  %cv.next = add i64 %cv, 1
  %cv.more = icmp slt i64 %cv.next, {columns}
  br i1 %cv.more, label %cast.value, label %cast.row.end
cast.row.end:
  %cr.next = add i64 %cr, 1
  %cr.more = icmp slt i64 %cr.next, %n
  br i1 %cr.more, label %cast.row, label %converted
converted:
  br i1 %cv.bad, label %decline, label %scan"""

    def _scan(self, item: int) -> str:
        """Decline when a value is one the source refuses to predict on.

        Exponent bits all set means inf or NaN; the fraction tells them apart. A row is
        read in vectors, then the values left over one at a time.
        """
        if self.k.refused == "nothing":
            return "  br label %allocate"
        lanes, whole = 64 // item, self.k.n_features // (64 // item) * (64 // item)
        parts = [
            """  br label %scan.row
scan.row:
  %sr = phi i64 [ 0, %scan ], [ %sr.next, %scan.row.end ]
  %sr.bytes = mul i64 %sr, %row.bytes
  %sr.at = getelementptr i8, ptr %rows, i64 %sr.bytes"""
        ]
        bad, block = "false", "scan.row"
        for name, start, end, n in (
            ("wide", 0, whole, lanes),
            ("tail", whole, self.k.n_features, 1),
        ):
            if start < end:
                parts.append(self._scan_part(name, block, start, end, n, item, bad))
                bad, block = f"%bad.{name}", f"{name}.end"
        parts.append(f"""  br label %scan.row.end
scan.row.end:
  %sr.next = add i64 %sr, 1
  %sr.more = icmp slt i64 %sr.next, %n
  %sr.good = xor i1 {bad}, true
  %sr.on = and i1 %sr.more, %sr.good
  br i1 %sr.on, label %scan.row, label %scan.end
scan.end:
  br i1 {bad}, label %decline, label %allocate""")
        return "\n".join(parts)

    def _scan_part(
        self, name: str, before: str, start: int, end: int, n: int, item: int, bad: str
    ) -> str:
        """Return the loop over columns ``start .. end`` in steps of ``n`` lanes."""
        bits = 8 * item
        exponent = (0xFF << 23) if item == 4 else (0x7FF << 52)
        test = "eq" if self.k.refused == "infinite" else "uge"
        t = f"i{bits}" if n == 1 else f"<{n} x i{bits}>"
        mask = "i1" if n == 1 else f"<{n} x i1>"

        def all_lanes(value: int) -> str:
            one = f"i{bits} {value}"
            return str(value) if n == 1 else "<" + ", ".join([one] * n) + ">"

        any_ = (
            f"  %any.{name} = icmp ne {t} %acc.{name}.n, 0"
            if n == 1
            else f"  %lane.{name} = icmp ne {t} %acc.{name}.n, zeroinitializer\n"
            f"  %lanes.{name} = bitcast {mask} %lane.{name} to i{n}\n"
            f"  %any.{name} = icmp ne i{n} %lanes.{name}, 0"
        )
        zero = "0" if n == 1 else "zeroinitializer"
        return f"""  br label %{name}.l
{name}.l:
  %v.{name} = phi i64 [ {start}, %{before} ], [ %v.{name}.n, %{name}.l ]
  %acc.{name} = phi {t} [ {zero}, %{before} ], [ %acc.{name}.n, %{name}.l ]
  %p.{name} = getelementptr i{bits}, ptr %sr.at, i64 %v.{name}
  %b.{name} = load {t}, ptr %p.{name}, align {item}
  %m.{name} = and {t} %b.{name}, {all_lanes((1 << (bits - 1)) - 1)}
  %t.{name} = icmp {test} {t} %m.{name}, {all_lanes(exponent)}
  %s.{name} = sext {mask} %t.{name} to {t}
  %acc.{name}.n = or {t} %acc.{name}, %s.{name}
  %v.{name}.n = add i64 %v.{name}, {n}
  %more.{name} = icmp slt i64 %v.{name}.n, {end}
  br i1 %more.{name}, label %{name}.l, label %{name}.end
{name}.end:
{any_}
  %bad.{name} = or i1 {bad}, %any.{name}"""

    # ------------------------------------------------------------ sums

    def _sums(self) -> str:
        """Put the sums in the output, or on the stack where the shape changes."""
        if self.in_place:
            return "  %sums = getelementptr i8, ptr %data, i64 0"
        return (
            f"  %scratch = mul i64 %n, {self.k.n_outputs}\n"
            f"  %sums = alloca {self.sum}, i64 %scratch, align 64"
        )

    def _loop(self, name: str, count: str, body: str, after: str) -> str:
        """Return ``for %i.name in 0 .. count`` (count > 0), then a jump."""
        return f"""  br label %{name}.loop
{name}.loop:
  %i.{name} = phi i64 [ 0, %{name} ], [ %i.{name}.next, %{name}.latch ]
{body}
  br label %{name}.latch
{name}.latch:
  %i.{name}.next = add i64 %i.{name}, 1
  %i.{name}.more = icmp slt i64 %i.{name}.next, {count}
  br i1 %i.{name}.more, label %{name}.loop, label %{after}"""

    def _divide(self) -> str:
        t, parts = self.sum, []
        for i, divisor in enumerate(self.k.steps.divisors):
            name = f"divide{i}"
            body = f"""  %at.{name} = getelementptr {t}, ptr %sums, i64 %i.{name}
  %x.{name} = load {t}, ptr %at.{name}
  %y.{name} = fdiv {t} %x.{name}, {_literal(divisor, self.k.sum_dtype)}
  store {t} %y.{name}, ptr %at.{name}"""
            after = f"divide{i + 1}"
            parts.append(f"{name}:\n" + self._loop(name, "%count", body, after))
        last = len(self.k.steps.divisors)
        return "\n".join([*parts, f"divide{last}:\n  br label %transform"])

    def _transform(self) -> str:
        kind = self.k.steps.function
        if kind == "identity":
            return "transform:\n  br label %finish"
        if kind == "softmax":
            return self._softmax()
        body = "\n".join(
            [
                f"  %t.at = getelementptr {self.sum}, ptr %sums, i64 %i.transform",
                f"  %t.x = load {self.sum}, ptr %t.at",
                *(f"  {line}" for line in self._function(kind)),
                f"  store {self.sum} %t.y, ptr %t.at",
            ]
        )
        return "transform:\n" + self._loop("transform", "%count", body, "finish")

    def _function(self, kind: str) -> list[str]:
        """Return the function of one value: from ``%t.x`` to ``%t.y``."""
        t, exp = self.sum, f"call {self.sum} @skf_exp{self.suffix}({self.sum}"
        limit = _literal(88.7, self.k.sum_dtype)
        slope = _literal(-self.k.steps.parameter, self.k.sum_dtype)
        lines = {
            "exp": [f"%t.y = {exp} %t.x)"],
            "hinge": [
                f"%t.p = fcmp ogt {t} %t.x, 0.0",
                f"%t.y = select i1 %t.p, {t} 1.0, {t} 0.0",
            ],
            "sigmoid": [  # NaN stays NaN, as it does in NumPy's minimum
                f"%t.n = fneg {t} %t.x",
                f"%t.c = fcmp ult {t} %t.n, {limit}",
                f"%t.m = select i1 %t.c, {t} %t.n, {t} {limit}",
                f"%t.e = {exp} %t.m)",
                f"%t.s = fadd {t} %t.e, 1.0",
                f"%t.y = fdiv {t} 1.0, %t.s",
            ],
            "logistic": [
                f"%t.n = fmul {t} {slope}, %t.x",
                f"%t.e = {exp} %t.n)",
                f"%t.s = fadd {t} 1.0, %t.e",
                f"%t.y = fdiv {t} 1.0, %t.s",
            ],
            "signed_square": [
                f"%t.p = fcmp ogt {t} %t.x, 0.0",
                f"%t.n = fcmp olt {t} %t.x, 0.0",
                f"%t.o = uitofp i1 %t.p to {t}",
                f"%t.m = uitofp i1 %t.n to {t}",
                f"%t.g = fsub {t} %t.o, %t.m",
                f"%t.h = fmul {t} %t.g, %t.x",
                f"%t.y = fmul {t} %t.h, %t.x",
            ],
            "log1p_exp": [
                f"%t.e = {exp} %t.x)",
                "%t.y = call double @skf_log1p(double %t.e)",
            ],
        }
        return lines[kind]

    def _softmax(self) -> str:
        """Float exponentials of x - max, their float64 sum in order, a division."""
        t, k = self.sum, self.k.n_outputs
        suffix = "f" if t == "float" else ""
        lines = [
            f"  %s.row = mul i64 %i.transform, {k}",
            f"  %s.at = getelementptr {t}, ptr %sums, i64 %s.row",
            "  br label %max",
        ]

        def inner(name: str, carry: str, init: str, body: str, after: str) -> list[str]:
            return [
                f"{name}:",
                f"  br label %{name}.l",
                f"{name}.l:",
                f"  %j.{name} = phi i64 [ 0, %{name} ], [ %j.{name}.n, %{name}.l ]",
                f"  %c.{name} = phi {carry} [ {init}, %{name} ], "
                f"[ %c.{name}.n, %{name}.l ]",
                f"  %p.{name} = getelementptr {t}, ptr %s.at, i64 %j.{name}",
                f"  %x.{name} = load {t}, ptr %p.{name}",
                body,
                f"  %j.{name}.n = add i64 %j.{name}, 1",
                f"  %m.{name} = icmp slt i64 %j.{name}.n, {k}",
                f"  br i1 %m.{name}, label %{name}.l, label %{after}",
            ]

        low = "0xFFF0000000000000"
        lines += inner(
            "max",
            t,
            low,
            f"  %g.max = fcmp ogt {t} %x.max, %c.max\n"
            f"  %c.max.n = select i1 %g.max, {t} %x.max, {t} %c.max",
            "powers",
        )
        wide = "%e.powers" if t == "double" else "%w.powers"
        widen = "" if t == "double" else "  %w.powers = fpext float %e.powers to double"
        lines += inner(
            "powers",
            "double",
            "0.0",
            f"  %d.powers = fsub {t} %x.powers, %c.max.n\n"
            f"  %e.powers = call {t} @skf_exp{suffix}({t} %d.powers)\n"
            f"  store {t} %e.powers, ptr %p.powers\n{widen}\n"
            f"  %c.powers.n = fadd double %c.powers, {wide}",
            "total",
        )
        narrow = (
            "  %total.t = fadd double %c.powers.n, 0.0"
            if t == "double"
            else "  %total.t = fptrunc double %c.powers.n to float"
        )
        lines += ["total:", narrow, "  br label %scale"]
        lines += inner(
            "scale",
            "i1",
            "false",
            f"  %q.scale = fdiv {t} %x.scale, %total.t\n"
            f"  store {t} %q.scale, ptr %p.scale\n  %c.scale.n = or i1 %c.scale, true",
            "row.done",
        )
        lines.append("row.done:")
        body = "\n".join(lines)
        return "transform:\n" + self._loop("transform", "%n", body, "finish")

    # ------------------------------------------------------------ results

    def _finish(self) -> str:
        t, steps = self.sum, self.k.steps
        match steps.result:
            case "values":
                return "finish:\n  br label %return"
            case "both_classes":
                count, body = "%n", self._both_classes()
            case "above":
                out = _LLVM[self.dtype]
                convert = "uitofp" if out == "double" else "zext"
                cut = _literal(steps.cut, self.k.sum_dtype)
                count, body = (
                    "%count",
                    f"""  %l.at = getelementptr {t}, ptr %sums, i64 %i.finish
  %l.p = load {t}, ptr %l.at
  %l.g = fcmp {steps.comparison} {t} %l.p, {cut}
  %l.n = {convert} i1 %l.g to {out}
  %l.to = getelementptr {out}, ptr %data, i64 %i.finish
  store {out} %l.n, ptr %l.to""",
                )
            case "best":
                count, body = "%n", self._best()
        return "finish:\n" + self._loop("finish", count, body, "return")

    def _both_classes(self) -> str:
        t = self.sum
        return f"""  %b.at = getelementptr {t}, ptr %sums, i64 %i.finish
  %b.p = load {t}, ptr %b.at
  %b.q = fsub {t} 1.0, %b.p
  %b.i = mul i64 %i.finish, 2
  %b.to = getelementptr {t}, ptr %data, i64 %b.i
  store {t} %b.q, ptr %b.to
  %b.to1 = getelementptr {t}, ptr %b.to, i64 1
  store {t} %b.p, ptr %b.to1"""

    def _best(self) -> str:
        """Return the place of a row's first greatest value, or of its first NaN."""
        t, k = self.sum, self.k.n_outputs
        return f"""  %l.row = mul i64 %i.finish, {k}
  %l.at = getelementptr {t}, ptr %sums, i64 %l.row
  %l.first = load {t}, ptr %l.at
  br label %best
best:
  %best.j = phi i64 [ 0, %finish.loop ], [ %best.j.n, %best ]
  %best.b = phi i64 [ 0, %finish.loop ], [ %best.b.n, %best ]
  %best.v = phi {t} [ %l.first, %finish.loop ], [ %best.v.n, %best ]
  %best.at = getelementptr {t}, ptr %l.at, i64 %best.j
  %best.x = load {t}, ptr %best.at
  %best.u = fcmp ugt {t} %best.x, %best.v
  %best.o = fcmp ord {t} %best.v, %best.v
  %best.g = and i1 %best.u, %best.o
  %best.b.n = select i1 %best.g, i64 %best.j, i64 %best.b
  %best.v.n = select i1 %best.g, {t} %best.x, {t} %best.v
  %best.j.n = add i64 %best.j, 1
  %best.m = icmp slt i64 %best.j.n, {k}
  br i1 %best.m, label %best, label %best.end
best.end:
  %l.to = getelementptr i64, ptr %data, i64 %i.finish
  store i64 %best.b.n, ptr %l.to"""


def _literal(value: float, dtype: str) -> str:
    """Return a float constant: LLVM wants a float's value as a double's bits."""
    exact = float(np.dtype(dtype).type(value))
    return f"0x{int(np.float64(exact).view(np.uint64)):016X}"
