"""Python entry points compiled with the kernels: a call without any wrapper.

``ctypes`` costs 4 us a call and NumPy's own checks about as much, several times what
walking a row costs. So the checks, the output array and the transform are compiled
too, as a C function that Python calls directly (a ``PyCFunction``; no C extension)::

    entry(rows):
      if type(rows) is not numpy.ndarray: return None
      view = buffer(rows)
      if not 2-d, other dtype, other width, gaps between columns: return None
      if a value is one the source refuses (inf): return None
      if no kernel is compiled for this many rows: return None
      out = numpy.empty(...)
      kernel(view, out)           # without the GIL when it is worth it
      transform(out)
      return out

``None`` means "not for me": the caller takes its ordinary path, which validates, warns
and raises as the source does.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any, Literal, TypeAlias

import numpy as np

from skforge.compiler.backends.llvm_jit import JitModule, compile_functions
from skforge.compiler.forest import Forest
from skforge.compiler.target import Target

Output: TypeAlias = Literal["raw", "transformed", "both_classes", "labels"]
Refused: TypeAlias = Literal["nothing", "infinite", "not_finite"]

#: Model slots a kernel may have to be called from here.
MAX_SLOTS = 60
#: Numbers of scratch on the stack (transforms that change shape).
MAX_SCRATCH = 4096
#: Work, in rows * hops, from which the GIL is released: about 20 us.
GIL_WORK = 30_000

_TRANSFORMS = ("identity", "sigmoid", "exp", "hinge", "softmax")


@dataclass(frozen=True, slots=True)
class EntryKind:
    """What an entry point computes, as far as its code depends on it."""

    n_features: int
    n_outputs: int
    row_dtype: str
    sum_dtype: str
    divisor: int
    transform: str
    output: Output
    refused: Refused
    last_rows: tuple[int, ...]  # upper end of each batch range
    serial_rows: int  # most rows taken here (more are worth several threads)
    gil_rows: int  # from this many the GIL is released


class KernelTable:
    """Addresses of the kernels of each batch range, read by the compiled entry.

    A range is (kernel, model slots, their number); 0 where none is compiled yet.
    """

    def __init__(self, n_ranges: int) -> None:
        self._words = (ctypes.c_int64 * (3 * max(1, n_ranges)))()
        self._kept: list[Any] = [None] * n_ranges

    @property
    def address(self) -> int:
        """Where the table is."""
        return ctypes.addressof(self._words)

    def fill(self, index: int, kernel: int, slots: bytes, keep: object) -> None:
        """Publish a kernel; ``keep`` holds its code and data alive."""
        held = ctypes.create_string_buffer(slots, len(slots))
        self._kept[index] = (held, keep)
        self._words[3 * index + 1] = ctypes.addressof(held)
        self._words[3 * index + 2] = len(slots)
        self._words[3 * index] = kernel  # last: only now may the entry use it


class _Holder:
    """Owns everything an entry needs; it is the function's ``self``."""

    def __init__(self, jit: JitModule, table: KernelTable, name: bytes) -> None:
        self.jit, self.table, self.name = jit, table, name
        self.definition = _MethodDef()


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_O = 0x0008


def supports(forest: Forest) -> bool:
    """Whether this process and forest can have entry points.

    They read CPython's object layout: other interpreters and free-threaded builds
    take the ordinary path, as do markers for missing values other than NaN.
    """
    return (
        sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and bool(np.isnan(forest.missing_value))
        and forest.transform.kind in _TRANSFORMS
        and forest.transform.divisor == 1
        and _numpy_api() is not None
    )


def build_entry(kind: EntryKind, table: KernelTable, target: Target) -> Any:
    """Compile an entry point and return it as a Python function of one argument."""
    api = _numpy_api()
    assert api is not None
    symbols = dict(_python_symbols())
    symbols["skf_empty"], symbols["skf_descr"] = api.empty, api.descr_from_type
    text = _Writer(kind, table.address, api.array_type).text()
    jit = compile_functions([text], target, symbols)
    holder = _Holder(jit, table, b"predict")
    holder.definition.name = holder.name
    holder.definition.function = jit.address("skf_entry")
    holder.definition.flags = _METH_O
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function = make(ctypes.addressof(holder.definition), holder, None)
    assert isinstance(function, BuiltinFunctionType)
    return function


# ------------------------------------------------------------ the process


@dataclass(frozen=True, slots=True)
class _NumpyApi:
    array_type: int
    empty: int
    descr_from_type: int


@lru_cache(maxsize=1)
def _numpy_api() -> _NumpyApi | None:
    """Return NumPy's C functions from its table, or None if it is not as expected."""
    try:
        from numpy._core import (  # type: ignore[attr-defined, unused-ignore]
            _multiarray_umath as core,
        )
    except ImportError:  # NumPy 1
        from numpy.core import (  # type: ignore[attr-defined, no-redef, unused-ignore]
            _multiarray_umath as core,
        )
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = (
        ctypes.c_void_p,
        (ctypes.py_object, ctypes.c_char_p),
    )
    capsule = getattr(core, "_ARRAY_API", None)
    if capsule is None:
        return None
    table = ctypes.cast(pointer(capsule, None), ctypes.POINTER(ctypes.c_void_p))
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(table[0])()
    if version >> 24 not in (1, 2) or table[2] != id(np.ndarray):
        return None
    empty, descr = table[184], table[45]
    if not empty or not descr:
        return None
    return _NumpyApi(id(np.ndarray), empty, descr)


@lru_cache(maxsize=1)
def _python_symbols() -> tuple[tuple[str, int], ...]:
    names = {
        "skf_get_buffer": "PyObject_GetBuffer",
        "skf_release": "PyBuffer_Release",
        "skf_clear": "PyErr_Clear",
        "skf_incref": "Py_IncRef",
        "skf_save_thread": "PyEval_SaveThread",
        "skf_restore_thread": "PyEval_RestoreThread",
    }
    found = {
        symbol: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        for symbol, name in names.items()
    }
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    for name in ("expf", "exp"):
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        found[f"skf_{name}"] = address
    return tuple((name, int(address or 0)) for name, address in found.items())


# ------------------------------------------------------------ the code

#: Offsets in Py_buffer, PyObject and PyArrayObject of CPython on 64-bit machines.
_BUF, _ITEMSIZE, _NDIM, _FORMAT, _SHAPE, _STRIDES = 0, 24, 36, 40, 48, 56
_OB_TYPE, _ARRAY_DATA = 8, 16
_PYBUF_FULL_RO = 0x11C
_TYPE_NUMBERS = {"float32": 11, "float64": 12, "int64": 7}
_LLVM = {"float32": "float", "float64": "double"}


class _Writer:
    """Writes the LLVM text of one entry point."""

    def __init__(self, kind: EntryKind, table: int, array_type: int) -> None:
        self.k, self.table, self.array_type = kind, table, array_type
        self.sum = _LLVM[kind.sum_dtype]
        self.width = np.dtype(kind.sum_dtype).itemsize
        self.in_place = kind.output in ("raw", "transformed")

    def text(self) -> str:
        """Return the module."""
        k = self.k
        item = np.dtype(k.row_dtype).itemsize
        code = ord("f" if k.row_dtype == "float32" else "d")
        suffix = "f" if self.sum == "float" else ""
        most = k.serial_rows
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
declare {self.sum} @skf_exp{suffix}({self.sum})
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define ptr @skf_entry(ptr %self, ptr %arg) {{
entry:
  %view = alloca [80 x i8], align 16
  %dims = alloca [2 x i64], align 16
  %slots = alloca [{MAX_SLOTS + 4} x i64], align 16
  %type.at = getelementptr i8, ptr %arg, i64 {_OB_TYPE}
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
{self._field("rows", _BUF, "ptr")}
  %code = load i16, ptr %format, align 1
  %is.code = icmp eq i16 %code, {code}
  %n = load i64, ptr %shape
  %columns.at = getelementptr i64, ptr %shape, i64 1
  %columns = load i64, ptr %columns.at
  %is.width = icmp eq i64 %columns, {k.n_features}
  %row.bytes = load i64, ptr %strides
  %step.at = getelementptr i64, ptr %strides, i64 1
  %step = load i64, ptr %step.at
  %is.step = icmp eq i64 %step, {item}
  %part = srem i64 %row.bytes, {item}
  %is.whole = icmp eq i64 %part, 0
  %rows.int = ptrtoint ptr %rows to i64
  %odd = and i64 %rows.int, {item - 1}
  %is.aligned = icmp eq i64 %odd, 0
  %some = icmp sgt i64 %n, 0
  %few = icmp sle i64 %n, {most}
  %a1 = and i1 %is.code, %is.width
  %a2 = and i1 %is.step, %is.whole
  %a3 = and i1 %is.aligned, %some
  %a4 = and i1 %a1, %a2
  %a5 = and i1 %a3, %few
  %fits = and i1 %a4, %a5
  br i1 %fits, label %range, label %decline
range:
{self._pick_range()}
  %kernel.at = getelementptr i64, ptr inttoptr (i64 {self.table} to ptr), i64 %base
  %kernel.int = load atomic i64, ptr %kernel.at acquire, align 8
  %ready = icmp ne i64 %kernel.int, 0
  br i1 %ready, label %scan, label %decline
scan:
{self._scan(item)}
allocate:
  store i64 %n, ptr %dims
  %dims.1 = getelementptr i64, ptr %dims, i64 1
  store i64 {self._columns()}, ptr %dims.1
  %descr = call ptr @skf_descr(i32 {_TYPE_NUMBERS[self._dtype()]})
  %out = call ptr @skf_empty(i32 {self._ndim()}, ptr %dims, ptr %descr, i32 0)
  %made = icmp ne ptr %out, null
  br i1 %made, label %run, label %forget.view
forget.view:
  call void @skf_clear()
  br label %decline
run:
  %data.at = getelementptr i8, ptr %out, i64 {_ARRAY_DATA}
  %data = load ptr, ptr %data.at
{self._scratch()}
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
  br label %divide
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

    # ------------------------------------------------------------ pieces

    def _field(self, name: str, offset: int, type_: str) -> str:
        return (
            f"  %{name}.at = getelementptr i8, ptr %view, i64 {offset}\n"
            f"  %{name} = load {type_}, ptr %{name}.at"
        )

    def _dtype(self) -> str:
        return "int64" if self.k.output == "labels" else self.k.sum_dtype

    def _ndim(self) -> int:
        if self.k.output == "labels":
            return 1
        return 2 if self.k.output == "both_classes" or self.k.n_outputs > 1 else 1

    def _columns(self) -> int:
        return 2 if self.k.output == "both_classes" else self.k.n_outputs

    def _pick_range(self) -> str:
        """Count three words of the table for each range that ends below n."""
        lines, total = [], "0"
        for i, last in enumerate(self.k.last_rows[:-1]):
            lines.append(f"  %past{i} = icmp sgt i64 %n, {last}")
            lines.append(f"  %more{i} = select i1 %past{i}, i64 3, i64 0")
            lines.append(f"  %sum{i} = add i64 {total}, %more{i}")
            total = f"%sum{i}"
        lines.append(f"  %base = add i64 {total}, 0")
        return "\n".join(lines)

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

    def _scratch(self) -> str:
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
        if self.k.divisor == 1:
            return "divide:\n  br label %transform"
        body = f"""  %d.at = getelementptr {self.sum}, ptr %sums, i64 %i.divide
  %d.x = load {self.sum}, ptr %d.at
  %d.y = fdiv {self.sum} %d.x, {float(self.k.divisor)!r}
  store {self.sum} %d.y, ptr %d.at"""
        return "divide:\n" + self._loop("divide", "%count", body, "transform")

    def _transform(self) -> str:
        kind = self.k.transform if self.k.output != "raw" else "identity"
        if kind == "identity":
            return "transform:\n  br label %finish"
        if kind == "softmax":
            return self._softmax()
        t, suffix = self.sum, "f" if self.sum == "float" else ""
        head = f"""  %t.at = getelementptr {t}, ptr %sums, i64 %i.transform
  %t.x = load {t}, ptr %t.at
"""
        limit = _literal(88.7, self.k.sum_dtype)
        steps = {
            "exp": f"  %t.y = call {t} @skf_exp{suffix}({t} %t.x)\n",
            "hinge": (
                f"  %t.p = fcmp ogt {t} %t.x, 0.0\n"
                f"  %t.y = select i1 %t.p, {t} 1.0, {t} 0.0\n"
            ),
            "sigmoid": (
                f"  %t.n = fneg {t} %t.x\n"
                f"  %t.c = fcmp olt {t} %t.n, {limit}\n"
                f"  %t.m = select i1 %t.c, {t} %t.n, {t} {limit}\n"
                f"  %t.e = call {t} @skf_exp{suffix}({t} %t.m)\n"
                f"  %t.s = fadd {t} %t.e, 1.0\n"
                f"  %t.y = fdiv {t} 1.0, %t.s\n"
            ),
        }
        body = head + steps[kind] + f"  store {t} %t.y, ptr %t.at"
        return "transform:\n" + self._loop("transform", "%count", body, "finish")

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

    def _finish(self) -> str:
        t = self.sum
        if self.in_place:
            return "finish:\n  br label %return"
        if self.k.output == "both_classes":
            body = f"""  %b.at = getelementptr {t}, ptr %sums, i64 %i.finish
  %b.p = load {t}, ptr %b.at
  %b.q = fsub {t} 1.0, %b.p
  %b.i = mul i64 %i.finish, 2
  %b.to = getelementptr {t}, ptr %data, i64 %b.i
  store {t} %b.q, ptr %b.to
  %b.to1 = getelementptr {t}, ptr %b.to, i64 1
  store {t} %b.p, ptr %b.to1"""
            return "finish:\n" + self._loop("finish", "%n", body, "return")
        if self.k.n_outputs == 1:
            body = f"""  %l.at = getelementptr {t}, ptr %sums, i64 %i.finish
  %l.p = load {t}, ptr %l.at
  %l.g = fcmp ogt {t} %l.p, 0.5
  %l.n = zext i1 %l.g to i64
  %l.to = getelementptr i64, ptr %data, i64 %i.finish
  store i64 %l.n, ptr %l.to"""
            return "finish:\n" + self._loop("finish", "%n", body, "return")
        k = self.k.n_outputs
        body = f"""  %l.row = mul i64 %i.finish, {k}
  %l.at = getelementptr {t}, ptr %sums, i64 %l.row
  %l.first = load {t}, ptr %l.at
  br label %best
best:
  %best.j = phi i64 [ 0, %finish.loop ], [ %best.j.n, %best ]
  %best.b = phi i64 [ 0, %finish.loop ], [ %best.b.n, %best ]
  %best.v = phi {t} [ %l.first, %finish.loop ], [ %best.v.n, %best ]
  %best.at = getelementptr {t}, ptr %l.at, i64 %best.j
  %best.x = load {t}, ptr %best.at
  %best.g = fcmp ogt {t} %best.x, %best.v
  %best.b.n = select i1 %best.g, i64 %best.j, i64 %best.b
  %best.v.n = select i1 %best.g, {t} %best.x, {t} %best.v
  %best.j.n = add i64 %best.j, 1
  %best.m = icmp slt i64 %best.j.n, {k}
  br i1 %best.m, label %best, label %best.end
best.end:
  %l.to = getelementptr i64, ptr %data, i64 %i.finish
  store i64 %best.b.n, ptr %l.to"""
        return "finish:\n" + self._loop("finish", "%n", body, "return")


def _literal(value: float, dtype: str) -> str:
    """Return a float constant: LLVM wants a float's value as a double's bits."""
    exact = float(np.dtype(dtype).type(value))
    return f"0x{int(np.float64(exact).view(np.uint64)):016X}"
