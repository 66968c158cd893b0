"""The ``.skforge`` container: a stored zip of one JSON manifest and ``.npy`` arrays.

::

    manifest.json          {"format": "skforge", "format_version": 2, ..., "arrays":
                            {"left": {"dtype": "<i4", "shape": [7], "sha256": ...}}}
    arrays/left.npy        NumPy's own format, read without pickle
    (comment)              skforge <sha256 of manifest.json>

The comment holds the digest of the manifest, and the manifest those of the arrays, so
that damage anywhere raises an error. Digests detect damage, not forgery: callers check
what they read. No entry is compressed, and its size is compared with the file's before
memory is allocated. The keys of CatBoost's categories are deflated inside of an array,
so that they can take a thousand times its bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import struct
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.lib import format as npy

from skforge._typing import Array
from skforge._version import FORMAT, check_format
from skforge.exceptions import (
    InvalidModelError,
    ModelNotFoundError,
    UnsupportedModelError,
    shortened,
)
from skforge.runtime.digests import sha256

if TYPE_CHECKING:
    from pathlib import Path


#: Most bytes of a manifest, of one array's header and of all arrays; most arrays.
MANIFEST_BYTES = 64 << 20
HEADER_BYTES = 1 << 12
ARRAY_BYTES = 1 << 40
MOST_ARRAYS = 4096

_MANIFEST = "manifest.json"
_COMMENT = b"skforge "
_LINE, _PADDING = 64, 0xD935  # arrays begin on a line, behind a zip's extra field
_MANY = 8 << 20  # bytes whose digests are worth threads
_LARGE = 8 << 20  # bytes of a file that is read slice by slice
_STALE = 3600  # seconds after which a temporary file is abandoned
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal contents, equal bytes

#: What to do with a file of an older format: its answers are compared once, there, and
#: not in each process that loads it.
_OLDER = "Write it anew with skforge.convert(old, new), or `skforge convert OLD NEW`"

_DAMAGE = (struct.error, IndexError, KeyError, OverflowError, ValueError)
_WIDE = 0xFFFFFFFF  # in place of a number that has 64 bits elsewhere


def write_container(
    path: str | os.PathLike[str],
    manifest: Mapping[str, Any],
    arrays: Mapping[str, Array],
) -> None:
    """Write a container; the file is always either the old or the new one.

    The manifest holds JSON values without NaN; ``format``, ``format_version`` and
    ``arrays`` are added. Arrays hold numbers, booleans or text.
    """
    from pathlib import Path

    with replacing(Path(os.path.realpath(path))) as file:
        _write(file, manifest, arrays)


def container_bytes(manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    buffer = io.BytesIO()
    _write(buffer, manifest, arrays)
    return buffer.getvalue()


def _write(
    file: BinaryIO, manifest: Mapping[str, Any], arrays: Mapping[str, Array]
) -> None:
    described: dict[str, dict[str, Any]] = {}
    payloads: dict[str, tuple[bytes, memoryview]] = {}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"the array {name!r} holds Python objects")
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        buffer = io.BytesIO()
        facts = npy.header_data_from_array_1_0(little.reshape(array.shape))
        npy.write_array_header_1_0(buffer, facts)
        values = little.reshape(-1).view(np.uint8).data if little.size else b""
        payloads[name] = buffer.getvalue(), memoryview(values)
        described[name] = {"dtype": little.dtype.str, "shape": list(array.shape)}
    digests = _digests([*payloads.values()])
    for facts, digest in zip(described.values(), digests, strict=True):
        facts["sha256"] = digest
    whole = {
        "format": "skforge",
        "format_version": FORMAT,
        **manifest,
        "arrays": described,
    }
    text = json.dumps(whole, allow_nan=False).encode()
    import zipfile  # 20 ms, which a loaded model need not wait for

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_MANIFEST, _EPOCH), text)
        for name, parts in payloads.items():
            entry = zipfile.ZipInfo(_member(name), _EPOCH)
            entry.file_size = sum(map(len, parts))
            room = -(file.tell() + 34 + len(entry.filename)) % _LINE
            entry.extra = struct.pack("<HH", _PADDING, room) + bytes(room)
            with archive.open(entry, "w") as member:
                for part in parts:
                    member.write(part)
        archive.comment = _COMMENT + sha256(text).hexdigest().encode()


def _digests(payloads: Sequence[Sequence[Any]]) -> list[str]:
    def digest_of(parts: Sequence[Any]) -> str:
        return str(sha256(*parts).hexdigest())

    if sum(len(part) for parts in payloads for part in parts) < _MANY:
        return [*map(digest_of, payloads)]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return [*threads.map(digest_of, payloads)]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file beside ``path`` and rename it to ``path`` on success."""
    beside = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    _remove_leftovers(path)
    # os.open respects the umask; a tempfile would always be private
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(beside, flags, 0o666)
    except OSError as error:  # report the user's path, not the temporary one
        raise type(error)(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    # Sync the directory too, so that the rename lasts; some systems cannot.
    with contextlib.suppress(OSError):
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _remove_leftovers(path: Path) -> None:
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if ours.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # gone in the meantime
                    if time.time() - entry.stat().st_mtime > _STALE:
                        os.unlink(entry.path)


def read_container(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return a container's manifest and arrays, with every byte checked.

    The arrays are read-only, in this machine's byte order. Raises InvalidModelError if
    the file cannot be read, is not a container, or is damaged; UnsupportedModelError if
    another release wrote it in another format.
    """
    container = Container(content_of(path), os.fspath(path))
    return container.manifest, container.read()


def container_from(
    payload: bytes, name: str
) -> tuple[dict[str, Any], dict[str, Array]]:
    container = Container(np.frombuffer(payload, np.uint8), name)
    return container.manifest, container.read()


def content_of(path: str | os.PathLike[str]) -> Content:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > _LARGE and hasattr(os, "preadv"):
                return Slices(os.dup(file.fileno()), size)
            content = np.empty(size, np.uint8)
            return content[: file.readinto(content.data)]
    except OSError as error:
        lost = isinstance(error, FileNotFoundError)
        raise (ModelNotFoundError if lost else InvalidModelError)(
            f"{os.fspath(path)} cannot be read: {error.strerror or error}."
        ) from error


class Slices:
    """A file's bytes, read by slices: mapped, an overwritten file ends the process."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._size = descriptor, size
        weakref.finalize(self, os.close, descriptor)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> Array:
        first, end, _ = part.indices(self._size)
        content, at = np.empty(max(0, end - first), np.uint8), 0
        while n := os.preadv(self._descriptor, [content[at:].data], first + at):
            at += n
        return content[:at]


#: All bytes of a file.
Content: TypeAlias = Array | Slices


def identity(content: Content) -> str | None:
    """Return the digest of all bytes; None if they are too many to read them all."""
    if isinstance(content, Slices) or len(content) > _LARGE:
        return None
    return str(sha256(content).hexdigest())


class Container(Mapping[str, Array]):
    """A manifest, and arrays that are read and checked when they are asked for.

    Slices of ``content``, all of a file, are arrays of uint8. Errors use ``name``. The
    format may be an older one from ``oldest`` on.
    """

    def __init__(self, content: Content, name: str, oldest: int = FORMAT) -> None:
        self._content, self._name, self._known = content, name, False
        self._oldest = oldest
        with _refused(name):
            self._places = self._read()

    def _read(self) -> dict[str, slice]:
        comment, entries = _entries(self._content)
        members = dict(entries)
        if _MANIFEST not in members:
            raise InvalidModelError(
                f"it has no {_MANIFEST}, so skforge did not write it"
            )
        if len(members) != len(entries) or len(entries) > MOST_ARRAYS + 1:
            raise InvalidModelError(
                "its directory lists an entry twice, or too many entries"
            )
        place = members[_MANIFEST]
        if place.stop - place.start > MANIFEST_BYTES:
            raise InvalidModelError(f"its {_MANIFEST} is too large")
        text = self._content[place].tobytes()
        #: The digest of the manifest, which holds those of the arrays.
        self.digest = sha256(text).hexdigest()
        if comment != _COMMENT + self.digest.encode():
            raise InvalidModelError(f"the checksum of its {_MANIFEST} is wrong")
        self.manifest = _parse(text, self._name, self._oldest)
        described = self.manifest["arrays"]
        if members.keys() != {_MANIFEST, *map(_member, described)}:
            raise InvalidModelError(
                f"its entries are not those that its {_MANIFEST} lists"
            )
        for name, facts in described.items():
            place, n_bytes = members[_member(name)], _bytes_of(name, facts)
            if not n_bytes < place.stop - place.start <= n_bytes + HEADER_BYTES:
                raise InvalidModelError(f"the size of its array {name!r} is wrong")
        return {name: members[_member(name)] for name in described}

    def __getitem__(self, name: str) -> Array:
        if name not in self._places:
            raise KeyError(name)
        return self.read(name)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def dtype(self, name: str) -> np.dtype[Any]:
        stored: np.dtype[Any] = np.dtype(self.manifest["arrays"][name]["dtype"])
        return stored.newbyteorder("=")

    def read(self, *names: str) -> dict[str, Array]:
        described = self.manifest["arrays"]
        payloads = self._checked(names or described)
        with _refused(self._name):
            return {n: _array(p, n, described[n]) for n, p in payloads.items()}

    @property
    def identity(self) -> str:
        """The digest of all bytes, or of the manifest if they are many."""
        return identity(self._content) or self.digest

    def check(self) -> None:
        """Compare all arrays with their digests, unless they are too many to wait."""
        if not isinstance(self._content, Slices):
            self._checked(self._places)
            self._known = True

    def _checked(self, names: Iterable[str]) -> dict[str, Array]:
        with _refused(self._name):
            payloads = {name: self._content[self._places[name]] for name in names}
            if self._known:
                return payloads
            digests = _digests([[payload] for payload in payloads.values()])
            for name, found in zip(payloads, digests, strict=True):
                if found != self.manifest["arrays"][name]["sha256"]:
                    raise InvalidModelError(f"its array {name!r} is damaged")
        return payloads


@contextlib.contextmanager
def _refused(name: str) -> Iterator[None]:
    try:
        yield
    except UnsupportedModelError:
        raise
    except _DAMAGE as error:
        ours = isinstance(error, InvalidModelError)
        reason = shortened(str(error) if ours else f"it is damaged ({error})")
        raise InvalidModelError(
            f"{name} cannot be loaded: {reason}. Save the model again."
        ) from error


def _entries(content: Content) -> tuple[bytes, list[tuple[str, slice]]]:
    """Return a zip's comment, and the name and place of each entry.

    Entries are stored, and no longer than the file, so that reading them cannot need
    more memory.
    """
    before = max(0, len(content) - (1 << 16))
    last = content[before:].tobytes()
    end = last.rfind(b"PK\5\6")
    if end < 0 or len(last) < 22:
        raise ValueError("File is not a zip file")
    count, n_bytes, at, n_comment = struct.unpack_from("<10xH2IH", last, end)
    if n_comment != len(last) - end - 22:
        raise ValueError("its end is not one of a zip file")
    if at == _WIDE:
        (record,) = struct.unpack_from("<8xQ", last, end - 20)
        wide = content[record : record + 56].tobytes()
        count, n_bytes, at = struct.unpack_from("<32x3Q", wide)
    listed, entries = content[at : at + n_bytes].tobytes(), []
    at = 0
    for _ in range(min(count, MOST_ARRAYS + 2)):
        mark, method, packed, size, n_name, n_extra, n_more, start = struct.unpack_from(
            "<4s6xH8x2I3H8xI", listed, at
        )
        name = listed[at + 46 : at + 46 + n_name].decode()
        extra = listed[at + 46 + n_name :][:n_extra]
        if _WIDE in (packed, size, start):
            size, packed, start = _wide(extra, size, packed, start)
        n_before = struct.unpack_from("<26x2H", content[start : start + 30].tobytes())
        first = start + 30 + sum(n_before)
        if mark != b"PK\1\2" or method or packed != size or first + size > len(content):
            raise InvalidModelError(
                f"its entry {name!r} is compressed or has a wrong size"
            )
        entries.append((name, slice(first, first + size)))
        at += 46 + n_name + n_extra + n_more
    return last[end + 22 :], entries


def _wide(extra: bytes, *numbers: int) -> list[int]:
    kind = length = at = 0
    while kind != 1:
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4 + (length if kind != 1 else 0)
    wide = iter(struct.unpack_from(f"<{length // 8}Q", extra, at))
    return [next(wide, n) if n == _WIDE else n for n in numbers]


def _member(name: str) -> str:
    return f"arrays/{name}.npy"


def _parse(text: bytes, name: str, oldest: int) -> dict[str, Any]:
    try:
        manifest = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"its {_MANIFEST} is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != "skforge":
        raise InvalidModelError(f"its {_MANIFEST} was not written by skforge")
    version = manifest.get("format_version")
    if type(version) is not int or version < 1:
        raise InvalidModelError(
            f"its format version {version!r} is not a positive whole number"
        )
    if not oldest <= version < FORMAT:
        release = manifest.get("skforge_version", "of an unknown version")
        check_format(version, release, name, _OLDER)
    described = manifest.get("arrays")
    if not isinstance(described, dict):
        raise InvalidModelError(f"its {_MANIFEST} lists no arrays")
    if sum(_bytes_of(name, facts) for name, facts in described.items()) > ARRAY_BYTES:
        raise InvalidModelError("its arrays are too large")
    return manifest


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _bytes_of(name: str, facts: Any) -> int:
    if isinstance(facts, dict) and facts.keys() == {"dtype", "shape", "sha256"}:
        dtype, shape = plain_dtype(facts["dtype"]), facts["shape"]
        whole = (
            isinstance(shape, list)
            and len(shape) <= 8
            and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)
        )
        if dtype is not None and whole and isinstance(facts["sha256"], str):
            return prod(shape) * dtype.itemsize
    raise InvalidModelError(f"the description of its array {name!r} is wrong")


def _array(payload: Array, name: str, facts: dict[str, Any]) -> Array:
    """Return an array without NumPy's reader, which evaluates and trusts headers."""
    dtype, shape = np.dtype(facts["dtype"]), tuple(facts["shape"])
    start = len(payload) - prod(shape) * dtype.itemsize
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    header = npy.magic(1, 0) + (start - 10).to_bytes(2, "little") + text.encode()
    if bytes(payload[:start]).rstrip() != header:
        raise InvalidModelError(
            f"the header of its array {name!r} is not what its {_MANIFEST} says"
        )
    array = np.frombuffer(payload, dtype, offset=start).reshape(shape)
    native = array.astype(dtype.newbyteorder("="), copy=not array.flags.aligned)
    native.flags.writeable = False
    return native


def plain_dtype(text: Any) -> np.dtype[Any] | None:
    if not isinstance(text, str) or len(text) > 12:
        return None
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, SyntaxError):
        return None
    plain = dtype.kind in "biufSU" and dtype.str == text and dtype.itemsize > 0
    return dtype if plain else None
