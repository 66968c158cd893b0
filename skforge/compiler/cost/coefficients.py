"""Times of an estimate's terms, in units of a machine's work."""

from __future__ import annotations

import json
from pathlib import Path

_FITTED = Path(__file__).with_name("coefficients.json").read_text("utf-8")

#: How many units of the machine's work a count takes, by kind of schedule and term.
COEFFICIENTS: dict[str, dict[str, float]] = json.loads(_FITTED)["coefficients"]

#: Those of Arm, by counted instructions of six forests, since nobody timed any: NEON
#: cannot make bits of a vector's answers at once, and no operand is in memory. Those of
#: AVX2, where steps below lanes take longer than in the fit, and more so if nodes and
#: leaves outgrow L2 together (five forests, Zen 4: .18 to .85), and where 16 registers
#: do not hold more than 64 codes (Zen 3).
ON_ARM = {"bitsliced": {"compare": 0.93, "load": 5.0}, "trees": {"hop": 8.0}}
FAR_CODES = {"far_code": 14.0}
ON_AVX2 = {
    "lanes": {"hop": 9.0, "far": 0.35},
    "tile-row": FAR_CODES,
    "tiles": FAR_CODES,
}

#: What kinds of so many levels take on AVX2 beside estimates that AVX-512 decides.
WITHOUT_MASKS = {
    ("pieces", 1): 1.1,
    # since registers are looked up by blends (Zen 4, ten forests: .4 to 1.1 and .4 to
    # .7 of the estimates)
    **dict.fromkeys([("tile-row", 3), ("tile-row", 4), ("tiles", 3)], 0.85),
    ("tiles", 4): 0.9,
}
