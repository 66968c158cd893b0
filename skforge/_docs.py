"""Docstrings that stand once: others take from them what they lack."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from inspect import cleandoc, signature
from typing import Any, TypeVar

Documented = TypeVar("Documented", bound=Callable[..., Any])

#: Sections of numpydoc, in their order.
_SECTIONS = ("Parameters", "Returns", "Raises", "Warns", "Notes", "Examples")


def documented(*sources: Any) -> Callable[[Documented], Documented]:
    """Return a decorator that completes a docstring with those of other objects.

    What it lacks comes from the first source that has it: the entries of its
    parameters, and whole sections except for examples.
    """

    def complete(target: Documented) -> Documented:
        if target.__doc__ is None:  # python -OO
            return target
        head, sections = _parsed(target)
        entries = _entries(sections)
        for source in sources:
            others, its_entries = _of_source(source)
            entries, sections = its_entries | entries, others | sections
        named = (entries.get(name) for name in signature(target).parameters)
        sections["Parameters"] = "\n".join(dict.fromkeys(filter(None, named)))
        shown = [name for name in _SECTIONS if sections.get(name)]
        parts = (f"{name}\n{'-' * len(name)}\n{sections[name]}" for name in shown)
        target.__doc__ = "\n\n".join([head, *parts]) + "\n"
        return target

    return complete


def _parsed(target: Any) -> tuple[str, dict[str, str]]:
    text = cleandoc(target.__doc__ or "")
    head, *rest = re.split(r"\n\n([A-Z][A-Za-z ]+)\n-{3,}\n", text)
    return head, dict(zip(rest[::2], rest[1::2], strict=True))


@lru_cache(16)
def _of_source(source: Any) -> tuple[dict[str, str], dict[str, str]]:
    _, sections = _parsed(source)
    sections.pop("Examples", None)
    return sections, _entries(sections)


def _entries(sections: dict[str, str]) -> dict[str, str]:
    texts = {}
    for entry in re.split(r"\n(?=\S)", sections.get("Parameters", "")):
        for name in entry.partition(" : ")[0].replace("*", "").split(", "):
            texts[name] = entry
    return texts
