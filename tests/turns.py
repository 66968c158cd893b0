"""Products of parameters: a default run takes a part, and ``-m slow`` the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_turns(many: Iterable[Any], few: Iterable[str], often: int = 1) -> list[Any]:
    """Return all pairs; all but ``often`` of each of the many are slow.

    The few take turns, so that each of them meets some of the many in every run.
    """
    names, others = list(many), list(few)
    return [
        pytest.param(
            name,
            other,
            marks=() if (k - at) % len(others) < often else pytest.mark.slow,
        )
        for at, name in enumerate(names)
        for k, other in enumerate(others)
    ]
