"""Statistics of combinations of categories, by compiled code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from skforge.compiler.forest.categories import HashedCategories
from skforge.compiler.runtime.cpu.programs import program
from skforge.compiler.runtime.entry.encoder_tables import tables_of
from skforge.compiler.runtime.kernels import address_of
from skforge.compiler.target import Target

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function


def _functions() -> Sequence[Function]:
    from skforge.compiler.runtime.entry.encoder_routines import encoder

    return [encoder(Target.host())]


_code = lru_cache(maxsize=1)(lambda: program(("encoder",), _functions, Target.host()))


class Encoder:
    def __init__(self, hashed: HashedCategories) -> None:
        sizes, self._kept = tables_of(hashed)
        addresses = (array.ctypes.data for array in self._kept)
        #: What the code reads, behind the number of rows and their address.
        self.slots = struct.pack(f"{len(sizes) + len(self._kept)}q", *sizes, *addresses)

    @property
    def address(self) -> int:
        return _code().address("skf_encode")

    def encode(self, rows: NDArray[Any]) -> None:
        """Encode C-contiguous float32 rows in place; categories hold bits of hashes."""
        slots = struct.pack("2q", len(rows), address_of(rows)) + self.slots
        _code().function("skf_encode")(slots, None, 1)
