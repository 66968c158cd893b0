"""Times of an estimate's terms, in units of a machine's work."""

from __future__ import annotations

import json
from pathlib import Path

_FITTED = Path(__file__).with_name("coefficients.json").read_text("utf-8")

#: How many units of the machine's work a count takes, by kind of schedule and term.
COEFFICIENTS: dict[str, dict[str, float]] = json.loads(_FITTED)["coefficients"]

#: Those of Arm, by counted instructions of six forests, since nobody timed any: NEON
#: cannot make bits of a vector's answers at once, and no operand is in memory. Those of
#: AVX2, where steps below lanes take longer than in the fit, and each line that L2 lost
#: some ns (15 forests, Zen 3), where 16 registers do not hold more than 64 codes, and
#: where a few rows of few trees do not hide that a tile waits for the one above, though
#: their walks, eight at a time, hide some of what fetching nodes takes.
ON_ARM = {"bitsliced": {"compare": 0.93, "load": 5.0}, "trees": {"hop": 8.0}}
FAR_CODES = {"far_code": 12.0}
ON_AVX2 = {
    "lanes": {"hop": 9.0, "far": 0.25},
    "tile-row": FAR_CODES,
    "tiles": FAR_CODES | {"chain": 2.7},
    "values": {"chain": 2.1},
    "rows": {"fetch": 3.4},
}

#: What kinds of so many levels take on AVX2 beside estimates that AVX-512 decides
#: (Zen 3, 109 forests, 545 cells: choices take 1.043 of the best without, 1.034 with).
WITHOUT_MASKS = {("pieces", 1): 1.2, ("tiles", 4): 1.1, ("value-row", 3): 0.85}
