"""The answers of a forest to raw scores, by the name of the output."""

from __future__ import annotations

from functools import partial
from typing import Any

from skforge.forest.forest import Forest
from skforge.outputs import answers
from skforge.outputs.steps import Output


def _of_scores(output: Output, forest: Forest, raw: Any) -> Any:
    return answers.of_scores(forest.answers, output, raw)


apply_transform = partial(_of_scores, "transformed")
predict_proba = partial(_of_scores, "probabilities")
decide = partial(_of_scores, "labels")
decision_function = partial(_of_scores, "decision")
score_samples = partial(_of_scores, "scores")


def class_labels(forest: Forest) -> Any:
    return answers.class_labels(forest.answers)
