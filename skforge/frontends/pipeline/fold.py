"""Finds the tests of raw values, with the transformers themselves as the oracle.

Between the special values of encoders and imputers, a test of a transformed value is
monotone in the raw one: it changes at most once. Where it changes is found by bisection
over the numbers of the rows' dtype in their order, for all tests at once, so that no
arithmetic of a transformer is repeated here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Array, Bools
from skforge.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import evaluate_predicates
from skforge.frontends.pipeline import transformers
from skforge.frontends.pipeline.bounds import Bounds
from skforge.frontends.pipeline.columns import Column, ColumnPlan
from skforge.frontends.pipeline.number_search import (
    Alike,
    distance,
    last_alike,
    next_number,
    numbers_at,
    ordinals,
)
from skforge.frontends.pipeline.transformers import cannot_fold


class Runs(NamedTuple):
    """Parts of the numbers or texts of a column, where an output is monotone.

    Texts are given by their number: the first and last of a run are equal then.
    """

    first: Array
    last: Array
    #: The output for these.
    at_first: Array
    at_last: Array


def last_values(plan: ColumnPlan, forest: Forest, values: Array) -> Array:
    """Return values of a column as the last step reads them: NaN for missing."""
    absent = (values == 0) & _lacks_zeros(plan, forest)
    with np.errstate(over="ignore"):
        values = values.astype(forest.input_dtype)
        marker = forest.input_dtype.type(forest.missing_value)
    values[absent | (values == marker)] = np.nan
    return values


def _lacks_zeros(plan: ColumnPlan, forest: Forest) -> bool:
    """Tell whether zeros are missing; others that the cast makes zeros are not."""
    return bool(plan.sparse) and forest.source == "xgboost"


def pieces_of(
    plan: ColumnPlan,
    inner: Sequence[Forest],
    bounds: Bounds,
    known: Mapping[int, Array] = MappingProxyType({}),
) -> dict[int, Array]:
    """Return the greatest number of each piece of the columns of numbers.

    In a piece, every output is monotone. Columns with one piece are left out, unless
    they are among the ``known`` pieces, which are divided further.
    """
    pieces = dict(known)

    def divide(column: Column, special: Array, dtype: Any = None) -> None:
        """Divide the pieces of a column's source below and above some of its values."""
        if column.rough:  # which then are not where a search finds them
            cannot_fold("A later step tells apart numbers that rounding may reorder")
        source = column.source
        special = special[np.isfinite(special)]
        low, high, ends = bounds.low[source], bounds.high[source], pieces[source]
        if column.dtype.kind == "f":  # a step compares them in the dtype of its rows
            with np.errstate(over="ignore"):
                cast = special.astype(column.dtype).astype(special.dtype)
            special = np.union1d(special, cast[np.isfinite(cast)])
        own = column.stage is None and column.dtype == plan.dtype
        if own and dtype in (None, plan.dtype):
            at = special.astype(plan.dtype)  # some are between two numbers
            below = np.nextafter(at, low.dtype.type(-np.inf))
            new = np.append(below[at == special], np.where(at > special, below, at))
        else:
            first, last = _firsts(ends, low), ends
            n = 2 * len(special)
            value = np.tile(np.repeat(special, 2), len(ends))
            over = np.tile([False, True], len(special) * len(ends))
            start, end = np.repeat(first, n), np.repeat(last, n)

            def above(x: Array, item: Array) -> Bools:
                values = plan.values_of([column], np.zeros(len(x), np.intp), x)
                with np.errstate(over="ignore"):
                    values = values if dtype is None else values.astype(dtype)
                return np.where(over[item], values > value[item], values >= value[item])

            before = above(start, np.arange(len(start)))
            new = last_alike(start, end, lambda x, item: above(x, item) == before[item])
        new = new[(new >= low) & (new < high)]
        pieces[source] = np.unique(np.concatenate([ends, new]))

    for stage in plan.stages:
        checks = [
            (column, transformers.numbers_of(special))
            for column, special, *_ in stage.checks()
            if column.source not in plan.texts
        ]
        for column, special in _changing(plan, bounds, pieces, checks):
            divide(column, special)
    for forest in inner:
        checks = [(plan.columns[i], at) for i, at in _tested(plan, forest).items()]
        for column, special in _changing(plan, bounds, pieces, checks):
            # the last step reads numbers in a dtype of its own
            divide(column, special, forest.input_dtype)
            if _lacks_zeros(plan, forest):
                divide(column, np.zeros(1))
    return pieces


def _changing(
    plan: ColumnPlan,
    bounds: Bounds,
    pieces: dict[int, Array],
    checks: list[tuple[Column, Array]],
) -> Iterator[tuple[Column, Array]]:
    """Yield columns that vary within pieces, by source: encoders make hundreds."""
    checks = [check for check in checks if np.isfinite(check[1]).any()]
    for source in {column.source for column, _ in checks}:
        of_it = [check for check in checks if check[0].source == source]
        columns = [column for column, _ in of_it]
        last = pieces.setdefault(source, bounds.high[source : source + 1])
        first = _firsts(last, bounds.low[source])
        starts, ends = (plan.values(columns, {source: x}) for x in (first, last))
        for check, start, end in zip(of_it, starts, ends, strict=True):
            if (start != end).any():
                yield check


def _tested(plan: ColumnPlan, forest: Forest) -> dict[int, Array]:
    """Return values around which tests of the last step are not monotone."""
    values: dict[int, Array] = {}
    always = []
    if not np.isnan(forest.missing_value):
        always.append(forest.missing_value)
    if _lacks_zeros(plan, forest):
        always.append(0.0)
    words = np.diff(forest.category_offset)
    for number in np.unique(forest.feature).tolist():
        column = plan.columns[number]
        if column.source in plan.texts:
            continue
        special = list(always)
        tests = np.flatnonzero(forest.feature == number)
        test = forest.comparison[tests]
        if (forest.missing[tests] == Missing.ZERO).any():
            special += [-ZERO_THRESHOLD, ZERO_THRESHOLD]
        if (test >= Comparison.IN).any():
            special += range(-1, 32 * int(words[tests].max()) + 1)
        equal = (test == Comparison.EQ) | (test == Comparison.NE)
        special += forest.threshold[tests[equal]].tolist()
        if special:
            values[number] = np.unique(special)
    return values


def _firsts(ends: Array, low: float) -> Array:
    with np.errstate(over="ignore"):
        after = np.nextafter(ends[:-1], ends.dtype.type(np.inf))
    return np.concatenate([np.array([low], ends.dtype), after])


def runs_of(
    plan: ColumnPlan,
    forest: Forest,
    bounds: Bounds,
    pieces: dict[int, Array],
    refused: dict[int, Bools],
    points: dict[int, Array],
) -> dict[int, Runs]:
    """Return the runs of each column that the trees test.

    Neighbouring pieces with one and the same output are one run. ``points`` are the
    values of each column of texts, in the order of their codes.
    """
    used = np.unique(forest.feature).tolist()
    columns = [plan.columns[number] for number in used]
    spans: dict[int, tuple[Array, Array]] = {}  # the first and last of each piece
    for source in {column.source for column in columns}:
        if source in points:
            codes = np.arange(len(points[source]), dtype=plan.dtype)
            spans[source] = codes, codes
        else:
            ends = pieces.get(source, bounds.high[source : source + 1])
            accepted = ~refused.get(source, np.zeros(len(ends), np.bool_))
            spans[source] = _firsts(ends, bounds.low[source])[accepted], ends[accepted]
    fixed = {*points, *(plan.columns[i].source for i in _tested(plan, forest))}
    n_rows = max([len(first) for first, _ in spans.values()], default=1)

    def outputs(end: int) -> list[Array]:
        rows = {source: points.get(source, spans[source][end]) for source in spans}
        return plan.values(columns, _padded(plan, rows, n_rows))

    runs = {}
    for number, low, high in zip(used, outputs(0), outputs(1), strict=True):
        column = plan.columns[number]
        first, last = spans[column.source]
        low = last_values(plan, forest, low[: len(first)])
        high = last_values(plan, forest, high[: len(first)])
        new = np.ones(len(first), np.bool_)
        flat = _equal_or_nan(low, high)
        new[1:] = ~(flat[1:] & flat[:-1] & _equal_or_nan(high[:-1], low[1:]))
        if column.rough and column.source not in fixed:
            if (np.isnan(low) != np.isnan(high)).any():
                cannot_fold("A step makes some numbers missing")
            new[1:] &= (first[1:] != next_number(last[:-1])) | _turns(low, high)
        ends = np.append(np.flatnonzero(new)[1:], len(new)) - 1
        runs[number] = Runs(first[new], last[ends], low[new], high[ends])
    return runs


def _turns(low: Array, high: Array) -> Bools:
    """Tell which pieces, from the second on, do not go on in the direction so far."""
    outputs = np.column_stack([low, high]).ravel()
    before, after = outputs[:-1], outputs[1:]
    ways = (after > before).astype(int) - (after < before)
    moving = np.flatnonzero(ways)
    back = ways[moving[1:]] != ways[moving[:-1]]
    turns: Bools = np.isnan(outputs[1:-2:2]) | np.isnan(outputs[2::2])
    turns[(moving[1:][back] + 1) // 2 - 1] = True
    return turns


def _padded(plan: ColumnPlan, rows: dict[int, Array], size: int) -> dict[int, Array]:
    padded = {}
    for source, values in rows.items():
        padded[source] = np.full(size, plan.example(source), values.dtype)
        padded[source][: len(values)] = values
    return padded


def _equal_or_nan(a: Array, b: Array) -> Bools:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


class TrueParts(NamedTuple):
    """Where each test is true: parts of numbers; neighbours differ in the answer."""

    #: By part: the test, its first and last number, and the answer.
    test: Array
    first: Array
    last: Array
    answer: Bools


def joined(parts: list[TrueParts], ends: Array) -> TrueParts:
    pairs = zip(parts, [0, *ends[:-1].tolist()], strict=True)
    moved = [part._replace(test=part.test + start) for part, start in pairs]
    return TrueParts(*map(np.concatenate, zip(*moved, strict=True)))


def parts_of(plan: ColumnPlan, forest: Forest, runs: dict[int, Runs]) -> TrueParts:
    order = np.argsort(forest.feature, kind="stable")
    starts = np.searchsorted(forest.feature[order], [*runs, forest.n_features])
    columns: list[tuple[Array, ...]] = []
    for number, (run, begin) in enumerate(zip(runs.values(), starts[:-1], strict=True)):
        tests = order[begin : starts[number + 1]]
        tiled = (np.tile(column, len(tests)) for column in run)
        columns.append((np.repeat(tests, len(run.first)), *tiled))
    if not columns:
        none = np.zeros(0, plan.dtype)
        return TrueParts(np.zeros(0, np.intp), none, none, np.zeros(0, np.bool_))
    test, begins, ends, low, high = map(np.concatenate, zip(*columns, strict=True))
    at_first = evaluate_predicates(forest, test, low)
    at_last = evaluate_predicates(forest, test, high)
    changes = np.flatnonzero(at_first != at_last)
    cuts = np.zeros(0, plan.dtype)
    n_cuts = (at_first != at_last).astype(np.intp)

    def alike(x: Array, item: Array) -> Bools:
        tests = test[changes[item]]
        values = plan.values_of(plan.columns, forest.feature[tests], x)
        values = last_values(plan, forest, values)
        answer = evaluate_predicates(forest, tests, values)
        return np.asarray(answer == at_first[changes[item]])

    if len(changes):
        start, end = begins[changes], ends[changes]
        for low, high in _guesses(plan, forest, test[changes]):
            low, high = np.clip(low, start, end), np.clip(high, start, end)
            item = np.arange(len(changes))
            inside = alike(low, item) & ~alike(high, item)
            start, end = np.where(inside, low, start), np.where(inside, high, end)
        cuts = last_alike(start, end, alike)
        read = [plan.columns[i] for i in forest.feature[test[changes]]]
        if any(column.rough for column in read):
            _check_steady(plan, read, cuts)
            more = _alternating(read, cuts, begins[changes], ends[changes], alike)
            each = [more.get(k, cuts[k : k + 1]) for k in range(len(cuts))]
            cuts, n_cuts[changes] = np.concatenate(each), [*map(len, each)]
    # a run is one part, and one more after each change of the answer
    of = np.repeat(np.arange(len(test)), n_cuts + 1)
    nth = np.arange(len(of)) - (np.cumsum(n_cuts + 1) - n_cuts - 1)[of]
    answer = at_first[of] ^ (nth % 2 == 1)
    begin, end = begins[of], ends[of]
    begin[nth > 0], end[nth < n_cuts[of]] = next_number(cuts), cuts
    new = np.ones(len(of), np.bool_)
    new[1:] = (test[of][1:] != test[of][:-1]) | (answer[1:] != answer[:-1])
    closing = np.append(np.flatnonzero(new)[1:], len(of)) - 1
    return TrueParts(test[of][new], begin[new], end[closing], answer[new])


def _check_steady(plan: ColumnPlan, columns: list[Column], cuts: Array) -> None:
    source = np.array([column.source for column in columns])
    of_source = {i: cuts[source == i] for i in {*source.tolist()} - {*plan.texts}}
    ends = {i: np.append(x[:16], x[-16:]) for i, x in of_source.items()}
    rows = {i: np.resize(x, 33) for i, x in ends.items()}
    for stage in plan.stages:
        rough = transformers.is_rough(stage.transformer)
        if rough and not stage.is_steady(plan.values(stage.inputs, rows)):
            cannot_fold(f"{stage.step!r} answers a row otherwise if others are beside")


#: On both sides of a change, numbers that are all tried; more if answers alternate.
_NEAR, _NEARER = 64, 2048


def _alternating(
    columns: list[Column], cuts: Array, begins: Array, ends: Array, alike: Alike
) -> dict[int, Array]:
    """Return the last number before each change of an answer, where there are several.

    Rounding may make an answer alternate near its only change, ``cuts``. Numbers beside
    it are all tried, and some more at ever greater distances.
    """
    found: dict[int, Array] = {}
    items = np.flatnonzero([column.rough for column in columns])
    every_pace = np.array([_pace(column, cuts.dtype) for column in columns], np.int64)
    far = 2 ** np.arange(12, 62)
    for near in _NEAR, _NEARER:
        steps = np.concatenate([-far[::-1], np.arange(-near, near + 1), far])
        several: list[int] = []
        for item in np.array_split(items, 1 + len(items) * len(steps) // _AT_ONCE):
            at, pace = ordinals(cuts[item])[:, None], every_pace[item, None]
            below = distance(ordinals(begins[item])[:, None], at) // pace
            above = distance(at, ordinals(ends[item])[:, None]) // pace
            step = np.clip(steps, -below, above)
            x = numbers_at(at + step * pace, cuts.dtype)
            same = alike(x.ravel(), np.repeat(item, len(steps))).reshape(x.shape)
            wrong = same != (step <= 0)
            several += item[wrong.any(axis=1)].tolist()
            if near == _NEARER:
                if (wrong & ((np.abs(step) > near // 2) | (pace > 1))).any():
                    cannot_fold("A step changes the order of numbers")
                changes = same[:, 1:] != same[:, :-1]
                ways = zip(item.tolist(), x, changes, strict=True)
                found |= {k: last[:-1][change] for k, last, change in ways}
        items = np.array(several, np.intp)
    return found


def _pace(column: Column, dtype: np.dtype[Any]) -> int:
    """Return how many numbers of a dtype are one number of a column of the rows."""
    while column.stage is not None:
        column = column.stage.inputs[column.read]
    if column.dtype.kind != "f":
        return 1
    return int(1 << (np.finfo(dtype).nmant - np.finfo(column.dtype).nmant))


_FAR = 2.0**40  # so far away that the difference shows the slope to the last digits


def _guesses(
    plan: ColumnPlan, forest: Forest, test: Array
) -> Iterator[tuple[Array, Array]]:
    """Yield narrow ranges where the answers of tests may change.

    Most transforms are a line: its inverse is within a few roundings of the answer.
    The last step rounds to its own dtype, which moves a test by half a unit there.
    """
    used = np.unique(forest.feature[test])
    columns = [plan.columns[i] for i in used]
    points = np.array([0, _FAR], plan.dtype)
    rows = {c.source: points for c in columns if c.source not in plan.texts}
    line = np.array(plan.values(columns, _padded(plan, rows, 2)), float)
    at = np.searchsorted(used, forest.feature[test])
    threshold = forest.threshold[test]
    wanted, half = threshold.astype(float), np.spacing(threshold).astype(float) / 2
    tiny = 8.0 * float(np.finfo(plan.dtype).eps)
    with np.errstate(all="ignore"):
        begin, slope = line[at, 0], (line[at, 1] - line[at, 0]) / _FAR
        margin = tiny * (np.abs(begin / slope) + np.abs(wanted / slope))
        for shift in (half, -half, 0.0):
            guess = (wanted + shift - begin) / slope
            guess = np.where(np.isfinite(guess), guess, 0.0)
            wide = np.where(np.isfinite(margin), margin + tiny * np.abs(guess), 1.0)
            yield (guess - wide).astype(plan.dtype), (guess + wide).astype(plan.dtype)


_AT_ONCE = 1 << 20  # numbers tried at a time around the changes of answers
