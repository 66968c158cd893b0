"""Why a stored model does not read rows: the value that it refuses is found."""

from __future__ import annotations

import pytest

from skforge.sources.stored_model.declined import first_refused


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_the_first_refused_value_is_found_in_few_steps(n: int) -> None:
    for refused in range(n):
        asked = []

        def reads(taken: int, refused: int = refused, asked: list[int] = asked) -> bool:
            assert len(asked) < 6
            asked.append(taken)
            return taken <= refused

        assert first_refused(n, reads) == refused
        assert refused or asked in ([], [1])  # the first one is most often to blame
