"""Facts about a model's rows that hold whichever container they come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skforge.outputs.steps import Refused

#: What compiled entries decline, from least to most.
_STRICT = ("nothing", "infinite", "not_finite", None)


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Which rows a model takes, and who may read them."""

    #: Values that compiled entries decline; None disables compiled entries.
    declines: Refused | None = "nothing"
    #: Size from which compiled entries also decline numbers. With a finite one, they
    #: take arrays of the forest's own dtype alone.
    limit: float = float("inf")
    #: Whether compiled entries may take the caller's arrays.
    direct: bool = True
    #: Whether arrays on a GPU are rows of the forest.
    on_device: bool = True
    #: Whether the model accepts rows of floats; of a forest it is always so.
    takes_floats: bool = True
    #: Value of absent entries of sparse rows.
    fill: float = 0.0
    #: Whether other forests may read other forms of rows; see ``Source.of_form``.
    has_forms: bool = False
    #: Whether frames may have further columns, and those of training in any order.
    selects: bool = False
    #: Whether the names of a frame's columns count.
    compares: bool = True


def of_all(facts: Sequence[RowFacts]) -> RowFacts:
    """Return what holds of rows that go to several models."""
    return RowFacts(
        declines=max((each.declines for each in facts), key=_STRICT.index),
        limit=min(each.limit for each in facts),
        direct=all(each.direct for each in facts),
        takes_floats=all(each.takes_floats for each in facts),
        selects=all(each.selects for each in facts),
        compares=any(each.compares for each in facts),
    )
