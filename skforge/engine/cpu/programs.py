"""Machine code from the cache, or compiled: only then is the slow compiler imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from skforge.compiler.target import Target
from skforge.config import dump_levels, verify_every_pass
from skforge.engine.cpu.code import MachineCode, code_facts
from skforge.exceptions import CompilerError
from skforge.runtime import object_cache
from skforge.runtime.object_cache import keeps, sources

if TYPE_CHECKING:
    from skforge.engine.cpu.jit import JitSource


#: What programs were compiled to that the cache does not keep, by keys and checks.
_made: Any = lru_cache(maxsize=64)(lambda key, verified: [])


def key_of(facts: Sequence[str], target: Target) -> str:
    return object_cache.key_of(("program", sources(), *code_facts(target), *facts))


def program(
    facts: Sequence[str],
    write: Callable[[], Sequence[JitSource]],
    target: Target,
    symbols: Mapping[str, int] | None = None,
) -> MachineCode:
    """Return the code of functions, which are written only if the cache has none.

    Beside the compiler, they depend on nothing but ``facts``. ``symbols`` are the
    addresses of functions that they declare.
    """
    key = key_of(facts, target)
    stored = object_cache.read_known(key, object_cache.OBJECTS) if keeps() else None
    if stored is not None:
        names, _, binary = stored[0].tobytes().partition(b"\n")
        # If a valid digest covers a damaged object, it is compiled again.
        with suppress(CompilerError, UnicodeDecodeError):
            code = MachineCode(names.decode().split(), binary, target, symbols)
            code.cache_key = key, stored[1]
            return code
    made = [] if keeps() else _made(key, verify_every_pass())
    if not made or dump_levels():
        from skforge.engine.cpu.jit import object_of

        made[:] = [object_of(write(), target)]
    of, binary = made[0]
    code = MachineCode(of, binary, target, symbols)
    if keeps():
        digest = object_cache.store(key, " ".join(of).encode() + b"\n" + binary)
        code.cache_key = None if digest is None else (key, digest)
    return code
