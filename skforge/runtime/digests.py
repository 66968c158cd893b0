"""SHA-256 that leaves hashlib aside for a few texts: to import it takes 3 ms."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

#: Bytes, of all texts so far, from which OpenSSL is worth its import: it is seven times
#: as fast.
_MANY = 1 << 19
_hashed = 0


def sha256(*parts: Any) -> Any:
    global _hashed
    views: list[memoryview] = [memoryview(part) for part in parts]
    _hashed += sum(view.nbytes for view in views)
    digest = _made(_hashed >= _MANY or "hashlib" in sys.modules)()
    for view in views:
        digest.update(view)
    return digest


@lru_cache(2)
def _made(many: bool) -> Any:
    for module in () if many else ("_sha2", "_sha256"):  # of Python 3.12, and before
        with suppress(ImportError):  # a Python that has OpenSSL's alone
            return import_module(module).sha256
    return import_module("hashlib").sha256
