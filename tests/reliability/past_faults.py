"""Faults of the past and of their kinds, as edits of today's code.

What ``code_faults.py`` draws has one operator, number or entry changed. These are what
was wrong once: a rounding left out, categories by position, a method answered by
another class's rule. ``python -m tests.reliability mutants --past`` plants them.
"""

from __future__ import annotations

from pathlib import Path

from tests.reliability.code_faults import CodeFault, Place

#: By file of skforge: what is wrong, a text that stands there once, and its place's.
PAST: dict[str, list[tuple[str, str, str]]] = {
    "rows/plain.py": [
        (
            "lists are rounded to float32",
            "X.dtype not in (np.float32, np.float64)",
            "X.dtype != np.float32",
        ),
        (
            "int64 is not rounded to float32",
            "X = X.astype(self._r.through)",
            "X = X.astype(np.float64)",
        ),
        (
            "names in another order are taken",
            "names is None or texts == names",
            "names is None or sorted(texts) == sorted(names)",
        ),
        (
            "half floats of Arrow are taken",
            'if self._r.compares != "sklearn" and not _REFUSED.isdisjoint(kinds):',
            "if False:",
        ),
        (
            "absent entries are missing",
            "np.full(shape, fill, self._r.dtype)",
            "np.full(shape, np.nan, self._r.dtype)",
        ),
        ("unused categories that are unknown", "strict=True", "strict=False"),
    ],
    "rows/frames.py": [
        (
            "NA of pandas is 0",
            "rows[gaps, place] = np.nan",
            "rows[gaps, place] = 0.0",
        ),
        (
            "labels 1 and 1.0 are the same",
            "return labels.dtype == others.dtype and bool(labels.equals(others))",
            "return bool(labels.equals(others))",
        ),
        (
            "another byte order is taken",
            "dtype in _PLAIN",
            'dtype.newbyteorder("=") in _PLAIN',
        ),
        (
            "categories of pandas by position",
            "[place.get(name, np.nan) for name in listed]",
            "[min(i, len(names) - 1) for i, _ in enumerate(listed)]",
        ),
        (
            "Arrow's dictionaries by position",
            "return column.dictionary.to_pylist()",
            "return sorted(column.dictionary.to_pylist())",
        ),
        (
            "unknown categories are the first",
            "place.get(name, np.nan)",
            "place.get(name, 0)",
        ),
        (
            "missing= compared with other codes than today's",
            "numbers[np.arange(len(numbers)) == self._marker] = np.nan",
            "pass",
        ),
        (
            "gaps of Arrow's dictionaries are another number",
            "column.__arrow_array__().cast(arrow.value_type).to_numpy()",
            "(lambda c: c.dictionary.to_numpy().astype(float)["
            "c.indices.fill_null(0).to_numpy()])("
            "column.__arrow_array__().combine_chunks())",
        ),
    ],
    "rows/hashed_rows.py": [
        (
            "hashes by position",
            "objects[:, 0] = listed",
            "objects[:, 0] = sorted(listed)",
        ),
    ],
    "rows/pipeline_rows.py": [
        (
            "a fraction is filled into whole numbers",
            "and self.bounds.takes(enumerate([X.dtype] * self.width))",
            "and True",
        ),
        (
            "one row alone is rounded to float32",
            "row[column] = value",
            "row[column] = value if column in coded else np.float32(value)",
        ),
        (
            "float32 is answered by the forest of float64",
            "wide and (dtype == np.float64",
            "wide and (dtype in (np.float32, np.float64)",
        ),
    ],
    "sources/xgboost.py": [
        (
            "infinities reach a DMatrix",
            "with np.errstate",
            "return False\n    with np.errstate",
        ),
        (
            "batches are rounded as tables for DART",
            'return None if rounds and kind_of(X) == "batch" else super().tried(X, '
            "method)",
            "return super().tried(X, method)",
        ),
    ],
    "sources/lightgbm.py": [
        (
            "tiny numbers of tables are 0",
            'compares = is_table(X) or type(X).__name__ == "csr_matrix"',
            'compares = type(X).__name__ == "csr_matrix"',
        ),
        (
            "tiny numbers of CSR rows are 0",
            'compares = is_table(X) or type(X).__name__ == "csr_matrix"',
            "compares = is_table(X)",
        ),
        (
            "entries in no order are all read",
            "if not fresh.has_sorted_indices:",
            "if False:",
        ),
    ],
    "sources/sklearn.py": [
        ("gaps of sparse columns go left", "if missing.any():", "if False:"),
        (
            "stages have the shape of the last",
            'if one and method == "decision_function":',
            "if False:",
        ),
    ],
    "sources/base.py": [
        (
            "whole numbers are taken for codes",
            "{label: float(code) for code, label in enumerate(labels)}",
            "{n: float([n, c][isinstance(n, str)]) for c, n in enumerate(labels)}",
        ),
        (
            "a column has the categories of another",
            "zip(names, forest.category_names or [()] * len(names), strict=True)",
            "zip(names, (forest.category_names[:1] + forest.category_names[:0:-1]) or "
            "[()] * len(names), strict=True)",
        ),
        (
            "decisions have another sign",
            "            return of_forest\n",
            "            return lambda method, raw: (\n"
            "                -1.0 * of_forest(method, raw)\n"
            "                if method == 'decision_function'\n"
            "                else of_forest(method, raw)\n"
            "            )\n",
        ),
        (
            "numbers of leaves have another shape",
            "return numbers.reshape(-1, *self.leaf_shape)",
            "return numbers",
        ),
    ],
    "sources/pipeline.py": [
        (
            "a scaler computes in float64 for float32",
            "mine = ",
            "return True\n        mine = ",
        ),
        (
            "a wrapper behind a step answers as its forest",
            "self._last, self.answers = last, last.answers",
            "self._last, self.answers = last, base.Answers()",
        ),
    ],
    "frontends/pipeline/bounds.py": [
        ("whole numbers of steps are float64", "return False", "return True"),
    ],
    "frontends/pipeline/codes.py": [
        (
            "unknown texts are the first",
            "return self.table.get(value, self.unknown)",
            "return self.table.get(value, 0.0)",
        ),
    ],
    "frontends/pipeline/split.py": [
        (
            "a step without columns is left out, which widens float16",
            "if any(places[each].stop == places[each].start for each in chosen):",
            "if False:",
        ),
    ],
    "outputs/answers.py": [
        (
            "stored labels in another order",
            "return np.reshape(known, (-1, 1))\n    return labels",
            "return np.reshape(known, (-1, 1))\n"
            "    stored = type(model).__name__ == 'StoredModel'\n"
            "    return labels[::-1] if stored else labels",
        ),
    ],
    "outputs/steps.py": [
        (
            "columns lie in another order of memory",
            'several = rules.function in ("softmax_by_columns", "samme")',
            "several = False",
        ),
        (
            "a file's answers are raw scores",
            'return _values(rules)\n        case "probabilities":',
            'return Steps()\n        case "probabilities":',
        ),
    ],
    "prediction/predictor.py": [
        (
            "answers are written over rows that are not read",
            "apart = arrays and not np.may_share_memory(X, out)",
            "apart = arrays",
        ),
        (
            "logarithms by another class's rule",
            "follows = self.source.answers.log_proba",
            "follows = 'probabilities'",
        ),
    ],
    "prediction/of_leaves.py": [
        (
            "interpolation= is ignored",
            "query = QuantileQuery(asked, interpolation, **how)",
            "query = QuantileQuery(asked, 'linear', **how)",
        ),
    ],
    "prediction/of_trees.py": [
        (
            "transform of stored votes returns leaves",
            "if not answers.matrix:",
            "if not answers.matrix and predictor.source.model is not None:",
        ),
    ],
    "engine/by_round.py": [
        (
            "some rounds lack the base score",
            "base = self.forest.base",
            "base = self.forest.base * 0",
        ),
    ],
    "runtime/mappings.py": [
        (
            "a mapping's values by the order of its keys",
            "values = self._get(X)",
            "values = tuple(X.values())",
        ),
        (
            "columns of a mapping are float32",
            "rows[part, place] = column[part].astype(np.float64, copy=False)",
            "rows[part, place] = column[part].astype(np.float32)",
        ),
    ],
    "polars.py": [
        (
            "a chunk's dtype decides how numbers are rounded",
            "return frame.cast(pl.Float64).to_numpy()",
            "return frame.to_numpy()",
        ),
        (
            "dates are numbers",
            "if column.dtype.is_numeric() or",
            "if column.dtype.is_numeric() or column.dtype.is_temporal() or",
        ),
    ],
    "exporters/wheel.py": [
        (
            "wheels take columns by position",
            'text = re.sub(r"from skforge',
            "text = text.replace(\n"
            "            'X = {name: X[there[name]] for name in self._names if name in "
            "there}',\n"
            "            'X = {n: X[k] for n, k in zip(self._names, there.values())}'\n"
            "        )\n"
            '        text = re.sub(r"from skforge',
        ),
    ],
    "cli/values.py": [
        (
            "empty cells are a category",
            "cells = column.to_pylist()",
            "cells = [cell or '' for cell in column.to_pylist()]",
        ),
    ],
    "cli/data.py": [
        (
            "NA of Parquet files is missing",
            "spec, spelled = self.spec, self.table.spelled",
            "spec, spelled = self.spec, True",
        ),
    ],
}


def past_faults(root: Path) -> list[CodeFault]:
    """Return all of them; a text that stands in a file twice, or no more, is told."""
    found = []
    for name, edits in PAST.items():
        path = f"skforge/{name}"
        text = (root / path).read_text("utf-8")
        for what, old, new in edits:
            if (count := text.count(old)) != 1:
                raise ValueError(f"{path} has {old!r} {count} times, not once: {what}")
            before = text[: text.index(old)]
            start = len(before.encode())
            end = start + len(old.encode())
            line = before.count("\n") + 1
            found.append(CodeFault(path, Place("past", line, start, end, new), text))
    return found
