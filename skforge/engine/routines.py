"""Single functions of LIR, with numbers and arrays for arguments."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from skforge._typing import Array
from skforge.compiler.target import Target
from skforge.engine.cpu.programs import program
from skforge.engine.cpu.threads import parallel_for_pointer
from skforge.engine.kernels import address_of

if TYPE_CHECKING:
    from skforge.engine.cpu.jit import JitSource


@lru_cache(maxsize=64)
def routine(
    write: Callable[..., JitSource | list[JitSource]], *facts: object
) -> Callable[..., None]:
    """Return what runs the function that ``write(*facts)`` describes, compiled once.

    Tables as text may follow it in a list.
    Its arguments are the most threads, as :func:`parallel_for_pointer` takes them, and
    those of the function: 64-bit numbers, and arrays, of which it gets the addresses.
    """
    names = write.__module__, write.__qualname__, *map(str, facts)

    def sources() -> Sequence[JitSource]:
        written = write(*facts)
        return written if isinstance(written, list) else [written]

    code = program(names, sources, Target.host())

    def run(threads: int | None, *values: int | float | Array) -> None:
        kinds = "".join("d" if isinstance(value, float) else "q" for value in values)
        words = (
            address_of(value) if isinstance(value, np.ndarray) else value
            for value in values
        )
        pfor, threads = parallel_for_pointer(threads)
        slots = struct.pack(kinds, *words)
        code.function(code.names[0])(slots, pfor or None, threads)

    return run
