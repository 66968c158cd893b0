"""Tests of ``unit/test_record.py`` that compile or start processes."""

from __future__ import annotations

import pytest

from tests.unit.test_record import MODELS, again, assert_same, forest_of


@pytest.mark.parametrize("name", MODELS)
def test_a_stored_forest_is_the_same(name):
    assert_same(forest_of(name), again(forest_of(name)))
