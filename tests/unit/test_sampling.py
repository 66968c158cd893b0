"""Of a sampled product, the fast run has as many values as its number of cases can."""

from __future__ import annotations

import pytest


@pytest.mark.sampled(4)
@pytest.mark.parametrize("letter", "abcd")
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("flag", [False, True])
def test_of_a_product(letter, number, flag):
    assert letter in "abcd" and number and flag in (False, True)


def test_each_value_of_a_product_is_in_the_fast_run(request):
    cases = [
        item.callspec.params
        for item in request.session.items
        if item.nodeid.startswith(f"{request.node.nodeid.partition('::')[0]}::")
        and item.name.startswith("test_of_a_product[")
    ]
    if len(cases) < 4:
        pytest.skip("the cases are not run")
    assert {case["letter"] for case in cases} == {*"abcd"}
    assert {case["number"] for case in cases} == {1, 2, 3}
    assert {case["flag"] for case in cases} == {False, True}
    if "slow" in request.config.option.markexpr:  # else all are there
        assert len(cases) == 4
