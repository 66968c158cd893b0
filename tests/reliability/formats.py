"""The kinds of files that are fuzzed: where good ones are, and how they are changed."""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import zipfile
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.lib import format as npy

from skforge.frontends.xgboost import ubjson as _ubjson
from tests.reliability import mutate

DATA = Path(__file__).resolve().parents[1] / "data"

#: Name, and the ending of its files. ``seeds.py`` makes those that are not data.
FORMATS = {
    "XGBoost JSON": ".json", "XGBoost UBJSON": ".ubj", "XGBoost binary": ".model",
    "LightGBM text": ".txt", "ONNX": ".onnx", ".skforge": ".skforge",
    "tuning record": ".jsonl",
}  # fmt: skip


#: Files of older releases that XGBoost 3.2 crashes on, and one of another format.
_LEFT_OUT = {"2.1.4-vector.json", "3.0.5-vector.json", "0.1.0.skforge", "format.json"}


def files(kind: str, made: Path) -> list[Path]:
    """Return the good files of a kind, in the same order wherever the clone is."""
    found = [*DATA.rglob(f"*{FORMATS[kind]}"), *made.glob(f"*{FORMATS[kind]}")]
    good = (
        file
        for file in found
        if file.name not in _LEFT_OUT and not (kind.startswith("XGB") and _newer(file))
    )
    return sorted(good, key=lambda file: file.name)


def _newer(file: Path) -> bool:
    """Tell whether a later release of XGBoost than the installed one wrote a file."""
    release = re.match(r"(\d+)\.(\d+)\.", file.name)
    installed = tuple(map(int, version("xgboost").split(".")[:2]))
    return release is not None and tuple(map(int, release.groups())) > installed


@lru_cache
def seeds(kind: str, made: Path) -> tuple[tuple[str, bytes], ...]:
    """Return names and contents of the good files of a kind."""
    return tuple((file.name, file.read_bytes()) for file in files(kind, made))


def mutant(kind: str, number: int, made: Path) -> bytes:
    """Return the changed file of a number: always the same for the same seeds."""
    random = Random(f"{kind} {number}")
    choices = seeds(kind, made)
    _, content = random.choice(choices)
    if random.random() < 0.1 and kind != "tuning record":
        return mutate.raw(random, content)
    return changed(random, kind, content)


def changed(random: Random, kind: str, content: bytes) -> bytes:
    """Return a file of a kind whose structure is most often kept."""
    change = {
        "XGBoost JSON": _json, "XGBoost UBJSON": _ubj, "XGBoost binary": _binary,
        "LightGBM text": _lightgbm, "ONNX": _onnx, ".skforge": _container,
        "tuning record": _records,
    }[kind]  # fmt: skip
    return change(random, content)


def _json(random: Random, content: bytes) -> bytes:
    return mutate.as_text(mutate.document(random, json.loads(content)))


# ------------------------------------------------------------ UBJSON


class _Typed(list[Any]):
    """A list of numbers that remembers its type in the file."""

    code = b""


def _ubj(random: Random, content: bytes) -> bytes:
    wide = random.random() < 0.1
    return _encoded(mutate.document(random, _decoded(content)), wide)


@lru_cache
def _decoded(content: bytes) -> Any:
    return _plain(_ubjson.loads(content))


def _plain(value: Any) -> Any:
    """Return arrays as lists."""
    if isinstance(value, np.ndarray):
        found = _Typed(value.tolist())
        found.code = _CODES[value.dtype.newbyteorder(">").str]
        return found
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


_CODES = {">f4": b"d", ">f8": b"D", ">i4": b"l", ">i8": b"L", "|u1": b"U", "|i1": b"i"}
_CODES[">i2"] = b"I"
_DTYPES = {code: np.dtype(text) for text, code in _CODES.items()}


def _encoded(value: Any, wide: bool) -> bytes:
    """Return UBJSON as XGBoost writes it, arrays in wider types where they must be."""
    if value is None or isinstance(value, bool):
        return {None: b"Z", True: b"T", False: b"F"}[value]
    if isinstance(value, (int, float)):
        code = _code([value], wide)
        return code + _packed(code, [value])
    if isinstance(value, str):
        return b"S" + _text(value)
    if isinstance(value, dict):
        parts = [_text(key) + _encoded(one, wide) for key, one in value.items()]
        return b"{" + b"".join(parts) + b"}"
    size = b"#L" + struct.pack(">q", len(value))
    if isinstance(value, _Typed) and all(type(v) in (int, float) for v in value):
        codes = (_code(value, True),) if wide else (value.code, _code(value, False))
        for code in codes:
            body = _packed(code, value)
            if body or not value:
                return b"[$" + code + size + body
    return b"[" + size + b"".join(_encoded(one, wide) for one in value)


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"L" + struct.pack(">q", len(data)) + data


def _code(values: list[Any], wide: bool) -> bytes:
    if any(isinstance(v, float) for v in values):
        return b"D" if wide else b"d"
    return b"L" if wide or any(not -(2**31) <= v < 2**31 for v in values) else b"l"


def _packed(code: bytes, values: list[Any]) -> bytes:
    """Return the numbers in a type, or nothing if one does not fit."""
    dtype = _DTYPES[code]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array([min(v, 10**300) for v in values], dtype).tobytes()
    if any(isinstance(v, float) for v in values):
        return b""
    if code == b"L":
        return b"".join((v % (1 << 64)).to_bytes(8, "big") for v in values)
    limits = np.iinfo(dtype)
    if not all(limits.min <= v <= limits.max for v in values):
        return b""
    return np.array(values, dtype).tobytes()


# ------------------------------------------------------------ XGBoost's old format


#: What numbers of four bytes become, besides others near by.
_EDGES = [struct.pack("<i", n) for n in (0, 1, 2, -1, 1 << 20, 2**31 - 1, -(2**31))]
_EDGES += [struct.pack("<f", x) for x in (-0.0, 1.5, 1e30, np.inf, -np.inf, np.nan)]


def _binary(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    names = re.search(rb"gbtree|dart", content)
    start = names.end() if names is not None else 0
    for _ in range(random.choice((1, 1, 2, 3))):
        most = 400 if random.random() < 0.5 else len(changed)  # parameters come first
        at = random.randrange(min(most, len(changed) - 4))
        if random.random() < 0.8:
            at -= (at - start) % 4
        at = max(at, 0)
        old = int.from_bytes(changed[at : at + 4], "little")
        near = (old + random.choice((-1, 1, 2))) % (1 << 32)
        bits = old ^ (1 << random.randrange(32))
        values = [near.to_bytes(4, "little"), bits.to_bytes(4, "little")]
        changed[at : at + 4] = random.choice((random.choice(_EDGES), *values))
    return bytes(changed)


# ------------------------------------------------------------ LightGBM


def _lightgbm(random: Random, content: bytes) -> bytes:
    lines = content.decode().split("\n")
    softly = random.random() < mutate.GENTLE
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at = _line(random, lines, softly)
        kind = random.randrange(7 if softly else 10)
        key, equals, text = lines[at].partition("=")
        if kind < 7 and equals:
            words = text.split(" ")
            if softly:
                mutate.gentle(random, words)
            else:
                mutate.numbers(random, words, _word)
            lines[at] = f"{key}={' '.join(map(str, words))}"
        elif kind == 7:
            del lines[at]
        elif kind == 8:
            lines[at:at] = lines[at : at + random.choice((1, 1, 2, 20))]
        else:
            other = random.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        if not lines:
            break
    if random.random() < 0.9:  # else damage ends at the sizes that do not add up
        lines = _with_sizes(lines)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _line(random: Random, lines: list[str], of_values: bool) -> int:
    """Choose a line; most often by what it is about, for trees are many."""
    names = [line.partition("=")[0] for line in lines]
    choices = [i for i, line in enumerate(lines) if "=" in line or not of_values]
    if random.random() < 0.3 and choices:
        return random.choice(choices)
    name = random.choice(sorted({names[i] for i in choices} or {""}))
    return random.choice([i for i, n in enumerate(names) if n == name] or [0])


def _word(random: Random, near: Any = None) -> str:
    try:
        found: Any = float(near) if "." in str(near) else int(near)
    except (TypeError, ValueError):
        found = None
    made = mutate.value(random, found)
    return made if isinstance(made, str) else str(made)


def _with_sizes(lines: list[str]) -> list[str]:
    blocks = "\n".join(lines).partition("\nend of trees\n")[0].split("\nTree=")[1:]
    sizes = [len(f"{block}\nTree=") for block in blocks]
    found = f"tree_sizes={' '.join(map(str, sizes))}"
    return [found if line.startswith("tree_sizes=") else line for line in lines]


# ------------------------------------------------------------ ONNX


def _onnx(random: Random, content: bytes) -> bytes:
    import onnx

    model = onnx.ModelProto.FromString(content)
    softly = random.random() < mutate.GENTLE
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change_message(random, model, softly)
    return bytes(model.SerializeToString())


def _change_message(random: Random, model: Any, softly: bool) -> None:
    """Change one field somewhere in a protobuf message, most often of the trees."""
    places = list(_fields(model))
    trees = [p for p in places if type(p[0]).__name__ in ("AttributeProto",)]
    if softly:  # the values of attributes, not their names and types
        trees = [p for p in trees if p[1].name not in ("name", "type")]
    share = 0.9 if softly else 0.7
    message, field = random.choice(
        trees if random.random() < share and trees else places
    )
    repeated = _is_repeated(field)
    name = field.name
    if not softly and random.random() < 0.1:
        message.ClearField(name)
        return
    if field.message_type is not None:
        if repeated:
            parts = list(getattr(message, name))
            chosen = random.choice(parts)
            if random.random() < 0.5:
                getattr(message, name).add().CopyFrom(chosen)
            else:
                getattr(message, name).remove(chosen)
        return
    values = list(getattr(message, name)) if repeated else [getattr(message, name)]
    if not repeated:
        values[0] = _like(random, field, values[0], softly)
        setattr(message, name, values[0])
        return
    if softly:
        mutate.gentle(random, values, lambda r, old, n: _near(r, field, old, n))
    else:
        mutate.numbers(random, values, lambda r, near=None: _like(r, field, near))
    del getattr(message, name)[:]
    getattr(message, name).extend([_fit(field, v) for v in values])


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return field.label == field.LABEL_REPEATED if found is None else bool(found)


def _fields(message: Any) -> Any:
    """Yield (message, field) of every field that is set, messages within included."""
    for field, content in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for part in content if _is_repeated(field) else [content]:
                yield from _fields(part)


def _like(random: Random, field: Any, near: Any, softly: bool = False) -> Any:
    if softly:
        return _near(random, field, near, 4)
    return _fit(field, mutate.value(random, near))


#: Names that attributes of trees may have in place of each other.
_NAMES = (
    *(b"BRANCH_LEQ", b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_GT", b"BRANCH_EQ"),
    *(b"BRANCH_NEQ", b"LEAF", b"NONE", b"SOFTMAX", b"LOGISTIC", b"SOFTMAX_ZERO"),
    *(b"PROBIT", b"SUM", b"AVERAGE", b"MIN", b"MAX"),
)


def _near(random: Random, field: Any, old: Any, n: int) -> Any:
    if isinstance(old, bytes):
        return random.choice(_NAMES)
    if isinstance(old, float) and random.random() < 0.02:
        return random.choice((float("nan"), float("inf"), -float("inf")))
    found = mutate.near(random, old, n)
    return found if isinstance(found, float) else _fit(field, found)


def _fit(field: Any, value: Any) -> Any:
    """Return a value as the type of a field, cut to its range."""
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        ok = isinstance(value, (int, float))
        return max(min(float(value), 3.4e38), -3.4e38) if ok and value == value else 0.0
    if field.cpp_type == field.CPPTYPE_STRING:
        text = (
            value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
        )
        return (
            text if field.type == field.TYPE_BYTES else text.decode("utf-8", "replace")
        )
    number = int(value) if isinstance(value, int) else 3
    if field.enum_type is not None:
        known = [one.number for one in field.enum_type.values]
        return known[number % len(known)]
    bits = 63 if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else 31
    number = max(min(number, (1 << bits) - 1), -(1 << bits))
    unsigned = field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    return abs(number) % (1 << bits) if unsigned else number


# ------------------------------------------------------------ .skforge


def _container(random: Random, content: bytes) -> bytes:
    """Change the manifest or an array, and most often every digest to fit.

    That is what a forger would do; where a digest stays as it was, nothing but the
    model that was saved may be read.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
        comment = archive.comment
    manifest = json.loads(parts.pop("manifest.json"))
    fits = random.random() < 0.85
    if random.random() < 0.5:
        manifest = mutate.document(random, manifest)
    else:
        name = random.choice(sorted(manifest["arrays"]))
        changed = dict(manifest["arrays"][name])
        _change_array(random, changed, parts, name)
        if random.random() < 0.3:
            _change_header(random, changed, parts, name)
        if fits:
            manifest["arrays"][name] = changed
    text = mutate.as_text(manifest)
    if fits:
        comment = b"skforge " + hashlib.sha256(text).hexdigest().encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("manifest.json", text)
        for name, payload in parts.items():
            archive.writestr(name, payload)
        archive.comment = comment
    return made.getvalue()


def _change_array(
    random: Random, described: dict[str, Any], parts: dict[str, bytes], name: str
) -> None:
    member = f"arrays/{name}.npy"
    array = npy.read_array(io.BytesIO(parts[member]), allow_pickle=False)
    values = array.ravel().tolist()
    if random.random() < mutate.GENTLE:
        mutate.gentle(random, values)
    else:
        mutate.numbers(random, values)
    kind = random.choice((array.dtype, array.dtype, array.dtype, np.dtype("<i8")))
    try:
        with np.errstate(all="ignore"):
            changed = np.array(values).astype(kind)
    except (ValueError, TypeError, OverflowError):
        changed = array[: len(array) // 2].ravel()
    shape = array.shape if changed.size == array.size else changed.shape
    width = array.shape[1] if array.ndim == 2 else 1
    if array.ndim == 2 and width and changed.size % width == 0:
        shape = (-1, width)
    changed = changed.reshape(shape if random.random() < 0.9 else (-1, 1))
    buffer = io.BytesIO()
    npy.write_array(buffer, np.ascontiguousarray(changed), allow_pickle=False)
    parts[member] = buffer.getvalue()
    described.update(
        dtype=changed.dtype.str,
        shape=list(changed.shape),
        sha256=hashlib.sha256(parts[member]).hexdigest(),
    )


_HEADERS = (
    *("", "{", "(" * 1500, "[" * 4000, "-" * 3000, "{'descr': '<f4'}", "\0", "'" * 3),
    *("{'descr': %s, 'fortran_order': False, 'shape': (3,), }", "1" * 3900),
    *("{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", "{'a': 1}" * 9),
    *("{'descr': '<f4', 'fortran_order': %s, 'shape': (2,), }", "().__class__", "ß"),
)
_WORDS = (
    *("[('a', '<f4')]", "'|O'", "'<f4', 'x'", "None", "{}", "'V99999999999'", "b''"),
    *("(999999999999999,)", "(-1,)", "(10**9,)", "(True,)", "(1e9,)", "3", "((3,),)"),
    *("'<M8[s]'", "'<f4,' * 99", "9" * 3000, "'<f3'", "'S0'", "(2,) * 40", "'>f4'"),
)


def _change_header(
    random: Random, described: dict[str, Any], parts: dict[str, bytes], name: str
) -> None:
    """Put another header before an array's values; its digest is made to fit."""
    member = f"arrays/{name}.npy"
    payload = parts[member]
    (length,) = struct.unpack("<H", payload[8:10])
    header, data = payload[10 : 10 + length], payload[10 + length :]
    if random.random() < 0.3:
        header = mutate.raw(random, header)
    else:
        header = random.choice(_HEADERS).replace("%s", random.choice(_WORDS)).encode()
    size = len(header) if random.random() < 0.8 else random.randrange(65536)
    magic = payload[:6] + random.choice((payload[6:8], payload[6:8], b"\2\0", b"\3\0"))
    parts[member] = magic + struct.pack("<H", size) + header + data
    described["sha256"] = hashlib.sha256(parts[member]).hexdigest()


# ------------------------------------------------------------ tuning records


def _records(random: Random, content: bytes) -> bytes:
    """Change one line."""
    lines = content.splitlines()
    at = random.randrange(len(lines))
    if random.random() < 0.2:
        lines[at] = mutate.raw(random, lines[at]).replace(b"\n", b" ")
    else:
        changed = mutate.as_text(mutate.document(random, json.loads(lines[at])))
        lines[at] = changed
    return b"\n".join(lines) + b"\n"
