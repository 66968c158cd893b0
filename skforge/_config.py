"""Settings from the environment, read when asked for so that tests can change them."""

from __future__ import annotations

import os


def dump_levels() -> frozenset[str]:
    """Return the levels that ``SKFORGE_DUMP=mir,lir`` asks to print.

    "all" asks for every level and pass.
    """
    names = os.environ.get("SKFORGE_DUMP", "").split(",")
    return frozenset(name.strip() for name in names if name.strip())
