"""What a model would answer, without machine code.

Scores are those of the reference evaluation, which goes from node to node. What is left
is what frontends and adapters know of a model: its forest, rows and answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import get_tags

from skforge import CompiledForest
from skforge.forest.reference import reference_raw
from skforge.sources.stored_model.store import check, store


def answer(source: Any, model: Any, method: str, X: Any) -> Any:
    """Return None if only the model itself answers such rows."""
    rows = source.taken(source.read(X))
    rows = source.rows(source.prepared(X, method), method) if rows is None else rows
    if rows is None:
        return None
    rows = rows.toarray() if hasattr(rows, "toarray") else rows
    every = source.forest, *source.answers.more
    raw = np.hstack([reference_raw(forest, rows) for forest in every])
    raw = raw[:, 0] if raw.shape[1] == 1 else raw
    return source.answers.of_scores(source.forest, model)(method, raw)


def stored_of(model: Any, forest: Any) -> Any:
    """Return the plain data that artifacts keep of a model."""
    fast = CompiledForest(model)
    fast.estimator_, fast.forest_ = model, forest
    stored = store(fast, model, get_tags(fast))
    check(stored)
    return stored
