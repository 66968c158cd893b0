"""The LLVM text of a compiled entry point; :mod:`.entry` describes what it does."""

from __future__ import annotations

import numpy as np

from skforge.compiler.outputs.steps import EntryKind
from skforge.compiler.runtime.entry.results import ResultWriter, loop

#: Most model slots of a kernel that an entry can call.
MAX_SLOTS = 60
#: Numbers of scratch on the stack: converted rows, sums before the transform.
MAX_SCRATCH = 2048

#: Offsets in PyObject, PyArrayObject and PyArray_Descr on 64-bit machines.
OB_TYPE, ARRAY_DATA, ARRAY_NDIM, ARRAY_SHAPE, ARRAY_STRIDES = 8, 16, 24, 32, 40
ARRAY_DTYPE, DTYPE_KIND = 56, 24
#: Kind, character and byte order of the row dtypes, as three bytes of a number.
DTYPE_CODES = {
    dtype: int.from_bytes(f"f{np.dtype(dtype).char}=".encode(), "little")
    for dtype in ("float32", "float64")
}


def write(kind: EntryKind) -> str:
    """Return the module of an entry point; it contains no addresses.

    It declares ``skf_*`` functions of CPython, NumPy and the C library, and

    - ``skf_table``, the kernel table, and ``skf_none``, ``skf_ndarray`` and
      ``skf_take``: Python's None, NumPy's array class, and a function that turns class
      indices into labels;
    - ``skf_counts``: the calls that the entry has answered, and their rows, to which
      it adds while the thread holds the GIL;
    - ``skf_method``'s two words ``skf_owner``: the method's object, and the function to
      call if the entry declines; both 0 if the entry is not a method.
    """
    return _Writer(kind).text()


class _Writer(ResultWriter):
    """Writes the LLVM text of one entry point."""

    def __init__(self, kind: EntryKind) -> None:
        self.k = kind
        super().__init__(kind.steps, kind.n_outputs, kind.sum_dtype, kind.takes)

    def text(self) -> str:
        """Return the module's text."""
        k = self.k
        item = np.dtype(k.row_dtype).itemsize
        own, other = DTYPE_CODES["float32"], DTYPE_CODES["float64"]
        if item == 8:
            own, other = other, own
        row_bytes = k.n_features * item
        pfor = "@skf_parallel" if k.shared else "null"
        most = k.most_rows
        if not self.in_place:
            most = min(most, MAX_SCRATCH // k.n_outputs)
        return f"""
@skf_table = external global i64
@skf_counts = external global [2 x i64]
@skf_owner = external global [2 x i64]
@skf_ndarray = external global i8
@skf_none = external global i8
@skf_take = external global i8
{self._sharing()}
declare ptr @skf_vectorcall(ptr, ptr, i64, ptr)
declare ptr @skf_call(ptr, ...)
declare void @skf_decref(ptr)
declare void @skf_clear()
declare void @skf_incref(ptr)
declare ptr @skf_save_thread()
declare void @skf_restore_thread(ptr)
declare ptr @skf_empty(i32, ptr, ptr, i32)
declare ptr @skf_descr(i32)
declare float @skf_expf(float)
declare double @skf_exp(double)
declare float @llvm.fabs.f32(float)
declare double @skf_log1p(double)
declare void @skf_power(ptr, ptr, ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

{self.labels()}
{self._callers(most)}
define internal ptr @skf_body(ptr %arg, i64 %most) noinline {{
entry:
  %dims = alloca [2 x i64], align 16
  %slots = alloca [{MAX_SLOTS + 4} x i64], align 16
{_field("type", "arg", OB_TYPE, "i64")}
  %is.array = icmp eq i64 %type, ptrtoint (ptr @skf_ndarray to i64)
  br i1 %is.array, label %look, label %decline
look:
{_field("ndim", "arg", ARRAY_NDIM, "i32")}
  %is.matrix = icmp eq i32 %ndim, 2
  br i1 %is.matrix, label %matrix, label %decline
matrix:
{_field("dtype", "arg", ARRAY_DTYPE, "ptr")}
{_field("shape", "arg", ARRAY_SHAPE, "ptr")}
{_field("strides", "arg", ARRAY_STRIDES, "ptr")}
{_field("given", "arg", ARRAY_DATA, "ptr")}
{_field("kinds", "dtype", DTYPE_KIND, "i32")}
  %code = and i32 %kinds, {0xFFFFFF}
  %is.own = icmp eq i32 %code, {own}
  %is.other = icmp eq i32 %code, {other}
  %is.float = or i1 %is.own, {"false" if np.isfinite(k.limit) else "%is.other"}
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
  %both = or i64 %given.int, %given.bytes
  %odd = and i64 %both, %in.item
  %is.aligned = icmp eq i64 %odd, 0
  %some = icmp sgt i64 %n, 0
  %few = icmp sle i64 %n, %most
  %a1 = and i1 %is.float, %is.width
  %a2 = and i1 %is.step, %is.aligned
  %a3 = and i1 %some, %few
  %a4 = and i1 %a1, %a2
  %fits = and i1 %a4, %a3
  br i1 %fits, label %range, label %decline
{self._share()}
{self._pick_range()}
  %kernel.at = getelementptr i64, ptr @skf_table, i64 %base
  %kernel.int = load atomic i64, ptr %kernel.at acquire, align 8
  %model.at = getelementptr i64, ptr %kernel.at, i64 1
  %model.int = load i64, ptr %model.at
  %size.at = getelementptr i64, ptr %kernel.at, i64 2
  %size = load i64, ptr %size.at
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
  br i1 %made, label %run, label %forget
forget:
  call void @skf_clear()
  br label %decline
run:
  %data.at = getelementptr i8, ptr %out, i64 {ARRAY_DATA}
  %data = load ptr, ptr %data.at
{self._sums()}
  %kernel = inttoptr i64 %kernel.int to ptr
  %model = inttoptr i64 %model.int to ptr
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
  %several = icmp sgt i64 %threads, 1
  %frees = or i1 %long, %several
  br i1 %frees, label %free, label %held
free:
  %state = call ptr @skf_save_thread()
  call void %kernel(ptr %slots, ptr {pfor}, i64 %threads)
  call void @skf_restore_thread(ptr %state)
  br label %done
held:
  call void %kernel(ptr %slots, ptr null, i64 1)
  br label %done
done:
  %calls = load <2 x i64>, ptr @skf_counts, align 8
  %call = insertelement <2 x i64> <i64 1, i64 0>, i64 %n, i64 1
  %calls.next = add <2 x i64> %calls, %call
  store <2 x i64> %calls.next, ptr @skf_counts, align 8
  %count = mul i64 %n, {k.n_outputs}
  br label %divide0
{self.results()}
{self._return()}
decline:
  ret ptr null
}}
"""

    def _callers(self, most: int) -> str:
        """Return the two functions that Python calls: the entry, and its method."""
        return f"""define ptr @skf_entry(ptr %self, ptr %arg) {{
  %found = call ptr @skf_body(ptr %arg, i64 {most})
  %is.found = icmp ne ptr %found, null
  br i1 %is.found, label %return, label %none
return:
  ret ptr %found
none:
  call void @skf_incref(ptr @skf_none)
  ret ptr @skf_none
}}

define ptr @skf_method(ptr %self, ptr %args, i64 %nargs, ptr %names) {{
  %owner = load i64, ptr @skf_owner
  %is.two = icmp eq i64 %nargs, 2
  %is.plain = icmp eq ptr %names, null
  %is.call = and i1 %is.two, %is.plain
  br i1 %is.call, label %look, label %ask
look:
  %object = load i64, ptr %args
  %is.owner = icmp eq i64 %object, %owner
  br i1 %is.owner, label %try, label %ask
try:
  %arg.at = getelementptr ptr, ptr %args, i64 1
  %arg = load ptr, ptr %arg.at
  %found = call ptr @skf_body(ptr %arg, i64 {min(most, self.k.method_rows)})
  %is.found = icmp ne ptr %found, null
  br i1 %is.found, label %return, label %ask
return:
  ret ptr %found
ask:
  %function.at = getelementptr i64, ptr @skf_owner, i64 1
  %function = load ptr, ptr %function.at
  %answer = call ptr @skf_vectorcall(ptr %function, ptr %args, i64 %nargs, ptr %names)
  ret ptr %answer
}}
"""

    # ------------------------------------------------------------ rows

    def _sharing(self) -> str:
        """Declare what a call on several threads needs."""
        if not self.k.shared:
            return ""
        return """@skf_started = external global i64
@skf_shares = external global ptr
declare i32 @skf_limit()
declare void @skf_parallel(ptr, ptr, i64, i64)
declare i64 @llvm.smin.i64(i64, i64)"""

    def _share(self) -> str:
        """Find the step of the table of shares that a batch belongs to."""
        if not self.k.shared:
            return "range:\n  %threads = add i64 0, 1"
        return """range:
  %sh.steps = load atomic ptr, ptr @skf_shares acquire, align 8
  br label %sh.next.step
sh.next.step:
  %sh.at = phi ptr [ %sh.steps, %range ], [ %sh.next, %sh.next.step ]
  %sh.next = getelementptr i64, ptr %sh.at, i64 3
  %sh.first.rows = load i64, ptr %sh.next
  %sh.is.past = icmp sge i64 %n, %sh.first.rows
  br i1 %sh.is.past, label %sh.next.step, label %sh.found
sh.found:
  %sh.planned.at = getelementptr i64, ptr %sh.at, i64 2
  %sh.planned = load i64, ptr %sh.planned.at
  %sh.is.alone = icmp eq i64 %sh.planned, 1
  br i1 %sh.is.alone, label %sh.chosen, label %sh.ask
sh.ask:
  %sh.limit.int = call i32 @skf_limit()
  %sh.limit = sext i32 %sh.limit.int to i64
  %sh.is.limited = icmp slt i64 %sh.limit, 2
  br i1 %sh.is.limited, label %sh.chosen, label %sh.those
sh.those:
  %sh.wanted = call i64 @llvm.smin.i64(i64 %sh.planned, i64 %sh.limit)
  %sh.started = load atomic i64, ptr @skf_started acquire, align 8
  %sh.workers = add i64 %sh.started, 1
  %sh.enough = icmp sge i64 %sh.workers, %sh.wanted
  %sh.others = icmp sgt i64 %sh.wanted, 0
  %sh.can = and i1 %sh.enough, %sh.others
  %sh.place.at = getelementptr i64, ptr %sh.at, i64 1
  %sh.place = load i64, ptr %sh.place.at
  br i1 %sh.can, label %sh.chosen, label %decline
sh.chosen:
  %threads = phi i64 [ 1, %sh.found ], [ 1, %sh.ask ], [ %sh.wanted, %sh.those ]
  %own.place = phi i64 [ -1, %sh.found ], [ -1, %sh.ask ], [ %sh.place, %sh.those ]"""

    def _pick_range(self) -> str:
        """Add three words of the table for each range that ends below the batch."""
        lines, total = [], "0"
        for i, last in enumerate(self.k.last_rows):
            lines.append(f"  %past{i} = icmp sgt i64 %n, {last}")
            lines.append(f"  %more{i} = select i1 %past{i}, i64 3, i64 0")
            lines.append(f"  %sum{i} = add i64 {total}, %more{i}")
            total = f"%sum{i}"
        if self.k.shared:
            lines.append("  %is.free = icmp slt i64 %own.place, 0")
            base = f"select i1 %is.free, i64 {total}, i64 %own.place"
        else:
            base = f"add i64 {total}, 0"
        lines.append(f"  %base = {base}")
        return "\n".join(lines)

    def _convert(self, item: int) -> str:
        """Convert rows of the other precision to the forest's, on the stack.

        A number too large for float32 is declined, as some sources warn about it.
        """
        columns, wide = self.k.n_features, item == 8
        mine, theirs = ("double", "float") if wide else ("float", "double")
        value = f"""  %cv.from = getelementptr {theirs}, ptr %cr.from, i64 %i.cast.value
  %cv.x = load {theirs}, ptr %cv.from
  %cv.y = {"fpext" if wide else "fptrunc"} {theirs} %cv.x to {mine}
  %cv.to = getelementptr {mine}, ptr %cr.to, i64 %i.cast.value
  store {mine} %cv.y, ptr %cv.to"""
        carried: tuple[tuple[str, str, str], ...] = ()
        outer, kept, end = carried, "", "br label %scan"
        if not wide:
            value += f"""
  %cv.bits = bitcast float %cv.y to i32
  %cv.abs = and i32 %cv.bits, {(1 << 31) - 1}
  %cv.inf = icmp eq i32 %cv.abs, {0xFF << 23}
  %bad.n = or i1 %bad, %cv.inf"""
            carried, outer = (("bad", "i1", "%was"),), (("was", "i1", "false"),)
            kept = "  %was.n = or i1 %bad.n, false\n"
            end = "br i1 %was.n, label %decline, label %scan"
        row = f"""  %cr.bytes = mul i64 %i.cast.row, %given.bytes
  %cr.from = getelementptr i8, ptr %given, i64 %cr.bytes
  %cr.at = mul i64 %i.cast.row, {columns}
  %cr.to = getelementptr {mine}, ptr %cast, i64 %cr.at
  br label %cast.value
{loop("cast.value", columns, value, "cast.row.end", *carried)}
cast.row.end:
{kept}"""
        return f"""convert:
  %values = mul i64 %n, {columns}
  %is.small = icmp sle i64 %values, {MAX_SCRATCH}
  br i1 %is.small, label %cast.start, label %decline
cast.start:
  %cast = alloca {mine}, i64 %values, align 64
  br label %cast.row
{loop("cast.row", "%n", row, "converted", *outer)}
converted:
  {end}"""

    def _scan(self, item: int) -> str:
        """Decline if the source refuses to predict on a value.

        All exponent bits set means inf or NaN; the fraction tells them apart. Rows are
        read in vectors, then remaining values one at a time.
        """
        if self.k.refused == "nothing":
            return "  br label %allocate"
        lanes = 64 // item
        vectors, rest = divmod(self.k.n_features, lanes)
        parts = [
            """  br label %scan.row
scan.row:
  %sr = phi i64 [ 0, %scan ], [ %sr.next, %scan.row.end ]
  %sr.bytes = mul i64 %sr, %row.bytes
  %sr.at = getelementptr i8, ptr %rows, i64 %sr.bytes"""
        ]
        bad = "false"
        for name, start, count, n in (
            ("wide", 0, vectors * lanes, lanes),
            ("rest", self.k.n_features - rest, rest, 1),
        ):
            if count:
                parts.append(self._scan_part(name, start * item, count, n, item, bad))
                bad = f"%bad.{name}"
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
        self, name: str, start: int, count: int, n: int, item: int, bad: str
    ) -> str:
        """Return the loop over values, ``n`` at a time, from byte ``start``."""
        bits = 8 * item
        exponent = (0xFF << 23) if item == 4 else (0x7FF << 52)
        test = "eq" if self.k.refused == "infinite" else "uge"
        limit = int(np.array(self.k.limit, f"f{item}").view(f"u{item}"))
        # scalars, as code for vectors of one lane has more instructions
        t, mask = f"<{n} x i{bits}>", f"<{n} x i1>"
        zero, any_lane = "zeroinitializer", f"bitcast {mask} %lane.{name} to i{n}"
        if n == 1:
            t, mask, zero, any_lane = (
                f"i{bits}",
                "i1",
                "0",
                f"and i1 %lane.{name}, true",
            )

        def all_lanes(value: int) -> str:
            one = f"i{bits} {value}"
            return str(value) if n == 1 else "<" + ", ".join([one] * n) + ">"

        tested = f"  %t.{name} = icmp {test} {t} %m.{name}, {all_lanes(limit)}"
        if test == "eq" and limit != exponent:  # from the limit up to infinity
            tested = (
                f"  %d.{name} = sub {t} %m.{name}, {all_lanes(limit)}\n"
                f"  %t.{name} = icmp ule {t} %d.{name}, {all_lanes(exponent - limit)}"
            )
        body = f"""  %p.{name} = getelementptr i{bits}, ptr %from.{name}, i64 %i.{name}
  %b.{name} = load {t}, ptr %p.{name}, align {item}
  %m.{name} = and {t} %b.{name}, {all_lanes((1 << (bits - 1)) - 1)}
{tested}
  %s.{name} = sext {mask} %t.{name} to {t}
  %acc.{name}.n = or {t} %acc.{name}, %s.{name}"""
        carried = f"acc.{name}", t, zero
        return f"""  %from.{name} = getelementptr i8, ptr %sr.at, i64 {start}
  br label %{name}
{loop(name, count, body, f"{name}.end", carried, step=n)}
{name}.end:
  %lane.{name} = icmp ne {t} %acc.{name}.n, {zero}
  %lanes.{name} = {any_lane}
  %any.{name} = icmp ne i{n} %lanes.{name}, 0
  %bad.{name} = or i1 {bad}, %any.{name}"""


def _field(name: str, base: str, offset: int, type_: str) -> str:
    return (
        f"  %{name}.at = getelementptr i8, ptr %{base}, i64 {offset}\n"
        f"  %{name} = load {type_}, ptr %{name}.at"
    )
