"""The kinds of files that are fuzzed: where good ones are, and how they are changed."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.lib import format as npy

from benchmarks.reliability import mutate
from skforge.compiler.frontends import _ubjson

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"

#: Name, and the ending of its files. ``.skforge`` seeds are made by ``seeds.py``.
FORMATS = {
    "XGBoost JSON": ".json",
    "XGBoost UBJSON": ".ubj",
    "LightGBM text": ".txt",
    "ONNX": ".onnx",
    ".skforge": ".skforge",
}


@lru_cache
def seeds(kind: str, made: Path) -> tuple[tuple[str, bytes], ...]:
    """Return names and contents of the good files of a kind."""
    files = [*DATA.rglob(f"*{FORMATS[kind]}"), *made.glob(f"*{FORMATS[kind]}")]
    return tuple((file.name, file.read_bytes()) for file in sorted(files))


def mutant(kind: str, number: int, made: Path) -> bytes:
    """Return the changed file of a number: always the same for the same seeds."""
    random = Random(f"{kind} {number}")
    choices = seeds(kind, made)
    _, content = random.choice(choices)
    if random.random() < 0.2:
        return mutate.raw(random, content)
    change = {
        "XGBoost JSON": _json,
        "XGBoost UBJSON": _ubj,
        "LightGBM text": _lightgbm,
        "ONNX": _onnx,
        ".skforge": _container,
    }[kind]
    return change(random, content)


def _json(random: Random, content: bytes) -> bytes:
    return mutate.as_text(mutate.document(random, json.loads(content)))


# ------------------------------------------------------------ UBJSON


def _ubj(random: Random, content: bytes) -> bytes:
    wide = random.random() < 0.2
    root = _plain(_ubjson.loads(content))
    return _encoded(mutate.document(random, root), wide)


def _plain(value: Any) -> Any:
    """Return arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _encoded(value: Any, wide: bool) -> bytes:
    """Return UBJSON as XGBoost writes it, numbers in 32 bits unless they are wide."""
    if value is None or isinstance(value, bool):
        return {None: b"Z", True: b"T", False: b"F"}[value]
    if isinstance(value, (int, float)):
        code = _code([value], wide)
        return code + _packed(code, value)
    if isinstance(value, str):
        return b"S" + _text(value)
    if isinstance(value, dict):
        parts = [_text(key) + _encoded(one, wide) for key, one in value.items()]
        return b"{" + b"".join(parts) + b"}"
    if value and all(type(v) in (int, float) for v in value):
        code = _code(value, wide)
        body = b"".join(_packed(code, v) for v in value)
        return b"[$" + code + b"#L" + struct.pack(">q", len(value)) + body
    return b"[" + b"".join(_encoded(one, wide) for one in value) + b"]"


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"L" + struct.pack(">q", len(data)) + data


def _code(values: list[Any], wide: bool) -> bytes:
    if any(isinstance(v, float) for v in values):
        return b"D" if wide else b"d"
    return b"L" if wide or any(not -(2**31) <= v < 2**31 for v in values) else b"l"


def _packed(code: bytes, value: Any) -> bytes:
    if code in (b"d", b"D"):
        with np.errstate(over="ignore"):
            return np.array(
                min(value, 10**300), ">f4" if code == b"d" else ">f8"
            ).tobytes()
    bits = 32 if code == b"l" else 64
    return (value % (1 << bits)).to_bytes(bits // 8, "big")


# ------------------------------------------------------------ LightGBM


def _lightgbm(random: Random, content: bytes) -> bytes:
    lines = content.decode().split("\n")
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at = random.randrange(len(lines))
        kind = random.randrange(10)
        key, equals, text = lines[at].partition("=")
        if kind < 7 and equals:
            words = text.split(" ")
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
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change_message(random, model)
    return bytes(model.SerializeToString())


def _change_message(random: Random, model: Any) -> None:
    """Change one field somewhere in a protobuf message, most often of the trees."""
    places = list(_fields(model))
    trees = [p for p in places if type(p[0]).__name__ in ("AttributeProto",)]
    message, field = random.choice(trees if random.random() < 0.7 and trees else places)
    repeated = _is_repeated(field)
    name = field.name
    if random.random() < 0.1:
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
        values[0] = _like(random, field, values[0])
        setattr(message, name, values[0])
        return
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


def _like(random: Random, field: Any, near: Any) -> Any:
    return _fit(field, mutate.value(random, near))


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
    """Change the manifest or an array, and every digest to fit, as a forger would."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts.pop("manifest.json"))
    if random.random() < 0.5:
        changed = mutate.document(random, manifest)
    else:
        changed = manifest
        name = random.choice(sorted(manifest["arrays"]))
        _change_array(random, manifest["arrays"], parts, name)
    text = mutate.as_text(changed)
    digest = hashlib.sha256(text).hexdigest().encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("manifest.json", text)
        for name, payload in parts.items():
            archive.writestr(name, payload)
        archive.comment = b"skforge " + digest
    return made.getvalue()


def _change_array(
    random: Random, described: dict[str, Any], parts: dict[str, bytes], name: str
) -> None:
    member = f"arrays/{name}.npy"
    array = npy.read_array(io.BytesIO(parts[member]), allow_pickle=False)
    values = array.ravel().tolist()
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
    described[name] = {
        "dtype": changed.dtype.str,
        "shape": list(changed.shape),
        "sha256": hashlib.sha256(parts[member]).hexdigest(),
    }
