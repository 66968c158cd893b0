"""Compiled code, and what CPython reads of it, live as long as they may be used."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from skforge.engine import hashing
from skforge.engine.entry import mappings
from skforge.runtime import entries, python_objects
from skforge.runtime.facts import c_address

#: Where a builtin function's definition is named.
DEFINED_AT = 2 * ctypes.sizeof(ctypes.c_void_p)
SIZES = entries.EntrySizes(1, 1, 1, 1, ())


@pytest.mark.parametrize("number", [0, 1], ids=["entry", "method"])
def test_definitions_outlive_what_the_collector_clears(number: int) -> None:
    """CPython reads a builtin's definition when it frees it."""
    holder = entries.Holder(entries.KernelTable(1), SIZES, ())
    code: Any = SimpleNamespace(address=lambda _: c_address("exp"))
    holder.jit = code
    function = holder.define(
        number, "skf_entry", python_objects.METH_O, "predict", "It answers."
    )
    at = ctypes.c_void_p.from_address(id(function) + DEFINED_AT).value
    assert at is not None
    size, seen = python_objects.DEFINITION, list[bytes]()
    before, taken = ctypes.string_at(at, size), list[Any]()

    def take_what_is_free() -> None:
        taken.extend((ctypes.c_char * size)() for _ in range(3_000))
        seen.append(ctypes.string_at(at, size))

    # The collector clears the holder, then what has the array, then what has the
    # function.
    array = np.zeros(1)
    weakref.finalize(array, take_what_is_free)
    cleared: list[Any] = [array]
    cleared.append(cleared)
    last = [function, cleared]
    last.append(last)
    gc.collect()
    del array, cleared, last, function, holder
    gc.collect()
    assert seen == [before]


@pytest.mark.parametrize("of", [mappings, hashing], ids=["dicts", "objects"])
def test_a_reader_keeps_its_code(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of threads that compile one at once, the cache keeps what one has made."""
    compiled = hashing._hashing_code.__wrapped__
    monkeypatch.setattr(hashing, "_hashing_code", compiled)
    make = of._reader.__wrapped__
    first, second = make(), make()
    codes = [weakref.ref(function.code) for function in (first, second)]
    del second
    gc.collect()
    assert [code() is None for code in codes] == [False, True]


def test_functions_and_encoders_keep_their_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = hashing._encoder_code.__wrapped__
    code = make()
    function, image = code.function("skf_encode"), weakref.ref(code.loaded)
    del code
    assert image() is not None
    function(np.zeros(4, np.int64).tobytes(), None, 1)  # of no rows
    del function
    assert image() is None

    monkeypatch.setattr(hashing, "_encoder_code", make)
    encoder = hashing.Encoder.__new__(hashing.Encoder)
    assert encoder.address == encoder.address
