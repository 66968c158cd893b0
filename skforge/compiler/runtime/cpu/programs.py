"""The one door to the compiler: machine code from the cache, or else compiled.

The compiler is imported only where the cache has no code, as this takes longer than
everything else that a loaded model does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from skforge._version import __version__
from skforge.compiler.runtime.cpu.code import MachineCode, code_facts
from skforge.compiler.target import Target
from skforge.config import cache_switched_on, dump_levels, verify_every_pass
from skforge.exceptions import CompilerError
from skforge.runtime import object_cache

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function


def program(
    facts: Sequence[str],
    write: Callable[[], Sequence[Function]],
    target: Target,
    symbols: Mapping[str, int] | None = None,
) -> MachineCode:
    """Return the code of functions, which are written only if the cache has none.

    Beside the compiler, they depend on nothing but ``facts``. ``symbols`` are the
    addresses of functions that they declare.
    """
    key = object_cache.key_of(("program", sources(), *code_facts(target), *facts))
    stored = object_cache.find(key) if keeps() else None
    if stored is not None:
        names, _, binary = stored.partition(b"\n")
        # If a valid digest covers a damaged object, it is compiled again.
        with suppress(CompilerError, UnicodeDecodeError):
            return MachineCode(names.decode().split(), binary, target, symbols)
    from skforge.compiler.runtime.cpu.jit import object_of

    of, binary = object_of(write(), target)
    if keeps():
        object_cache.store(key, " ".join(of).encode() + b"\n" + binary)
    return MachineCode(of, binary, target, symbols)


def keeps() -> bool:
    """Tell whether code is kept, and nobody wants to see how it is made."""
    return cache_switched_on() and not verify_every_pass() and not dump_levels()


@lru_cache(maxsize=1)
def sources() -> str:
    """Return a digest of the compiler's version, and of its files' names and contents.

    Reading the files takes 13 ms and listing them 2 ms, so the digest is kept under
    that of the list. Other times or another folder cost one more reading.
    """
    compiler = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    files = sorted(_files(compiler))
    listed = object_cache.key_of(("sources", __version__, *map(str, files)))
    stored = object_cache.find(listed)
    if stored is not None:
        return stored.decode()
    parts = [__version__]
    for path, *_ in files:
        with suppress(OSError), open(path, encoding="utf-8") as file:
            parts += [path[len(compiler) :], file.read()]
    digest = object_cache.key_of(parts)
    object_cache.store(listed, digest.encode())
    return digest


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                facts = entry.stat()
                yield entry.path, facts.st_size, facts.st_mtime_ns
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files(entry.path)
