"""Figures in running text are those of the stored results."""

from __future__ import annotations

import doctest
import re

import pytest

from benchmarks import running_text

PAGES = {**running_text.SENTENCES, **running_text.TABLES}


def page_of(name: str) -> str:
    return (running_text.ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_the_figures_of_the_results(name: str) -> None:
    page = page_of(name)
    assert running_text.with_figures(name, page) == page


@pytest.mark.parametrize("name", PAGES)
def test_another_figure_is_found(name: str) -> None:
    page, texts = page_of(name), running_text.figures()
    for template in running_text.SENTENCES.get(name, ()):
        others = {**texts, **dict.fromkeys(re.findall(r"\[(.+?)\]", template), "2")}
        planted = running_text.rewritten(page, template, others)
        assert planted != page
        assert running_text.with_figures(name, planted) == page
    for mark in running_text.TABLES.get(name, ()):
        planted = page.replace(f"<!-- {mark}:end -->", f"2×<!-- {mark}:end -->")
        assert running_text.with_figures(name, planted) == page


def test_a_sentence_that_is_gone_is_found() -> None:
    name = "docs/index.md"
    with pytest.raises(ValueError, match="the page has 0 sentences like 'geometric"):
        running_text.with_figures(name, "# A page")


def test_examples_are_true() -> None:
    found = doctest.testmod(running_text)
    assert found.attempted >= 3 and not found.failed
