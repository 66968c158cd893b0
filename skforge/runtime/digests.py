"""SHA-256 that leaves hashlib aside for short texts: to import it takes 3 ms."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

#: Bytes from which OpenSSL, which is seven times as fast, is worth its import.
_LONG = 1 << 18


def sha256(*parts: Any) -> Any:
    """Return the SHA-256 of buffers, one after the other, as hashlib does."""
    views: list[memoryview] = [memoryview(part) for part in parts]
    long = sum(view.nbytes for view in views) >= _LONG or "hashlib" in sys.modules
    digest = _made(long)()
    for view in views:
        digest.update(view)
    return digest


@lru_cache(2)
def _made(long: bool) -> Any:
    for module in () if long else ("_sha2", "_sha256"):  # of Python 3.12, and before
        with suppress(ImportError):  # a Python that has OpenSSL's alone
            return import_module(module).sha256
    return import_module("hashlib").sha256
