"""What an exported library is, and its functions that say so: version, errors, CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.outputs.steps import Steps
from skforge.compiler.target import Target
from skforge.exporters.llvm_model import LINE, Scratch

#: Values of a part of the rows that are converted, and rows of it, at most.
PART_VALUES, PART_ROWS = 1 << 16, 512


@dataclass(frozen=True, slots=True, eq=False)
class ExportedKernel:
    """A kernel by its symbol: its constants, scratch, and the rows it takes at most.

    ``scratch`` are the bytes of each piece, whole cache lines.
    """

    symbol: str
    data: tuple[NDArray[Any], ...]
    most_rows: int | None
    scratch: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ExportedVariant:
    """The kernels for one CPU, by the last row count of their ranges (None: any).

    ``leaves`` is the number of the kernel that finds leaves, if there is one.
    """

    target: Target
    kernels: tuple[ExportedKernel, ...]
    ranges: tuple[tuple[int | None, int], ...]
    leaves: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """Everything that the text depends on.

    ``outputs`` are the steps of each function, by its name without a dtype.
    """

    name: str
    n_features: int
    n_outputs: int
    n_trees: int
    row_dtype: str
    sum_dtype: str
    missing_value: float
    outputs: Mapping[str, Steps]
    variants: tuple[ExportedVariant, ...]
    version: str
    checksum: str
    words: tuple[str, ...]  # what error codes mean, from 0 on

    @property
    def part_rows(self) -> int:
        """Rows that are converted, or whose sums are kept, at a time."""
        widest = max(self.n_features, self.n_outputs, 1)
        return max(1, min(PART_ROWS, PART_VALUES // widest))

    @property
    def scratch(self) -> Scratch:
        """What a call may need."""
        rows = self.n_features * np.dtype(self.row_dtype).itemsize
        sums = self.n_outputs * np.dtype(self.sum_dtype).itemsize
        kernels = [sum(k.scratch) for v in self.variants for k in v.kernels]
        # Vectors may be read past the end, hence a line more.
        wide = [-(-self.part_rows * n // LINE) * LINE + LINE for n in (rows, sums)]
        return Scratch(wide[0], wide[1], max(kernels, default=0))


def bytes_text(payload: bytes) -> str:
    """Return bytes as a string of LLVM, each in hexadecimal."""
    if not payload:
        return "zeroinitializer"
    digits = np.frombuffer(payload.hex().upper().encode(), np.uint8).reshape(-1, 2)
    whole = np.empty((len(payload), 3), np.uint8)
    whole[:, 0] = ord("\\")
    whole[:, 1:] = digits
    return f'c"{whole.tobytes().decode()}"'


def facts_text(library: Library) -> str:
    """Return the functions without rows."""
    name = library.name
    texts: list[str] = []

    def text(symbol: str, value: str) -> str:
        payload = value.encode() + b"\0"
        texts.append(
            f"@{name}.text.{symbol} = internal constant [{len(payload)} x i8] "
            f"{bytes_text(payload)}"
        )
        return f"@{name}.text.{symbol}"

    def table(symbol: str, values: Sequence[str]) -> str:
        items = [
            f"ptr {text(f'{symbol}.{k}', value)}" for k, value in enumerate(values)
        ]
        # pointers need relocations: a switch has none, and stays in read-only pages
        lines = [
            f"define ptr @{name}_{symbol}(i32 %k) nounwind {{",
            f"  switch i32 %k, label %k{len(values)} [ "
            + " ".join(f"i32 {k}, label %k{k}" for k in range(len(values)))
            + " ]",
        ]
        for k, item in enumerate(items):
            lines += [f"k{k}:", f"  ret {item}"]
        unknown = text(f"{symbol}.other", "unknown")
        lines += [f"k{len(values)}:", f"  ret ptr {unknown}", "}"]
        return "\n".join(lines)

    functions = [
        f"""define ptr @{name}_{symbol}() nounwind {{
  ret ptr {text(symbol, value)}
}}"""
        for symbol, value in (
            ("version", library.version),
            ("checksum", library.checksum),
        )
    ]
    functions += [
        table("error", library.words),
        table("variant_name", [v.target.cpu for v in library.variants]),
    ]
    return "\n\n".join([*texts, *functions])
