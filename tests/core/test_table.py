"""For each library a row of the table kind × form × state, by all methods in turn.

``test_kinds.py``, which has the whole table, and the libraries are imported by the
first test, so that collection stays short.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.doors

KINDS = (
    *("forest of three names", "hist of names", "xgboost of three"),
    *("lightgbm of names", "catboost of texts", "standard and texts, tree"),
)


@pytest.fixture(scope="module")
def table() -> Iterator[Any]:
    from tests.integration import test_kinds

    with test_kinds.one_thread():
        yield test_kinds


@pytest.fixture(scope="module")
def another_process(table: Any) -> Iterator[ProcessPoolExecutor]:
    with table.one_more_process() as pool:
        yield pool


@pytest.mark.parametrize("state", ["live", "pickle", "file"])
@pytest.mark.parametrize("name", KINDS)
def test_an_eighth_of_the_forms(name, state, table, another_process, tmp_path):
    turn = table.turn_of(name, state, 0)
    table.compare(name, state, turn, another_process, tmp_path)
