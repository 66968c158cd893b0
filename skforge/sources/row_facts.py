"""Facts about a model's rows that hold whichever container they come in.

The model decides how a column is read, and never the values that happen to be in a part
of a table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from skforge.outputs.steps import Refused

#: What compiled entries decline, from least to most.
_STRICT = ("nothing", "infinite", "not_finite", None)


@dataclass(frozen=True)
class RowFacts:
    """Which rows a model takes, and who may read them.

    Adapters know what holds of whole rows; :func:`~skforge.sources.row_spec.row_spec`
    adds what is known of columns, for files and tables of other systems.
    """

    #: How many columns, and their names, if the model knows any.
    width: int = 0
    names: tuple[str, ...] | None = None
    #: The columns that have to be there, if not all: a ColumnTransformer drops others.
    used: frozenset[int] | None = None
    #: Columns of texts, with the texts that the model knows.
    texts: Mapping[int, Collection[str]] = field(default_factory=dict)
    #: Columns of categories that are known by name.
    categories: Mapping[int, Sequence[str | float]] = field(default_factory=dict)
    #: Dtypes that the indices of these must have, of categories that are whole numbers.
    index_dtypes: Mapping[int, str] = field(default_factory=dict)
    #: Whether categories are matched by value: models of XGBoost and LightGBM that were
    #: trained on numbers use positions in each frame's own list of categories.
    by_value: bool = False
    #: Why values cannot be read, as some may be categories or codes; "" if they can.
    unread: str = ""
    #: Columns of CatBoost's categories: texts, whole numbers and booleans; whether True
    #: or False was a text in training.
    hashed: Mapping[int, bool] = field(default_factory=dict)
    #: Dtype of arrays, where all columns are numbers.
    dtype: Any = np.float64
    #: Whether rows go through the steps of a pipeline, which may read texts.
    steps: bool = False
    #: Whether all rows go in one batch: steps that run in their library may round a
    #: row differently in another batch. Columns then are texts if they look like it.
    whole: bool = False
    #: Whether rows may have further columns, which are ignored.
    wider: bool = False
    #: Whether spaces in names have become underscores.
    underscores: bool = False

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

    @property
    def framed(self) -> bool:
        by_name = self.steps and self.names is not None
        return by_name or bool(self.texts or self.categories or self.hashed)

    @property
    def needed(self) -> tuple[str, ...]:
        """The names that frames must have: steps alone do without what they drop."""
        names, used = self.names or (), self.used if self.steps else None
        return tuple(n for i, n in enumerate(names) if used is None or i in used)


def of_all(facts: Sequence[RowFacts]) -> RowFacts:
    """Return what holds of rows that go to several models."""
    texts: dict[int, Collection[str]] = {}
    for column, words in chain.from_iterable(each.texts.items() for each in facts):
        texts[column] = frozenset(texts.get(column, ())).union(words)
    return RowFacts(
        texts=texts,
        steps=any(each.steps for each in facts),
        declines=max((each.declines for each in facts), key=_STRICT.index),
        limit=min(each.limit for each in facts),
        direct=all(each.direct for each in facts),
        takes_floats=all(each.takes_floats for each in facts),
        selects=all(each.selects for each in facts),
        compares=any(each.compares for each in facts),
    )
