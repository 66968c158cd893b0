"""A row of the table: something tried many times, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Row:
    """Counts of one thing that was tried.

    ``lost`` holds a line for each try that did not end as promised: a wrong bit, a
    crash, a hang, an error that is not ours. ``left_out`` says why nothing was tried.
    """

    family: str
    what: str
    tried: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)
    notes: str = ""
    left_out: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def count(self, well: bool, what: str) -> bool:
        """Count one try; ``what`` is said of it if it was lost."""
        self.tried += 1
        if well:
            self.survived += 1
        else:
            self.lost.append(what)
        return well
