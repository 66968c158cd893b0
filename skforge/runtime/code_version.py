"""Which code of this package runs, and whether machine code is kept for others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from skforge._version import __version__
from skforge.config import cache_switched_on, dump_levels, verify_every_pass
from skforge.runtime import object_cache

#: Folders whose code changes neither kernels nor what a loaded model answers with.
_OTHERS = {"__pycache__", "cli", "display", "distributed", "exporters", "tuning"}


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
    listed = object_cache.key_of(("sources", __version__, str(files)))
    stored = object_cache.find(listed)
    if stored is not None:
        return stored.decode()
    parts = [__version__]
    for path, *_ in files:
        with suppress(OSError), open(path, encoding="utf-8") as file:
            parts += [path[len(package) :], file.read()]
    digest = object_cache.key_of(parts)
    object_cache.store(listed, digest.encode())
    return digest


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                facts = entry.stat()
                yield entry.path, facts.st_size, facts.st_mtime_ns
            elif entry.name not in _OTHERS and entry.is_dir():
                yield from _files(entry.path)
