"""Cache of machine code on disk, shared by a user's processes.

An object's key is a digest of everything it depends on: the LLVM text, the target,
LLVM's version and options, this package's version. An object is used only if its own
digest matches, as a damaged object crashes the loader. Directories and files that
another user than root owns, or others may write, are never used. Files are readable for
whom their folder is: one that is written again stays shared. If anything fails here,
kernels are compiled as without a cache.

``SKFORGE_CACHE=off`` disables the cache; ``SKFORGE_CACHE_DIR`` moves it. Anyone who may
write the directory can run code through it: digests detect damage, not forgery.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge._version import __version__
from skforge.config import cache_switched_on, dump_levels, verify_every_pass
from skforge.runtime.digests import sha256
from skforge.runtime.log import DEBUG, INFO, log

Bytes: TypeAlias = NDArray[np.uint8]
BytesLike: TypeAlias = bytes | memoryview

#: Most bytes and files kept in a folder; the least recently used are removed first.
MOST_BYTES = 1 << 30
MOST_FILES = 4096

#: The folder of code, and of notes.
OBJECTS = "objects"

#: A file holds this, the digest of key and object, the key, and the object.
_MAGIC = b"skforge object 1\n"
_DIGEST = 32  # bytes of a SHA-256

#: Most bytes of a file: half of a folder.
MOST_OF_ONE = MOST_BYTES // 2

#: Bytes of a file from which each one stored looks for what to remove.
_LARGE = 1 << 20

#: Flags with which every file is opened, as far as the system has them.
_NAMES = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
_CAREFUL = sum(getattr(os, name, 0) for name in _NAMES)
_WRITES = os.O_WRONLY | os.O_RDWR

#: Seconds until a use is recorded again, and until a temporary file is abandoned.
_TOUCH, _STALE = 60, 3600

#: Folders whose code changes neither kernels nor what a loaded model answers with.
_OTHERS = {"__pycache__", "cli", "display", "distributed", "exporters", "tuning"}

_ANEW = ", so that every process compiles its kernels anew"


def key_of(parts: Iterable[str]) -> str:
    texts = (part.encode() for part in parts)
    marked = (part for text in texts for part in (b"%d:" % len(text), text))
    return str(sha256(*marked).hexdigest())


def directory() -> str | None:
    """Return the cache directory; None if ``SKFORGE_CACHE`` is off.

    It is ``SKFORGE_CACHE_DIR``, or else ``skforge`` in the user's cache directory.
    """
    if not cache_switched_on():
        return None
    folder = os.environ.get("SKFORGE_CACHE_DIR", "").strip()
    if folder:
        return os.path.expanduser(folder)
    home = os.path.expanduser("~")
    if home == "~":
        return None
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return os.path.join(local, "skforge") if local else None
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "skforge")
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(caches, "skforge")


def find(key: str, digest: str | None = None) -> bytes | None:
    stored = read_known(key, OBJECTS, digest)
    return None if stored is None else stored[0].tobytes()


def open_own(path: str, flags: int) -> IO[bytes]:
    """Open a file of the cache without following links or waiting for pipes.

    If the flags ask for a new file, its mode is 0600. Raises OSError if it is no
    regular file, or another user owns it or may write to it.
    """
    descriptor = os.open(path, flags | _CAREFUL, 0o600)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("it is not a regular file")
        if not _is_own(facts):
            raise OSError("other users may write to it")
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "wb" if flags & _WRITES else "rb")


def digest_of(key: str, kind: str) -> str | None:
    folder, start = opened(kind, create=False), b""
    if folder is not None:
        path = os.path.join(folder, key)
        with contextlib.suppress(OSError), open_own(path, os.O_RDONLY) as file:
            start = file.read(len(_MAGIC) + _DIGEST)
    return start[len(_MAGIC) :].hex() or None


def read(key: str, kind: str) -> Bytes | None:
    """Return what a folder holds under a key, aligned to a cache line, if intact."""
    stored = read_known(key, kind)
    return None if stored is None else stored[0]


def read_known(
    key: str, kind: str, digest: str | None = None
) -> tuple[Bytes, str] | None:
    """Return what :func:`read` does, and its digest; None if that is not ``digest``."""
    folder = opened(kind, create=False)
    if folder is None:
        return None
    path = os.path.join(folder, key)
    try:
        with open_own(path, os.O_RDONLY) as file:
            facts = os.fstat(file.fileno())
            found, payload = _payload(key, file, facts.st_size)
        if time.time() - facts.st_mtime > _TOUCH:
            with contextlib.suppress(OSError):
                os.utime(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log("%s is not used: %s", path, error)
        return None
    if payload is None:
        _log("%s is damaged and will be written again", path)
        return None
    _watch(key, kind)
    return (payload, found) if digest in (None, found) else None


def _payload(key: str, file: Any, size: int) -> tuple[str, Bytes | None]:
    head = len(_MAGIC) + _DIGEST + len(key)
    if not head < size <= MOST_OF_ONE:
        return "", None
    start = file.read(head)
    raw = np.empty(size - head + 64, np.uint8)
    at = -raw.ctypes.data % 64
    payload = raw[at : at + size - head]
    if file.readinto(payload) != len(payload) or file.read(1):
        return "", None  # it has become shorter or longer
    named = start[len(_MAGIC) + _DIGEST :]
    digest = sha256(named, payload.data).digest()
    whole = start == _MAGIC + digest + key.encode()
    return digest.hex(), payload if whole else None


def store(key: str, payload: bytes) -> str | None:
    return write(key, OBJECTS, [payload])


def write(key: str, kind: str, parts: Sequence[BytesLike]) -> str | None:
    """Store bytes under a key in a folder; return their digest, None if not stored."""
    folder = opened(kind, create=True)
    if folder is None:
        return None
    beside = os.path.join(folder, f".{key[:16]}.{os.urandom(8).hex()}")
    body = [key.encode(), *parts]
    try:
        try:
            with open_own(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                digest: bytes = sha256(*body).digest()
                file.write(_MAGIC + digest)
                for part in body:
                    file.write(part)
                size = file.tell()
            readers = os.stat(folder).st_mode & 0o044
            if readers:
                os.chmod(beside, 0o600 | readers)
            os.replace(beside, os.path.join(folder, key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
        # Listing all files is slow: for large ones, and for one key in 32.
        if size >= _LARGE or int(key[:2], 16) < 8:
            evict(folder)
    except OSError as error:
        _log(f"nothing is stored in %s: %s{_ANEW}", folder, error, level=INFO)
        return None
    _watch(key, kind)
    return digest.hex()


#: Keys and folders of what was read or written since each of these sets was made.
_watched: list[set[tuple[str, str]]] = []


def _watch(key: str, kind: str) -> None:
    for used in list(_watched):
        used.add((key, kind))


@contextlib.contextmanager
def watched() -> Iterator[set[tuple[str, str]]]:
    """Collect keys and folders of what all threads read or write in the meantime."""
    used: set[tuple[str, str]] = set()
    _watched.append(used)
    try:
        yield used
    finally:
        _watched[:] = [one for one in _watched if one is not used]


def holds(key: str, kind: str) -> bool:
    """Tell whether a folder has something under a key, which then counts as used."""
    folder = opened(kind, create=False)
    if folder is None:
        return False
    path = os.path.join(folder, key)
    try:
        if time.time() - os.stat(path).st_mtime > _TOUCH:
            with contextlib.suppress(OSError):
                os.utime(path)
    except OSError:
        return False
    return True


def evict(folder: str) -> None:
    now, files, total = time.time(), [], 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # gone in the meantime
                facts = entry.stat(follow_symlinks=False)
                if not entry.name.startswith("."):
                    files.append((facts.st_mtime, facts.st_size, entry.path))
                    total += facts.st_size
                elif now - facts.st_mtime > _STALE:
                    os.unlink(entry.path)
    excess = len(files) - MOST_FILES
    for _, size, path in sorted(files):
        if total <= MOST_BYTES and excess <= 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size
        excess -= 1


def opened(name: str, create: bool) -> str | None:
    """Return a folder that only this user may write; make none where others may."""
    parent = directory()
    if parent is None:
        return None
    folder = os.path.join(parent, name)
    text, level = "%s is not used: %s", DEBUG
    if create:
        text, level = text + _ANEW, INFO
    try:
        for place in (parent, folder):
            if create:
                os.makedirs(place, 0o700, exist_ok=True)
            facts = os.stat(place, follow_symlinks=place == parent)
            if not stat.S_ISDIR(facts.st_mode) or not _is_own(facts):
                _log(text, place, "other users own it or may write to it", level=level)
                return None
    except FileNotFoundError:
        return None
    except OSError as error:
        _log(text, folder, error, level=level)
        return None
    return folder


def hides_entries() -> bool:
    """Tell whether there are entries that this user may not read."""
    folders = [directory() or ""]
    try:
        for folder in folders:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.name[0] != "." and not os.access(entry.path, os.R_OK):
                        return True
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def is_writable() -> bool:
    place = directory()
    while place and not os.path.exists(place):
        place = os.path.dirname(place)
    return bool(place) and os.access(str(place), os.W_OK)


def _is_own(facts: os.stat_result) -> bool:
    if not hasattr(os, "geteuid"):  # Windows: a user's folder is not shared
        return True
    return facts.st_uid in (0, os.geteuid()) and not facts.st_mode & 0o022


def _log(message: str, *values: object, level: int = DEBUG) -> None:
    """Log each message once; a missing cache is not an error."""
    said = (message, *map(str, values))
    if said not in _SAID and len(_SAID) < 64:
        _SAID.add(said)
        log(level, "object cache: " + message, *values)


_SAID: set[tuple[str, ...]] = set()


# ------------------------------------------------------------ the code that runs


def keeps() -> bool:
    """Tell whether code is kept, and nobody wants to see how it is made."""
    return cache_switched_on() and not verify_every_pass() and not dump_levels()


@lru_cache(maxsize=1)
def sources() -> str:
    """Return a digest of the package's version, and of its files' names and contents.

    Reading the files takes 15 ms and listing them 2 ms, so the digest is kept under
    that of the list. Other times or another folder cost one more reading.
    """
    package = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
    files = sorted(_files(package))
    listed = key_of(("sources", __version__, str(files)))
    stored = find(listed)
    if stored is not None:
        return stored.decode()
    parts = [__version__]
    for path, *_ in files:
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            parts += [path[len(package) :], file.read()]
    digest = key_of(parts)
    store(listed, digest.encode())
    return digest


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                facts = entry.stat()
                yield entry.path, facts.st_size, facts.st_mtime_ns
            elif entry.name not in _OTHERS and entry.is_dir():
                yield from _files(entry.path)
