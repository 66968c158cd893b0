"""Where texts keep their characters, found by looking at some."""

from __future__ import annotations

import ctypes

import pytest

from skforge.runtime import python_objects
from skforge.runtime.python_objects import TEXT_LENGTH, TEXT_STATE, ascii_layout


@pytest.fixture
def anew():
    ascii_layout.cache_clear()
    yield
    ascii_layout.cache_clear()


@pytest.mark.parametrize("text", ["", "x", "a few words", "0" * 1000, "\x7f", "a\0b"])
def test_texts_of_ascii_are_read_where_they_are(text: str) -> None:
    bits, head = ascii_layout().values()
    state = ctypes.c_uint32.from_address(id(text) + TEXT_STATE).value
    assert state & bits == bits
    length = ctypes.c_int64.from_address(id(text) + TEXT_LENGTH).value
    assert ctypes.string_at(id(text) + head, length) == text.encode()


@pytest.mark.parametrize(
    "text", ["é", "ÿ" * 40, "日本", "a😀", type("T", (str,), {})("a")]
)
def test_other_texts_are_none_of_these(text: str) -> None:
    bits = ascii_layout()["skf_ascii"]
    state = ctypes.c_uint32.from_address(id(text) + TEXT_STATE).value
    assert state & bits != bits


def test_texts_of_an_unknown_python_have_other_bits(anew, monkeypatch) -> None:
    monkeypatch.setattr(python_objects, "_state", lambda _: 0)
    assert ascii_layout()["skf_ascii"] > 0xFFFFFFFF
