"""Settings from the environment, read when asked for so that tests can change them."""

from __future__ import annotations

import os


def dump_levels() -> frozenset[str]:
    """Return the levels that ``SKFORGE_DUMP=mir,lir`` asks to print.

    "all" asks for every level and pass.
    """
    names = os.environ.get("SKFORGE_DUMP", "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def tuning_seconds(otherwise: float) -> float:
    """Return the budget of searches that nobody gave one: SKFORGE_TUNING_SECONDS.

    0 switches them off: where a fit has to be quick, or the same on every run.
    """
    try:
        seconds = float(os.environ.get("SKFORGE_TUNING_SECONDS", ""))
    except ValueError:
        return otherwise
    return max(0.0, seconds)


def verify_every_pass() -> bool:
    """Return whether the IR is verified after every pass (SKFORGE_VERIFY=1).

    Tests and debugging switch it on; it costs more than the passes themselves.
    """
    return os.environ.get("SKFORGE_VERIFY", "") not in ("", "0")


def gpu_graphs() -> bool:
    """Return whether calls of few rows become CUDA graphs (SKFORGE_GRAPHS=0: no)."""
    return os.environ.get("SKFORGE_GRAPHS", "").lower() not in ("0", "off")
