"""The code that hashes texts; :mod:`~skforge.rows.hashed_rows` calls it.

The hash of a text is CityHash64 (release 1.0) of its UTF-8: CatBoost keeps 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import or_

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import F32, F64, I32, I64, U8, Buffer, Routine, Value
from skforge.engine.entry.routines import field, fields_of_array, give_if
from skforge.forest.encoder_tables import ARRAYS, SIZES
from skforge.runtime.python_objects import (
    ARRAY_DATA,
    FLOAT_VALUE,
    OB_TYPE,
    TEXT_LENGTH,
    TEXT_STATE,
)

#: How many objects later, about, one is read that is fetched now: with 28, 512 rows of
#: 14 scattered objects take 255 ns each, with 42 432, and without 567.
AHEAD = 16
#: Most words that the encoder is given.
MOST_SLOTS = 2 + len(SIZES) + len(ARRAYS)

_PRIMES = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557
_MIXER = 0x9DDFEA08EB382D69


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


K0, K1, K2, K3 = map(_signed, _PRIMES)
KM = _signed(_MIXER)


def _right(x: Value, shift: int) -> Value:
    return (x >> shift) & ((1 << (64 - shift)) - 1)


def _rotated(x: Value, shift: int) -> Value:
    return _right(x, shift) | (x << (64 - shift))


def _mixed(x: Value, shift: int = 47) -> Value:
    return x ^ _right(x, shift)


def _of_two(u: Value, v: Value) -> Value:
    a = _mixed((u ^ v) * KM)
    return _mixed((v ^ a) * KM) * KM


def city_hash() -> Routine:
    address, n = Value("at", I64), Value("n", I64)
    with Builder() as b:
        data = b.view("text", U8, address)

        def word(offset: Value | int) -> Value:
            return data[offset, I64]

        def half(offset: Value | int) -> Value:
            return data[offset, lir.U32].to(I64)

        def byte(offset: Value | int) -> Value:
            return data[offset].to(I64)

        with b.when(n.eq(0)):
            b.give(K2)
        with b.when(n < 4):
            y = byte(0) + (byte(n >> 1) << 8)
            z = n + (byte(n - 1) << 2)
            b.give(_mixed((y * K2) ^ (z * K3)) * K2)
        with b.when(n <= 8):
            b.give(_of_two(n + (half(0) << 3), half(n - 4)))
        with b.when(n <= 16):
            first, last = word(0), word(n - 8)
            sum_, back = last + n, (64 - n) & 63
            logical = (sum_ >> n) & ((1 << back) - 1)  # n is 9 … 16
            b.give(_of_two(first, logical | (sum_ << back)) ^ last)
        with b.when(n <= 32):
            a, c = word(0) * K1, word(n - 8) * K2
            second, d = word(8), word(n - 16) * K0
            turned = _rotated(a - second, 43) + _rotated(c, 30) + d
            b.give(_of_two(turned, a + _rotated(second ^ K3, 20) - c + n))
        with b.when(n <= 64):
            b.give(_up_to_64(word, n))
        b.give(_longer(word, n))
    return Routine("skf_city", (address, n), b.finish(), I64, local=True)


def _up_to_64(word: Callable[[Value | int], Value], n: Value) -> Value:
    def part(z: Value, a: Value, p: Value | int, q: Value | int) -> tuple[Value, Value]:
        turned, third = _rotated(a + z, 52), _rotated(a, 37)
        a = a + word(p)
        third = third + _rotated(a, 7)
        a = a + word(q)
        return a + z, turned + _rotated(a, 31) + third

    v0, v1 = part(word(24), word(0) + (word(n - 16) + n) * K0, 8, 16)
    w0, w1 = part(word(n - 8), word(16) + word(n - 32), n - 24, n - 16)
    mixed = _mixed((v0 + w1) * K2 + (w0 + v1) * K0)
    return _mixed(mixed * K0 + v1) * K2


def _longer(word: Callable[[Value | int], Value], n: Value) -> Value:
    def weak(offset: Value, x: Value, y: Value) -> tuple[Value, Value]:
        w0, w1, w2, w3 = (word(offset + 8 * i) for i in range(4))
        x = x + w0
        y, first = _rotated(y + x + w3, 21), x
        x = x + w1 + w2
        return x + w3, y + _rotated(x, 44) + first

    x, y, z = word(0), word(n - 16) ^ K1, word(n - 56) ^ K0
    v0, v1 = weak(n - 64, n, y)
    w0, w1 = weak(n - 32, n * K1, b.const(K0))
    z = z + _mixed(v1) * K1
    x, y = _rotated(z + x, 39) * K1, _rotated(y, 33) * K1
    state = [x, y, z, v0, v1, w0, w1]
    with b.loop(0, (n - 1) & ~63, 64, carry=state) as p:
        x, y, z, v0, v1, w0, w1 = state
        x = _rotated(x + y + v0 + word(p + 16), 37) * K1
        y = _rotated(y + v1 + word(p + 48), 42) * K1
        x, y, z = x ^ w1, y ^ v0, _rotated(z ^ w0, 33)
        v = weak(p, v1 * K1, x + w0)
        w = weak(p + 32, z + w1, y)
        state[:] = z, y, x, *v, *w
    x, y, z, v0, v1, w0, w1 = state
    return _of_two(_of_two(v0, w0) + _mixed(y) * K1 + z, _of_two(v1, w1) + x)


def text_hasher() -> Routine:
    """Return a function that hashes texts of Arrow, which lie one behind the other."""
    starts, out = Buffer("starts", I64), Buffer("out", I32)
    data, n, step = (Value(name, I64) for name in ("data", "n", "step"))
    with Builder() as b:
        with b.loop(n) as r:
            first = starts[r]
            hash_ = b.call("skf_city", data + first, starts[r + 1] - first)
            out[r * step] = hash_.to(I32)
        b.give(n)
    return Routine("skf_texts", (starts, data, n, out, step), b.finish(), I64)


def object_reader(names: Sequence[str]) -> Routine:
    """Return a function that reads Python's objects into rows.

    ``places`` are the columns of the objects' columns in the rows, and ``coded`` which
    of them are hashed. It returns the first row that it declines; ``names`` are the
    classes that it knows.
    """
    words = "objects", "n", "row_bytes", "item_bytes", "n_columns", "width"
    objects, n, row_bytes, item_bytes, n_columns, width = (
        Value(name, I64) for name in words
    )
    coded, places = Buffer("coded", U8), Buffer("places", I32)
    out = Buffer("out", F32)
    with Builder() as b:
        kinds = {name: b.symbol(f"skf_{name}") for name in names}
        none, data = b.symbol("skf_none"), b.view("data", U8, objects)
        ascii_, head = b.symbol("skf_ascii"), b.symbol("skf_head")
        size = b.local("size", I64)
        digits = b.local("digits", U8, 32)
        bits = b.view("bits", I32, b.address(out))
        ahead = (AHEAD // n_columns.max(1)).max(1)
        with b.loop(n) as r, b.loop(n_columns) as j:
            decline = partial(give_if, r)
            column = j * item_bytes
            object_ = data[r * row_bytes + column, I64]
            later = data[(r + ahead).min(n - 1) * row_bytes + column, I64]
            b.prefetch(b.view("later", U8, later), 0)
            kind = field(object_, OB_TYPE)
            index = r * width + places[j].to(I64)

            def is_a(*names: str) -> Value:
                return reduce(or_, (kind.eq(kinds[name]) for name in names))

            def of_text() -> Value:
                # what CPython's function does for most, which would be called for each
                state = field(object_, TEXT_STATE, lir.U32).to(I64)
                return b.either((state & ascii_).eq(ascii_), of_ascii, of_other)

            def of_ascii() -> Value:
                length = field(object_, TEXT_LENGTH)
                return b.call("skf_city", object_ + head, length)

            def of_other() -> Value:
                text = b.call("skf_utf8", object_, b.address(size))
                decline(text.eq(0), error=True)  # a lone surrogate
                return b.call("skf_city", text, size[0])

            def of_whole() -> Value:
                decline(~is_a("int", "bool"))
                number = b.call("skf_long", object_)
                with b.when(number.eq(-1)):
                    decline(b.call("skf_error").ne(0), error=True)
                return b.call("skf_city", *_decimal(number, digits))

            def hashed() -> None:
                is_text = is_a("str", "str_")
                bits[index] = b.either(is_text, of_text, of_whole).to(I32)

            def number() -> None:
                out[index] = b.either(is_a("float"), of_float, of_other_number)

            def of_float() -> Value:
                return field(object_, FLOAT_VALUE, F64).to(F32)

            def of_other_number() -> Value:
                real = is_a("float64", "int", "bool")
                decline(~(real | object_.eq(none)))
                return b.either(real, decoded, lambda: b.const(float("nan"), F32))

            def decoded() -> Value:
                x = b.call("skf_number", object_, gives=F64)
                with b.when(x.eq(-1.0)):
                    decline(b.call("skf_error").ne(0), error=True)
                return x.to(F32)

            b.if_(coded[j].ne(0), hashed, number)
        b.give(n)
    params = objects, n, row_bytes, item_bytes, n_columns, coded, places, width, out
    return Routine("skf_objects", params, b.finish(), I64)


def _decimal(number: Value, digits: Buffer) -> tuple[Value, Value]:
    negative = number < 0
    state = [number, b.const(31)]

    def write() -> None:
        left, index = state
        digit = left % 10  # truncates toward zero
        digit = b.select(digit < 0, 0 - digit, digit)
        digits[index] = (digit + 48).to(U8)
        state[:] = left // 10, index - 1

    write()
    with b.repeat(lambda: state[0].ne(0), state):
        write()
    last = state[1]
    with b.when(negative):
        digits[last] = 45
    first = b.select(negative, last, last + 1)
    return b.address(digits, first), 32 - first


#: NumPy's number of float32.
_FLOAT32 = 11


def body_of_objects() -> Routine:
    """Return the body of an entry that takes objects; see ``entry_of_objects``.

    ``skf_known`` has the number of columns and the width of rows, the addresses of
    flags of categories, places and slots, the number of slots, the addresses of the
    encoder and of the entry that takes rows, and the least rows and the address of an
    entry that takes their hashes.
    """
    arg, most = Value("arg", I64), Value("most", I64)
    with Builder() as b:
        decline = partial(give_if, 0)
        ndarray = b.symbol("skf_ndarray")
        shape, strides, data, code = fields_of_array(arg, ndarray, decline)
        known = b.view("known", I64, b.symbol("skf_known"))
        n, n_columns = shape[0], known[0]
        objects = (code & 0xFFFF).eq(int.from_bytes(b"OO", "little"))
        decline(~(objects & shape[1].eq(n_columns) & (n > 0) & (n <= most)))
        flags, places, slots, count, encode = (known[i] for i in range(2, 7))
        dims = b.local("dims", I64, 2)
        arguments = b.local("given", I64, MOST_SLOTS)

        def answer_of(entry: Value, width: Value, encodes: bool) -> Value:
            dims[0], dims[1] = n, width
            descr = b.call("skf_descr", b.const(_FLOAT32, I32))
            zero = b.const(0, I32)
            rows = b.call("skf_empty", b.const(2, I32), b.address(dims), descr, zero)
            decline(rows.eq(0), error=True)
            out = field(rows, ARRAY_DATA)
            sizes = n, strides[0], strides[1], n_columns
            read = b.call("skf_objects", data, *sizes, flags, places, width, out)
            with b.when(read.ne(n)):
                b.run("skf_decref", rows)
                b.give(0)
            if encodes:
                b.run("memcpy", b.address(arguments, 2), slots, count << 3)
                arguments[0], arguments[1] = n, out
                b.run(encode, b.address(arguments), b.const(0), b.const(1))
            answer = b.call(entry, b.const(0), rows)
            b.run("skf_decref", rows)
            return answer

        none = b.symbol("skf_none")
        with b.when(n >= known[8]):
            answer = answer_of(known[9], n_columns, False)
            with b.when(answer.ne(none)):
                b.give(answer)
            b.run("skf_decref", answer)
        answer = answer_of(known[7], known[1], True)
        with b.when(answer.eq(none)):
            b.run("skf_decref", answer)
            b.give(0)
        b.give(answer)
    return Routine("skf_body", (arg, most), b.finish(), I64, local=True)
