"""Writes XGBoost's old binary files as the JSON that today's XGBoost loads."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import UnsupportedModelError, VerificationError
from skforge.frontends.content import XGBOOST_PICKLE
from skforge.frontends.xgboost.model import forest_from_document
from skforge.frontends.xgboost.old_binary import document_of
from skforge.frontends.xgboost.pickled import pickled_model


def as_json(data: bytes, name: str) -> bytes:
    """Return the JSON of an old file, once it was read back and has the same trees."""
    if XGBOOST_PICKLE.match(data):
        data, missing = pickled_model(data)
        if not math.isnan(missing):
            raise UnsupportedModelError(
                f"The pickle says that {missing} is a missing value, and JSON has no "
                "place for it; use CompiledForest(path), which keeps it."
            )
    document = document_of(data)
    forest = forest_from_document(document)
    forest.validate()
    text = json.dumps(document, default=_numbers, separators=(",", ":"))
    if forest_from_document(json.loads(text)).content_hash() != forest.content_hash():
        raise VerificationError(
            f"{name} cannot be converted: the new file would hold other trees. Please "
            "report it."
        )
    return text.encode()


def _numbers(values: Array) -> Any:
    """Return a list; of float32, numbers with as few digits as tell them apart."""
    if values.dtype.kind != "f":
        return values.tolist()
    return [float(text) for text in values.astype(np.float32).astype(str)]
