"""Products and drawn examples: a default run takes a part, and ``-m slow`` the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


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


def random_test(
    check: Callable[..., Any], few: int, many: int, *strategies: Any
) -> Callable[[int], None]:
    """Return a test that calls ``check`` with a few drawn examples, or with many."""

    @pytest.mark.parametrize(
        "examples", [few, pytest.param(many, marks=pytest.mark.slow)]
    )
    def test(examples: int) -> None:
        drawn = given(*strategies or [st.data()])(check)
        settings(max_examples=examples)(drawn)()

    return test
