"""Tests of ``unit/test_record.py`` that compile or start processes."""

from __future__ import annotations

import pytest

from tests.comparing import assert_same_forest
from tests.unit.test_record import MODELS, again, forest_of


@pytest.mark.parametrize("name", MODELS)
def test_a_stored_forest_is_the_same(name):
    assert_same_forest(forest_of(name), again(forest_of(name)))
