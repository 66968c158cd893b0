"""The pages say how long the tests take with the numbers of one run."""

from __future__ import annotations

import json

import pytest

from benchmarks.running_text import rewritten
from tests import ring_times


def test_pages_say_what_was_measured() -> None:
    texts = ring_times.texts_of(json.loads(ring_times.STORED.read_text("utf-8")))
    for name, templates in ring_times.SENTENCES.items():
        page = (ring_times.ROOT / name).read_text(encoding="utf-8")
        for template in templates:
            assert rewritten(page, template, texts) == page


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (74.6, "75 seconds"),
        (75.1, "80 seconds"),
        (120, "2 minutes"),
        (121, "3 minutes"),
    ],
)
def test_no_time_is_said_shorter_than_it_was(seconds: float, said: str) -> None:
    assert ring_times.time_of(seconds) == said
