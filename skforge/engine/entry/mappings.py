"""Compiles what reads many dicts; see :mod:`skforge.runtime.dict_reader`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from skforge.compiler.target import Target
from skforge.engine.cpu.programs import key_of, program
from skforge.runtime import dict_reader, object_cache
from skforge.runtime.dict_reader import CLASSES, function_of
from skforge.runtime.python_objects import is_known_python, symbols

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Routine

#: What the code depends on.
_FACTS = "mappings", str(sys.implementation.cache_tag)


def _routines() -> Sequence[Routine]:
    from skforge.engine.entry.mapping_routine import routine

    return [routine([kind.__name__ for kind in CLASSES])]


@lru_cache(maxsize=1)
def _reader() -> Any:
    if not is_known_python():
        return None
    return function_of(program(_FACTS, _routines, Target.host(), symbols(*CLASSES)))


def cached_reader() -> tuple[str, str] | None:
    """Return the key and digest of the code in the cache, if it is there."""
    key = key_of(_FACTS, Target.host())
    digest = object_cache.digest_of(key, object_cache.OBJECTS)
    return None if digest is None else (key, digest)


class CompiledDictReader(dict_reader.DictReader):
    def __init__(
        self,
        places: Mapping[str, int],
        tables: Mapping[str, dict[str | None, float]],
        width: int,
    ) -> None:
        super().__init__(lambda: _reader(), places, tables, width)
