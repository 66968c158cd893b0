"""Past faults can be planted still, and change answers where nothing is compared."""

from __future__ import annotations

import pytest

from tests.reliability.planting import Edit, NoPlaceError, edited, function_at, planted

# needs all the libraries that faults were found with
catalogue = pytest.importorskip("tests.reliability.planted")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.doors]


@pytest.mark.parametrize("name", catalogue.FAULTS)
def test_the_code_still_has_the_place(name: str) -> None:
    for edit in catalogue.FAULTS[name].edits:
        edited(function_at(edit.place), [edit])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", catalogue.FAULTS)
def test_a_planted_fault_leaves_a_wrong_answer(name: str) -> None:
    fault = catalogue.FAULTS[name]
    right = catalogue.tried(fault, plant=False, compare=True)
    assert right.equal
    assert not right.wrong
    assert not right.spoke
    assert catalogue.tried(fault, plant=True, compare=False).wrong


#: Quick ones of each part of the catalogue, by what compares them.
CAUGHT = {
    "limit-of-zeros-in-csr": "a form",
    "out-over-the-rows": "an answer over its rows",
    "arrow-dictionary-gap": "save",
    "negative-of-unsigned": "a form",
    "decision-of-another-sign": "save",
    "mapping-by-its-order": "a mapping",
    "expression-of-dates": "an expression",
    "csv-empty-category": "the command line",
}


@pytest.mark.parametrize("name", CAUGHT)
def test_a_comparison_speaks_before_a_wrong_answer_leaves(name: str) -> None:
    trial = catalogue.tried(catalogue.FAULTS[name], plant=True, compare=True)
    assert not trial.wrong
    assert trial.spoke


def test_a_text_that_is_gone_cannot_be_planted() -> None:
    place = "runtime.mappings:Mappings._values"
    gone = Edit(place, "values = nothing", "values = 0")
    with pytest.raises(NoPlaceError) as error, planted([gone]):
        pass
    assert str(error.value) == f"{place} has 'values = nothing' 0 times, not once"
    with pytest.raises(NoPlaceError) as error:
        function_at("runtime.mappings:Mappings.x")
    assert str(error.value) == "skforge.runtime.mappings has no Mappings.x"
