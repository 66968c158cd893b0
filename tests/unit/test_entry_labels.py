"""Labels that a compiled entry chooses from."""

from __future__ import annotations

import numpy as np

from skforge.engine.entry.entry import _labels


def test_entries_have_a_label_for_each_class() -> None:
    """Code that chooses one of two classes never reads a table with one label."""
    assert _labels(np.array([5])) is None
    assert _labels(np.array([0])) is None
    assert _labels(np.array([5, 7])) == (5, 7)
