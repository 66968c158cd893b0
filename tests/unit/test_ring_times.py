"""The pages say how long the tests take with the numbers of one run."""

from __future__ import annotations

import json

import pytest

from tests import ring_times

LOG = """
===== 12 passed, 1 skipped in 61.20s (0:01:01) =====
+ others
=== 1370 passed, 3 warnings in 659.00s (0:10:59) ===
"""


def test_pages_say_what_was_measured() -> None:
    texts = ring_times.texts_of(json.loads(ring_times.STORED.read_text("utf-8")))
    for name, templates in ring_times.SENTENCES.items():
        page = (ring_times.ROOT / name).read_text(encoding="utf-8")
        for template in templates:
            assert ring_times.sentence(template, texts) in page
            assert ring_times.rewritten(page, template, texts) == page


def test_a_log_is_read() -> None:
    numbers = ring_times.measured(LOG, "2 cores")
    assert numbers["core"] == {"tests": 12, "seconds": 61.2}
    texts = ring_times.texts_of(numbers)
    assert texts["core minutes"] == "1 minute"
    assert (texts["others tests"], texts["others minutes"]) == ("1,400", "11 minutes")
    template = "in [core minutes] on [machine]."
    page = ring_times.rewritten("It runs in 7 minutes on a mill.", template, texts)
    assert page == "It runs in 1 minute on 2 cores."
    with pytest.raises(ValueError, match="0 sentences like"):
        ring_times.rewritten(page, "elsewhere [machine]!", texts)


def test_a_log_of_half_a_run_is_refused() -> None:
    with pytest.raises(ValueError, match="has 1 summaries"):
        ring_times.measured(LOG.partition("+")[0], "2 cores")
