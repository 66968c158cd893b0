"""Finds the old binary model inside a pickle of XGBoost, without opening the pickle.

A pickle is a list of instructions, and opening it carries them out. Here they are only
listed, and the bytes of a ``Booster`` that one of them holds are read as a file.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from skforge.exceptions import UnsupportedModelError
from skforge.frontends.content import OLD_XGBOOST

#: Instructions that only number what was said, or how it is cut.
_SILENT = ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "FRAME")
_NOT_OPENED = (
    "skforge does not open pickles, because a pickle can run any code; load it "
    "yourself and pass the model."
)


def pickled_model(data: bytes) -> tuple[bytes, float]:
    """Return the bytes of the one old model in a pickle, and what marks missing values.

    ``UnsupportedModelError`` is raised if there is none, or if there are several, or if
    the mark is not a number.
    """
    held: list[bytes] = []
    marks: list[Any] = []
    named = False
    for name, value in _instructions(data):
        if named:
            marks.append(math.nan if name == "NONE" else value)
        named = value == "missing" and not marks
        content = value if isinstance(value, (bytes, bytearray)) else b""
        if isinstance(value, str) and len(value) > 200:  # as of protocol 2
            with suppress(UnicodeEncodeError):
                content = value.encode("latin-1")
        if OLD_XGBOOST.match(content):
            held.append(bytes(content))
    if len(held) != 1:
        raise UnsupportedModelError(
            f"This pickle holds {len(held) or 'no'} model{'s' * (len(held) > 1)} in "
            f"XGBoost's old binary format. {_NOT_OPENED}"
        )
    mark = marks[0] if marks else math.nan
    unknown = b"xgboost.sklearn" in data[:64] and not marks
    if unknown or type(mark) not in (int, float):
        raise UnsupportedModelError(
            f"This pickle does not say plainly which value is missing. {_NOT_OPENED}"
        )
    return held[0], float(mark)


def _instructions(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield names and values up to the first that is none, as where arrays follow."""
    with suppress(ValueError, IndexError, OverflowError, MemoryError):
        for code, value, _ in pickletools.genops(data):
            if code.name.endswith("GET"):  # a number of what was said before
                yield code.name, None
            elif code.name not in _SILENT:
                yield code.name, value
