"""One line of an ablation's table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One variant of one schedule; ``cost`` is None where there is no such variant."""

    model: str
    rows: int
    base: str  # "default" or "walk"
    kind: str  # "whole", "off", "size", "representation" or "reduction"
    change: str
    note: str
    schedule: str = ""
    us_row: float | None = None
    cost: float | None = None  # its time by that of the whole: above 1, it costs
    max_abs_diff: float | None = None
    same_bits: bool | None = None
