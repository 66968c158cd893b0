"""What these programs share: rows, a forest, and what they print of their work."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

X, y = make_classification(12000, 20, n_informative=8, random_state=0)
frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(20)])


def forest(trees: int = 100) -> RandomForestClassifier:
    return RandomForestClassifier(trees, random_state=0)


class Work:
    """From here to ``end``: the CPU time of all threads, and what came out."""

    def __init__(self) -> None:
        self.digest, self.walls = hashlib.sha256(), [0.0][1:]
        self.begin = time.process_time()

    def keep(self, *answers: Any) -> None:
        for answer in map(np.asarray, answers):
            self.digest.update(str((answer.dtype, answer.shape)).encode())
            self.digest.update(answer.tobytes())

    def calls(
        self, predict: Callable[[Any], Any], rows: Any, n: int, size: int
    ) -> None:
        """Predict ``n`` times ``size`` rows each, as a service would."""
        for i in range(n):
            first = i * size % len(rows)
            part = rows[first : first + size]
            start = time.perf_counter()
            answer = predict(part)
            self.walls.append(time.perf_counter() - start)
            self.keep(answer)

    def end(self) -> None:
        cpu = time.process_time() - self.begin
        told = {"cpu": cpu, "walls": self.walls, "digest": self.digest.hexdigest()}
        print(json.dumps(told))
