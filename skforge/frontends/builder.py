"""A forest by hand: ``ForestBuilder``, from arrays or nested nodes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from skforge._typing import Array, Bools, Uint32s
from skforge.exceptions import InvalidInputError, InvalidModelError, shortened
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.combine import joined, trees_by_output
from skforge.forest.forest import Forest
from skforge.forest.outputs import CLASSIFICATION, OutputFunction, OutputSpec
from skforge.forest.predicates import deduplicate_predicates, round_thresholds
from skforge.forest.validation import first_true
from skforge.frontends.arrays import category_words, forest_arrays

Transform: TypeAlias = Literal["sigmoid", "logistic", "softmax", "exp"]
BuilderTask: TypeAlias = Literal["regression", "binary", "multiclass", "ranking"]

_COMPARISONS = {
    "<": Comparison.LT, "<=": Comparison.LE, ">": Comparison.GT, ">=": Comparison.GE,
    "==": Comparison.EQ, "!=": Comparison.NE, "in": Comparison.IN,
    "not in": Comparison.NOT_IN,
}  # fmt: skip
_MISSING = {"nan": Missing.NAN, "none": Missing.NEVER, "zero": Missing.ZERO}
_TRANSFORMS = (None, "sigmoid", "logistic", "softmax", "exp")
_TASKS = ("regression", "binary", "multiclass", "ranking")
_FLOATS = ("float32", "float64", np.float32, np.float64)

#: Categories are below, so that a set takes at most 2 MB.
MOST_CATEGORIES = 1 << 24
#: float64 holds all integers below this one.
_EXACT = 2**53

_FIELDS = (
    *("feature", "threshold", "left", "right", "value", "comparison", "default_left"),
    *("missing", "categories", "node_id", "cover"),
)

#: Says where the user gave a field of a node.
_Where: TypeAlias = Callable[[str, int], str]


class ForestBuilder:
    """Make a :class:`Forest` of trees that are given as arrays or as nested nodes.

    A row goes left where a test of one of its values is true, and a missing value where
    ``default_left`` says. The raw scores are ``base`` plus the values of the leaves
    that the row reaches, added in the order of the trees.

    Parameters
    ----------
    n_features : int
        Columns of a row.
    n_outputs : int, default=1
        Raw scores of a row: one for regression or two classes, else one for each class.
    dtype : {"float64", "float32"}, default="float64"
        Rows are cast to it before they are tested. Thresholds are rounded to it so that
        no test changes.
    sum_dtype : {"float64", "float32"}, default="float64"
        Leaf values and ``base`` are rounded to it, and added in it.
    base : float or array-like of shape (n_outputs,), default=0.0
        What the sums start from.
    average : bool, default=False
        Whether the sums are divided by the number of trees.
    transform : {None, "sigmoid", "logistic", "softmax", "exp"}, default=None
        What ``predict`` and ``predict_proba`` make of raw scores. ``"sigmoid"`` is
        ``1 / (exp(-x) + 1)`` as in XGBoost, ``"logistic"`` is ``1 / (1 + exp(-x))`` as
        in LightGBM; the last bits may differ.
    task : {"regression", "binary", "multiclass", "ranking"}, default="regression"
        With one output, ``"binary"`` takes its (transformed) score for the probability
        of the second class, which is predicted above 0.5. Otherwise the class with the
        greatest one is predicted.
    feature_names : sequence of str, optional
        The names of the columns. Frames must have them in this order.
    class_labels : sequence of str, int, float or bool, optional
        What ``predict`` of a ``CompiledForest`` returns, by default 0, 1, ...
    missing_value : float, default=nan
        The value that marks missing values in rows, besides NaN.

    Raises
    ------
    InvalidInputError
        An argument is none of these.

    See Also
    --------
    Forest.concatenate : Joins forests.

    Examples
    --------
    >>> from skforge import ForestBuilder, compile_forest
    >>> builder = ForestBuilder(2, feature_names=["age", "fare"])
    >>> builder.add_tree(
    ...     feature=[0, -1, -1],
    ...     threshold=[30.0, 0.0, 0.0],
    ...     left=[1, -1, -1],
    ...     right=[2, -1, -1],
    ...     value=[0.0, 10.0, 20.0],
    ... )
    <ForestBuilder: 1 trees, 2 features, 1 outputs>
    >>> leaf = {"value": 1.0}
    >>> test = {"feature": "fare", "comparison": ">", "threshold": 7.5}
    >>> builder.add_nodes({**test, "left": leaf, "right": {"value": 2.0}})
    <ForestBuilder: 2 trees, 2 features, 1 outputs>
    >>> compile_forest(builder.build()).predict([[30.0, 7.5], [31.0, 8.0]])
    array([12., 21.])
    """

    def __init__(
        self,
        n_features: int,
        *,
        n_outputs: int = 1,
        dtype: DTypeLike = "float64",
        sum_dtype: DTypeLike = "float64",
        base: ArrayLike = 0.0,
        average: bool = False,
        transform: Transform | None = None,
        task: BuilderTask = "regression",
        feature_names: Sequence[str] | None = None,
        class_labels: Sequence[str | float | bool] | None = None,
        missing_value: float = np.nan,
    ) -> None:
        for name, size in (("n_features", n_features), ("n_outputs", n_outputs)):
            _require(_is_whole(size, 1, 2**31), name, "a whole number from 1", size)
        floats = "'float32' or 'float64'"
        _require(dtype in _FLOATS, "dtype", floats, dtype)
        _require(sum_dtype in _FLOATS, "sum_dtype", floats, sum_dtype)
        known = "None, 'sigmoid', 'logistic', 'softmax' or 'exp'"
        _require(transform in _TRANSFORMS, "transform", known, transform)
        known = "'regression', 'binary', 'multiclass' or 'ranking'"
        _require(task in _TASKS, "task", known, task)
        if transform == "softmax" or task == "multiclass":
            what = f"2 or more for {transform=} and {task=}"
            _require(n_outputs > 1, "n_outputs", what, n_outputs)
        if task == "binary":
            _require(n_outputs < 3, "n_outputs", f"1 or 2 for {task=}", n_outputs)
        first = np.asarray(base)
        fits = first.dtype.kind in "fiu" and first.shape in ((), (n_outputs,))
        with np.errstate(over="ignore"):
            fits = fits and bool(np.isfinite(first.astype(sum_dtype)).all())
        _require(fits, "base", f"a finite number, or {n_outputs} of them", base)
        names = None if feature_names is None else tuple(feature_names)
        if names is not None:
            fits = len({*names}) == len(names) == n_features
            fits = fits and all(isinstance(name, str) for name in names)
            _require(fits, "feature_names", f"{n_features} different texts", names)
        labels = () if class_labels is None else tuple(class_labels)
        if class_labels is not None:
            n_classes = max(2, n_outputs) if task in CLASSIFICATION else 0
            fits = len({*labels}) == len(labels) == n_classes
            fits = fits and len({isinstance(label, str) for label in labels}) == 1
            what = f"different texts, or numbers, for {n_classes} classes of {task=}"
            _require(fits, "class_labels", what, labels)
        self._average = bool(average)
        self._trees: list[Forest] = []  # of one tree each
        self._numbers = {name: i for i, name in enumerate(names or ())}
        none = np.zeros(0, np.int32)
        threshold, leaves = np.zeros(0, dtype), np.zeros((0, 1), sum_dtype)
        tests = deduplicate_predicates(none, none, threshold, none, none)
        nodes = none > 0, none.copy(), none.copy(), tests, leaves
        self._empty = Forest(
            **forest_arrays(np.zeros(1, np.int64), *nodes),
            tree_output=none,
            n_features=int(n_features),
            base=np.broadcast_to(first.astype(sum_dtype), (int(n_outputs),)),
            outputs=_rules(transform or "identity", int(n_outputs)),
            task=task,
            source="skforge",
            missing_value=float(missing_value),
            feature_names=names,
            class_labels=labels,
        )

    def __repr__(self) -> str:
        return (
            f"<ForestBuilder: {len(self._trees)} trees, {self._empty.n_features} "
            f"features, {self._empty.n_outputs} outputs>"
        )

    def add_tree(
        self,
        feature: ArrayLike,
        threshold: ArrayLike,
        left: ArrayLike,
        right: ArrayLike,
        value: ArrayLike,
        *,
        comparison: ArrayLike = "<=",
        default_left: ArrayLike = False,
        missing: ArrayLike = "nan",
        categories: Mapping[int, Iterable[int]] | None = None,
        output: int | None = None,
        node_id: ArrayLike | None = None,
        cover: ArrayLike | None = None,
    ) -> ForestBuilder:
        """Add a tree as arrays with an element for each node, as in scikit-learn.

        Node 0 is the root. A single value stands for one at every node. What only inner
        nodes have is ignored at leaves, and the other way round.

        Parameters
        ----------
        feature : array-like of int or str, shape (n_nodes,)
            The column that a node tests, or its name.
        threshold : array-like of float, shape (n_nodes,)
            What the value is compared with; ignored at nodes with ``categories``.
        left, right : array-like of int, shape (n_nodes,)
            The node for rows that pass the test, and for others; -1 at leaves.
        value : array-like of float, shape (n_nodes,), (n_nodes, 1) or \
(n_nodes, n_outputs)
            What a leaf adds to one output, or to each.
        comparison : {"<", "<=", ">", ">=", "==", "!=", "in", "not in"} or array-like
            The test ``value <comparison> threshold``, or of the node's categories.
        default_left : bool or array-like of bool, default=False
            Whether missing values go left.
        missing : {"nan", "none", "zero"} or array-like, default="nan"
            What is missing: NaN; nothing, because NaN counts as 0; or NaN and values up
            to 1e-35 around 0. These are LightGBM's three missing types.
        categories : mapping from int to iterable of int, optional
            By node, the categories of the test "in", from 0 to 16777215, or of
            "not in" where ``comparison`` says so. The value is truncated to a whole
            number, and negative values are in no set.
        output : int, optional
            The output that leaves with a single value add to, if there are several.
        node_id : array-like of int, shape (n_nodes,), optional
            The numbers that ``apply`` returns, by default 0, 1, ...
        cover : array-like of float, shape (n_nodes,), optional
            The weight of the training rows that reached the node, which contributions
            without background rows need. The forest has it if all trees do.

        Returns
        -------
        ForestBuilder
            Itself.

        Raises
        ------
        InvalidInputError
            The arrays are no tree; the text names the array and the node. The builder
            is as before.
        """
        given = locals()
        columns = {name: given[name] for name in _FIELDS}
        return self._add(columns, output, lambda name, node: f"{name}[{node}]")

    def add_nodes(
        self,
        root: Mapping[str, Any],
        *,
        comparison: str = "<=",
        default_left: bool = False,
        missing: str = "nan",
        output: int | None = None,
    ) -> ForestBuilder:
        """Add a tree of nested nodes, as libraries dump them in JSON.

        Parameters
        ----------
        root : mapping
            A leaf has ``"value"``: a number, or one for each output. Other nodes have
            ``"feature"``, ``"threshold"`` or ``"categories"``, and the nodes ``"left"``
            and ``"right"``; they may have ``"comparison"``, ``"default_left"`` and
            ``"missing"``. Each node may have ``"node_id"``, and each ``"cover"``. These
            are what :meth:`add_tree` takes.
        comparison, default_left, missing
            Those of nodes that have none.
        output : int, optional
            As in :meth:`add_tree`.

        Returns
        -------
        ForestBuilder
            Itself. By default, ``apply`` numbers nodes from the root, and those on the
            left before those on the right.

        Raises
        ------
        InvalidInputError
            This is no tree; the text names the node by its path and the field. The
            builder is as before.
        """
        above: list[tuple[int, str]] = []  # the parent, and the side

        def where(name: str, node: int) -> str:
            steps = [name] if name else []
            while node > 0:
                node, side = above[node]
                steps.append(side)
            return "root" + "".join(f"[{step!r}]" for step in reversed(steps))

        usual = dict(comparison=comparison, default_left=default_left, missing=missing)
        nodes: list[dict[str, Any]] = []
        children: dict[str, list[int]] = {"left": [], "right": []}
        waiting: list[tuple[Any, int, str, int]] = [(root, -1, "", 0)]
        path: dict[int, None] = {}  # ids of the nodes above, from the root on
        while waiting:
            node, parent, side, depth = waiting.pop()
            number = len(nodes)
            above.append((parent, side))
            while len(path) > depth:
                path.popitem()
            if problem := _problem_of(node, path):
                _refuse(f"{where('', number)} of tree {len(self._trees)} {problem}.")
            path[id(node)] = None
            for name, numbers in children.items():
                numbers.append(-1)
                if name == side:
                    numbers[parent] = number
            sides = [name for name in ("right", "left") if name in node]
            waiting += [(node[name], number, name, depth + 1) for name in sides]
            unused = {} if sides else {"feature": 0, "threshold": 0.0}
            if "categories" in node:
                unused = {"threshold": 0.0}
            nodes.append({**usual, **unused, **node})
        columns: dict[str, Any] = dict.fromkeys(_FIELDS)
        for name in {"feature", "threshold", "value"}.union(*nodes):
            columns[name] = [node.get(name) for node in nodes]
        leaf = columns["value"][-1]  # the last node is one
        for i in np.flatnonzero(np.array(children["left"]) >= 0):
            columns["value"][i] = np.zeros_like(0.0 if leaf is None else leaf)
        sets = enumerate(columns["categories"] or ())
        columns["categories"] = {i: each for i, each in sets if each is not None}
        return self._add({**columns, **children}, output, where)

    def build(self) -> Forest:
        """Return the validated forest of the trees so far; more may be added.

        Raises
        ------
        InvalidInputError
            An average has no trees, or more of them for one output than for another.
        """
        trees = [self._empty, *self._trees]
        counts = np.sum([trees_by_output(tree) for tree in trees], axis=0).tolist()
        if self._average and {*counts} != {max(1, counts[0])}:
            _refuse(
                "average=True needs as many trees for each output, and at least one. "
                f"Got {counts}; add trees, or use average=False."
            )
        divisor = counts[0] if self._average else 1
        forest = joined(trees, [0] * len(trees), base=trees[0].base, divisor=divisor)
        return forest.validate()

    def _add(
        self, columns: dict[str, Any], output: int | None, where: _Where
    ) -> ForestBuilder:
        empty, read = self._empty, _NodeFields(columns, len(self._trees), where)
        left, right = read.child("left"), read.child("right")
        inner = left >= 0
        alone = inner != (right >= 0)
        what = "leaves its node with one child; give both, or neither"
        read.check("right", alone, what)
        value = read.of("value", "fiu", "a number")
        width = value.shape[1] if value.ndim == 2 else 1
        if width not in (1, empty.n_outputs):
            _refuse(
                f"value of tree {read.tree} has the shape {value.shape}; give a number "
                f"for each node, or {empty.n_outputs}, one for each output."
            )
        what = "left out for leaves with a value for each output"
        fits = output is None
        if width == 1 and not (fits and empty.n_outputs == 1):
            what = f"a number from 0 to {empty.n_outputs - 1} for leaves of one value"
            fits = _is_whole(output, 0, empty.n_outputs)
        _require(fits, "output", what, output)
        with np.errstate(over="ignore"):
            added = value.reshape(-1, width).astype(empty.accumulator_dtype)
        bad = ~inner & ~np.isfinite(added).all(axis=1)
        read.check("value", bad, f"is not a finite {added.dtype} number")
        numbers = cover = None
        if columns["node_id"] is not None:
            numbers = read.of("node_id", "iu", "a whole number")
            bad = (numbers < -(2**31)) | (numbers >= 2**31)
            read.check("node_id", bad, "does not fit 32 bits")
        if columns["cover"] is not None:
            cover = read.of("cover", "fiu", "a number").astype(np.float64)
            bad = ~((cover >= 0) & (cover < np.inf))
            read.check("cover", bad, "is not a finite number from 0")
        tests = deduplicate_predicates(**self._tests(read, inner))
        arrays = inner, left, right, tests, added[~inner], numbers, cover
        try:
            tree = replace(
                empty,
                **forest_arrays(np.array([0, len(inner)]), *arrays),
                tree_output=np.array([-1 if width > 1 else output or 0]),
            ).validate()
        except InvalidModelError as error:
            fault = str(error).partition("; the model is")[0]
            fault = fault.replace(" in tree 0", "").replace(" of tree 0", "")
            raise InvalidInputError(
                f"In tree {read.tree}, {fault}; node 0 is the root, each other node is "
                "the child of one node, and leaves have -1."
            ) from error
        self._trees.append(tree)
        return self

    def _tests(self, read: _NodeFields, inner: Bools) -> dict[str, Any]:
        """Return the arguments of ``deduplicate_predicates`` for the inner nodes."""
        dtype, n_features = self._empty.input_dtype, self._empty.n_features
        what = f"a column from 0 to {n_features - 1}, or one of feature_names"

        def number(name: Any) -> Any:
            return self._numbers.get(name, -1) if isinstance(name, str) else name

        feature = read.of("feature", "iu", what, number)
        bad = inner & ((feature < 0) | (feature >= n_features))
        read.check("feature", bad, f"is not {what}")
        comparison = read.coded("comparison", _COMPARISONS, inner)
        sets, in_set = read.categories(inner)
        comparison[in_set & (comparison != Comparison.NOT_IN)] = Comparison.IN
        bad = inner & ~in_set & (comparison >= Comparison.IN)
        read.check("comparison", bad, "needs categories; give the node some")
        given = read.of("threshold", "fiu", "a number")
        exact, compared = given.astype(np.float64), inner & ~in_set
        bad = exact != given  # NaN, too
        bad |= (given.dtype.kind != "f") & (abs(exact) >= _EXACT)
        read.check("threshold", compared & bad, "is not a float64 number")
        exact[~compared] = 0.0
        equal = (comparison == Comparison.EQ) | (comparison == Comparison.NE)
        with np.errstate(over="ignore"):
            bad = equal & (exact.astype(dtype) != exact)
        what = f"is tested for equality, but no {dtype} row has it; round it to {dtype}"
        read.check("threshold", bad, what)
        left = read.of("default_left", "biu", "True or False")
        read.check("default_left", inner & (left != 0) & (left != 1), "is not 0 or 1")
        return {
            "feature": feature[inner],
            "comparison": comparison[inner],
            "threshold": round_thresholds(exact[inner], comparison[inner], dtype),
            "missing": read.coded("missing", _MISSING, inner)[inner],
            "missing_left": left[inner] != 0,
            "categories": sets,
        }


class _NodeFields:
    """Reads the fields of a tree's nodes; errors name the field and the node."""

    def __init__(self, columns: dict[str, Any], tree: int, where: _Where) -> None:
        self._columns, self.tree, self._where = columns, tree, where
        self._n_nodes = 1
        self._n_nodes = len(self._given("left"))
        if not self._n_nodes:
            _refuse(f"left of tree {tree} is empty; a tree has one node or more.")

    def _given(self, name: str) -> Any:
        values = self._columns[name]
        if isinstance(values, str) or not np.iterable(values):
            return [values] * self._n_nodes
        return np.asarray(values) if hasattr(values, "__array__") else values

    def check(self, name: str, bad: Bools, what: str) -> None:
        if (node := first_true(bad)) >= 0:
            value = self._given(name)[node]
            value = value.tolist() if isinstance(value, np.generic) else value
            place = self._where(name, node)
            _refuse(f"{place} = {_short(value)} of tree {self.tree} {what}.")

    def of(
        self, name: str, kinds: str, what: str, code: Callable[[Any], Any] | None = None
    ) -> Array:
        """Return a value for each node, in a dtype of these kinds."""
        values = self._given(name) if code is None else [*map(code, self._given(name))]
        try:
            array = np.asarray(values)
        except ValueError:  # lists of different lengths
            array = np.zeros((0, 0))
        if len(array) != self._n_nodes or array.ndim > 1 + (name == "value"):
            _refuse(
                f"{name} of tree {self.tree} must have a value for each of the "
                f"{self._n_nodes} nodes. Got {_short(values)} instead."
            )
        if array.dtype.kind not in kinds:
            bad = np.array([np.asarray(v).dtype.kind not in kinds for v in values])
            self.check(name, bad if bad.any() else ~bad, f"is not {what}")
        return array

    def child(self, name: str) -> Array:
        child = self.of(name, "iu", "a whole number")
        what = f"is neither a node below {self._n_nodes} nor -1, as of leaves"
        self.check(name, (child < -1) | (child >= self._n_nodes), what)
        return child.astype(np.int64)

    def coded(self, name: str, codes: Mapping[str, int], inner: Bools) -> Array:
        what = f"one of {', '.join(map(repr, codes))}"
        words = self.of(name, "iu", what, lambda v: codes.get(str(v), -1))
        self.check(name, inner & (words < 0), f"is not {what}")
        return words

    def categories(self, inner: Bools) -> tuple[dict[int, Uint32s], Bools]:
        """Return sets by number among the inner nodes, and which nodes have one."""
        number, in_set = np.cumsum(inner) - 1, np.zeros(len(inner), np.bool_)
        sets: dict[int, Uint32s] = {}
        for node, categories in (self._columns["categories"] or {}).items():
            if not _is_whole(node, 0, len(inner)) or not inner[node]:
                _refuse(
                    f"categories has {node!r}, which is no inner node of tree "
                    f"{self.tree}; leave it out."
                )
            in_set[node] = True
            codes = np.array([*categories] if np.iterable(categories) else [None])
            whole = (codes.dtype.kind in "iu" and codes.ndim == 1) or not codes.size
            fit = whole and ((codes >= 0) & (codes < MOST_CATEGORIES)).all()
            what = f"must have whole numbers from 0 to {MOST_CATEGORIES - 1}"
            self.check("categories", np.array([False] * node + [not fit]), what)
            sets[int(number[node])] = category_words(codes)
        return sets, in_set


def _problem_of(node: Any, path: Container[int]) -> str:
    """Return what is wrong with a nested node; ``path`` has the ids of those above."""
    if not isinstance(node, Mapping):
        return f"is {_short(node)}; give a mapping, such as a dict"
    if id(node) in path:
        return "is a node above itself; give another one"
    unknown = [name for name in node if name not in _FIELDS]
    fields = ", ".join(_FIELDS)
    return f"has {unknown[0]!r}; the fields are {fields}" if unknown else ""


def _rules(function: OutputFunction, n_outputs: int) -> OutputSpec:
    """Return how classes follow: from probabilities if the scores are transformed."""
    if n_outputs == 1:
        return OutputSpec(function, probabilities="complement", labels="half")
    if function == "identity":
        return OutputSpec()
    return OutputSpec(function, probabilities="values", labels="best")


def _is_whole(value: Any, first: int, end: int) -> bool:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and first <= value < end


def _refuse(text: str) -> NoReturn:
    raise InvalidInputError(text)


def _short(value: Any) -> str:
    return shortened(" ".join(repr(value).split()), 100)


def _require(fits: bool, name: str, what: str, value: Any) -> None:
    if not fits:
        _refuse(f"{name} must be {what}. Got {_short(value)} instead.")
