"""Finds the tree ensemble of a graph, what it reads, and what its outputs become."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.validation import damaged
from skforge.frontends.onnx import ensembles
from skforge.frontends.onnx.operators import (
    ADVICE,
    ENSEMBLES,
    ML,
    GraphNode,
    operator_of,
    title_of,
)
from skforge.frontends.onnx.scores import NodesAfter
from skforge.frontends.onnx.several import Scores
from skforge.frontends.onnx.symbols import (
    BOOL,
    DOUBLE,
    DTYPES,
    FLOAT,
    INT32,
    INT64,
    STRING,
    RowNorm,
    Tensor,
    cells_of,
    norm_of,
)
from skforge.frontends.pipeline.columns import Column

#: Most columns of rows that operators before the trees read.
_MOST = 1 << 16


#: Operators that no test of one column can take in.
_OF_SEVERAL_COLUMNS = ("LpNormalization", "MatMul", "Gemm")
#: Of inputs that hold whole numbers.
_BITS = {BOOL: 1, INT32: 32, INT64: 64}
#: The axis of scores beside each other.
_LAST = [1], [-1]


class EnsembleContext(NamedTuple):
    node: Any
    version: int  # of the operator set ai.onnx.ml
    node_type: int  # element type of the node's input
    input_dtype: np.dtype[Any]  # of the rows: float64 unless a cast narrows them
    n_features: int | None  # None if the model does not declare it
    #: What operators make of the rows for the node; None if it reads them as they are.
    cells: tuple[Column, ...] | None
    #: The names of the rows' columns if each is an input of the graph.
    names: tuple[str, ...] | None
    n_columns: int  # of the rows, if operators are before the node
    texts: tuple[int, ...]  # columns of texts
    whole: tuple[tuple[int, int], ...]  # columns of whole numbers, and their bits
    #: Norms by which columns are divided before all else.
    norms: tuple[RowNorm, ...] = ()


class _Value(NamedTuple):
    content: str  # rows | labels | scores | maps | part | places
    types: tuple[int, ...]  # element types it was cast to, the current one last
    width: int | None  # columns; 0 for a list
    tensor: Tensor | None = None  # the rows' cells, if their number is known
    plain: bool = False  # whether these are the rows of the only input, or a cast
    scores: Scores | None = None  # of which ensembles
    labels: tuple[str | int, ...] = ()  # of a mean's greatest score


#: What nodes compute of scores.
_COMPUTED = _Value("computed", (), None)


class _Input(NamedTuple):
    name: str
    type: int
    width: int | None
    is_list: bool  # of one axis


class _Walk:
    """Follows the nodes of a graph; a node's inputs are known before it."""

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        self.versions = {
            "" if o.domain == "ai.onnx" else o.domain: int(o.version)
            for o in model.opset_import
        }
        self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        self.constants: dict[str, Array] = {}
        self.values: dict[str, _Value] = {}
        self.inputs = [
            _declared(value)
            for value in self.graph.input
            if value.name not in self.tensors
        ]
        self.ensembles: list[Any] = []
        self.reads: list[_Value] = []
        self.after: list[Any] = []  # nodes that compute with what the trees answer
        self.map_labels: list[Any] | None = None
        self.n_columns = 0
        self._put_inputs()

    @property
    def version(self) -> int:
        return self.versions.get(ML, 1)

    def version_of(self, node: Any) -> int:
        return self.versions.get("" if node.domain == "ai.onnx" else node.domain, 1)

    def _put_inputs(self) -> None:
        if not self.inputs:
            damaged("The graph has no inputs")
        lone = len(self.inputs) == 1
        widths = [item.width for item in self.inputs]
        known = all(width is not None and width <= _MOST for width in widths)
        for item in self.inputs:
            tensor, width = None, item.width
            if known and width is not None:
                dtype = DTYPES[FLOAT if self._only_narrowed(item) else item.type]
                places = range(self.n_columns, self.n_columns + width)
                cells = [Column(i, dtype) for i in places]
                shape = () if item.is_list else (width,)
                tensor = Tensor(cells_of(cells, shape), item.type)
                self.n_columns += width
            plain = lone and item.type != STRING and not item.is_list
            rows = _Value("rows", (item.type,), width, tensor, plain)
            self.values[item.name] = rows

    def _only_narrowed(self, item: _Input) -> bool:
        """Tell whether all that reads an input casts it to float first."""
        readers = [node for node in self.graph.node if item.name in node.input]
        return item.type != STRING and all(
            node.op_type == "Cast" and any(a.i == FLOAT for a in node.attribute)
            for node in readers
        )

    def follow(self) -> None:
        for node in self.graph.node:
            if node.domain == ML and node.op_type in ENSEMBLES:
                self._take_ensemble(node)
            elif node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                self._take_constant(node)
            else:
                read = [self.values[name] for name in node.input if name in self.values]
                answers = any(value.content != "rows" for value in read)
                self.after += [node] * answers
                if self._joins(node) or self._passes(node) or self._folds(node):
                    continue
                if not answers:
                    mixes = node.op_type in _OF_SEVERAL_COLUMNS
                    why = "is no operator that skforge knows there"
                    raise UnsupportedModelError(
                        f"The {title_of(node)} "
                        f"{'computes with several columns of a row' if mixes else why}"
                        f", {ADVICE}."
                    )
                self.values.update(dict.fromkeys(node.output, _COMPUTED))

    def _take_constant(self, node: Any) -> None:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.type == 4:
                self.constants[node.output[0]] = _array(attribute.t, node.output[0])
            elif attribute.name in ("value_int", "value_ints"):
                ints = attribute.i if attribute.type == 2 else [*attribute.ints]
                self.constants[node.output[0]] = np.array(ints, np.int64)
            elif attribute.name in ("value_float", "value_floats"):
                floats = attribute.f if attribute.type == 1 else [*attribute.floats]
                self.constants[node.output[0]] = np.array(floats, np.float32)

    def constant(self, name: str) -> Array | None:
        if name not in self.constants and name in self.tensors:
            self.constants[name] = _array(self.tensors[name], name)
        return self.constants.get(name)

    # ------------------------------------------------------------ ensembles

    def _take_ensemble(self, node: Any) -> None:
        kind = node.op_type
        if (kind == "TreeEnsemble") != (self.version == 5) or self.version < 1:
            raise UnsupportedModelError(
                f"{kind} in version {self.version} of {ML} is unknown to onnxruntime, "
                "which knows TreeEnsembleRegressor and TreeEnsembleClassifier in "
                "versions 1 to 4 and TreeEnsemble in version 5."
            )
        if len(node.input) != 1 or not node.output:
            damaged(
                f"{kind} has {len(node.input)} inputs and {len(node.output)} outputs"
            )
        rows = self.values.get(node.input[0])
        if rows is not None and rows.content != "rows":
            self.after.append(node)
            self.values.update(dict.fromkeys(node.output, _COMPUTED))
            return
        if rows is None:
            damaged(f"{kind} reads {node.input[0]!r}, which is not the model's input")
        if rows.types[-1] not in (FLOAT, DOUBLE, INT32, INT64):
            raise UnsupportedModelError(
                f"{kind} reads {node.input[0]!r}, which holds values of type "
                f"{rows.types[-1]}; onnxruntime has tree kernels for float, double, "
                "int32 and int64."
            )
        number = len(self.ensembles)
        self.ensembles.append(node)
        self.reads.append(rows)
        labels = kind == "TreeEnsembleClassifier"
        strings = any(isinstance(label, bytes) for label in class_labels(node))
        wide = kind == "TreeEnsemble" and rows.types[-1] == DOUBLE
        score = DOUBLE if wide else FLOAT
        for i, name in enumerate(node.output):
            if labels and i == 0:
                value = _Value("labels", (STRING if strings else INT64,), 0)
            else:
                one = Scores("one", (number,))
                value = _Value("scores", (score,), None, scores=one)
            self.values[name] = value

    # ------------------------------------------------------------ what changes nothing

    def _passes(self, node: Any) -> bool:
        """Take a node that passes values on, or converts rows; False for others."""
        value = self.values.get(node.input[0]) if node.input and node.output else None
        if value is None or value is _COMPUTED:
            return False
        if value.content == "rows" and not value.plain:
            return False
        if node.domain == ML and node.op_type == "ZipMap":
            self._check_labels(node, value)
            maps = value._replace(content="maps")
            self.values[node.output[0]] = maps
            return value.content == "scores"
        if node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type == "Cast":
            new = self._cast(node, value)
        elif node.op_type == "Reshape":
            new = value if self._keeps_shape(node, value) else None
        elif node.op_type == "Identity":
            new = value
        elif value.content != "rows" and value.content in ("scores", "part"):
            new = self._part(node, value)
        else:
            return False
        if new is not None:
            self.values[node.output[0]] = new
        return new is not None

    def _check_labels(self, node: Any, value: _Value) -> None:
        labels, scores = class_labels(node), value.scores
        if scores is not None and scores.how == "mean":
            known = labels  # compared with those of the greatest score later
            self.map_labels = labels
        else:
            ensemble = None if scores is None else self.ensembles[scores.members[0]]
            known = [] if ensemble is None else class_labels(ensemble)
        if labels != known or len({*labels}) != len(labels):
            raise UnsupportedModelError(
                f"A ZipMap gives the scores the labels {str(labels)[:60]}, which are "
                "not exactly the classifier's labels; export the model without ZipMap."
            )

    def _cast(self, node: Any, value: _Value) -> _Value | None:
        to = [a.i for a in node.attribute if a.name == "to"]
        if len(to) != 1:
            return None
        # rows may be converted; a cast of anything else has to change nothing
        numbers = value.content == "rows" and to[0] in (FLOAT, DOUBLE)
        if value.content == "labels" and value.labels:  # which float32 holds, too
            numbers = to[0] in (FLOAT, INT32, INT64) and value.types[-1] != STRING
        if to[0] != value.types[-1] and not numbers:
            return None
        tensor = value.tensor
        if tensor is not None:
            known = GraphNode(node, 0, {"to": to[0]}, [tensor])
            operator = operator_of(node)
            assert operator is not None
            (tensor,) = operator(known)
        return value._replace(types=(*value.types, to[0]), tensor=tensor)

    def _keeps_shape(self, node: Any, value: _Value) -> bool:
        if value.content == "part":
            return True
        shape = self.constant(node.input[1]) if len(node.input) == 2 else None
        if shape is None or value.width is None or shape.dtype != np.int64:
            return False
        dims = shape.reshape(-1).tolist()
        return dims == ([-1] if value.width == 0 else [-1, value.width])

    def _part(self, node: Any, value: _Value) -> _Value | None:
        """Return some of the scores, as ZipMap's columns are; or all of them, times 1.

        All are an answer of predict_proba, whichever the graph returns.
        """
        if node.op_type == "Mul" and len(node.input) == 2:
            factor = self.constant(node.input[1])
            same = factor is not None and factor.size == 1 and (factor == 1).all()
            return value if same else None
        parts = {"Slice": 1, "Gather": 1, "Squeeze": 1, "Split": 1, "Flatten": 1}
        inputs = [self.constant(name) for name in node.input[1:]]
        if node.op_type not in parts or any(item is None for item in inputs):
            return None
        part = value._replace(content="part")
        self.values.update(dict.fromkeys(node.output, part))
        return part

    # ------------------------------------------------------------ several ensembles

    def _joins(self, node: Any) -> bool:
        """Take a node that puts the scores of ensembles together; False for others."""
        if node.domain == ML and node.op_type == "ArrayFeatureExtractor":
            return self._take_labels(node)
        value = self.values.get(node.input[0]) if node.input and node.output else None
        if node.domain not in ("", "ai.onnx") or value is None:
            return False
        if value.content != "scores" or value.scores is None:
            return False
        new: _Value | None = None
        if node.op_type == "ArgMax":
            others = {a.name for a in node.attribute} - {"axis", "keepdims"}
            if value.scores.how == "mean" and self._axes(node) == [1] and not others:
                new = value._replace(content="places", types=(INT64,))
        elif (scores := self._joined(node, value.scores)) is not None:
            new = value._replace(scores=scores)
        if new is not None:
            self.values[node.output[0]] = new
        return new is not None

    def _joined(self, node: Any, first: Scores) -> Scores | None:
        axes = self._axes(node)
        if node.op_type == "Reshape" and first.how == "one" and len(node.input) == 2:
            return self._stacked(node.input[1], first)
        if node.op_type == "ReduceMean" and first.how == "stack" and axes == [0]:
            keeps = [a.i for a in node.attribute if a.name == "keepdims"]
            return Scores("mean", first.members) if keeps == [0] else None
        if node.op_type != "Concat":
            return None
        values = [self.values.get(name) for name in node.input]
        every = [v.scores for v in values if v is not None and v.scores is not None]
        members = tuple(i for scores in every for i in scores.members)
        hows = {scores.how for scores in every}
        if len(every) < len(values):
            return None
        if hows == {"stack"} and axes == [0]:
            return Scores("stack", members)
        return Scores("columns", members) if hows == {"one"} and axes in _LAST else None

    def _axes(self, node: Any) -> list[int]:
        known = [a for a in node.attribute if a.name in ("axis", "axes")]
        if known:
            return [known[0].i] if known[0].name == "axis" else [*known[0].ints]
        constant = self.constant(node.input[1]) if len(node.input) == 2 else None
        return [] if constant is None else constant.reshape(-1).tolist()

    def _stacked(self, name: str, scores: Scores) -> Scores | None:
        shape = self.constant(name)
        dims = [] if shape is None else shape.reshape(-1).tolist()
        node = self.ensembles[scores.members[0]]
        targets = [a.i for a in node.attribute if a.name == "n_targets"]
        width = len(class_labels(node)) or (targets or [0])[0]
        if dims == [1, -1, width]:
            return Scores("stack", scores.members)
        return scores if dims == [-1, width] else None

    def _take_labels(self, node: Any) -> bool:
        """Take the labels at the places of the greatest scores."""
        value = self.values.get(node.input[1]) if len(node.input) == 2 else None
        labels = self.constant(node.input[0]) if value is not None else None
        if value is None or value.content != "places" or labels is None:
            return False
        listed = labels.reshape(-1).tolist()
        if labels.dtype.kind == "O":
            listed = [x.decode() if isinstance(x, bytes) else str(x) for x in listed]
        elif labels.dtype.kind != "i" or max(map(abs, listed), default=0) > 1 << 24:
            return False
        kinds = {"O": STRING}.get(labels.dtype.kind, INT64)
        if labels.dtype == np.int32:
            kinds = INT32
        new = _Value("labels", (kinds,), 0, labels=tuple(listed), scores=value.scores)
        self.values[node.output[0]] = new
        return True

    def result(self) -> tuple[Scores | None, tuple[str | int, ...]]:
        """Return what the graph makes of the ensembles, and the labels of a mean.

        None stands for what is no mean and no union of them, but computed.
        """
        every = tuple(range(len(self.ensembles)))
        outputs = [self.values.get(value.name) for value in self.graph.output]
        own = Scores("one", (0,))
        if len(every) == 1 and all(
            value is None or (value.scores in (None, own) and value is not _COMPUTED)
            for value in outputs
        ):
            return own, ()
        labels: tuple[str | int, ...] = ()
        scores: Scores | None = None
        for value in outputs:
            if value is None or value.scores is None or value.scores.how == "one":
                return None, ()
            if value.content == "labels":
                labels = value.labels
            scores = value.scores
        if scores is None or scores.members != every or scores.how == "stack":
            return None, ()
        same = self.map_labels is None or [*labels] == [
            x.decode() if isinstance(x, bytes) else x for x in self.map_labels
        ]
        alike = all(rows is self.reads[0] for rows in self.reads)
        if not alike or not same or len({*labels}) < len(labels):
            return None, ()
        return scores, labels

    # ------------------------------------------------------------ what folds

    def attributes(self, node: Any) -> dict[str, Any]:
        from onnx.defs import SchemaError

        version = self.version_of(node)
        try:
            return ensembles.read_attributes(node, version)
        except SchemaError as error:
            raise UnsupportedModelError(
                f"The {title_of(node)} is no operator of version {version} of its "
                "operator set, which the graph imports; export the model again."
            ) from error

    def _folds(self, node: Any) -> bool:
        operator = operator_of(node)
        inputs: list[Any] = []
        for name in node.input:
            value = self.values.get(name)
            if value is None:
                constant = self.constant(name) if name else None
                if name and constant is None:
                    return False
                inputs.append(constant)
                continue
            if value.content != "rows":
                return False
            if value.tensor is None:
                raise UnsupportedModelError(
                    f"The {title_of(node)} reads rows whose number of columns the "
                    f"graph does not declare, or declares as more than {_MOST}; "
                    "convert the model with the shape of its input."
                )
            inputs.append(value.tensor)
        if operator is None or not any(isinstance(x, Tensor) for x in inputs):
            return False
        attributes = self.attributes(node)
        outputs = operator(GraphNode(node, self.version_of(node), attributes, inputs))
        for name, tensor in zip(node.output, outputs, strict=False):
            self.values[name] = _Value("rows", (tensor.type,), None, tensor)
        return True


class FoundEnsembles(NamedTuple):
    ensembles: list[EnsembleContext]
    scores: Scores | None  # what the graph makes of theirs, if it computes no more
    labels: tuple[str | int, ...]  # of the columns of a mean
    after: NodesAfter


def locate(model: Any) -> FoundEnsembles:
    """Return the tree ensembles of a model whose other nodes are known.

    Raises ``UnsupportedModelError``, naming any node that is not.
    """
    walk = _Walk(model)
    walk.follow()
    if not walk.reads:
        raise InvalidModelError(
            f"The graph has no node {', '.join(ENSEMBLES[:2])} or {ENSEMBLES[2]}, so "
            "there are no trees to read; the file is damaged or another kind of model."
        )
    first = walk.reads[0]
    plain = first.plain and all(rows is first for rows in walk.reads)
    pairs = zip(walk.ensembles, walk.reads, strict=True)
    norms = () if plain else _norms(walk.reads)
    every = [_context(walk, node, rows, plain, norms) for node, rows in pairs]
    outputs = [value.name for value in walk.graph.output]
    known = walk.constant, walk.attributes
    after = NodesAfter(walk.after, walk.ensembles, outputs, *known)
    return FoundEnsembles(every, *walk.result(), after)


def _norms(reads: list[_Value]) -> tuple[RowNorm, ...]:
    """Return the norms that trees read; each column has to be read in one way."""
    ways: dict[int, dict[RowNorm | None, None]] = {}
    for rows in reads:
        for cell in () if rows.tensor is None else rows.tensor.cells.reshape(-1):
            ways.setdefault(cell.source, {})[norm_of(cell)] = None
    norms = tuple({norm: None for way in ways.values() for norm in way if norm})
    for norm in norms:
        for column in norm[1]:
            ways.setdefault(column, {})[norm] = None
    for column, way in ways.items():
        if len(way) > 1:
            raise UnsupportedModelError(
                f"Column {column} of the rows is divided by a norm of its row "
                f"(Normalizer), and also read in another way, {ADVICE}."
            )
    return norms


def _context(
    walk: _Walk, node: Any, rows: _Value, plain: bool, norms: tuple[RowNorm, ...]
) -> EnsembleContext:
    place = node, walk.version, rows.types[-1]
    kinds = [(item.type, item.width) for item in walk.inputs]
    types = [kind for kind, width in kinds for _ in range(width or 0)]
    whole = tuple((i, _BITS[kind]) for i, kind in enumerate(types) if kind in _BITS)
    if plain:
        narrow = rows.types[-1] != DOUBLE or FLOAT in rows.types
        dtype = np.dtype(np.float32 if narrow else np.float64)
        return EnsembleContext(*place, dtype, rows.width, None, None, 0, (), whole)
    if rows.tensor is None:
        raise UnsupportedModelError(
            "The model has several tree ensembles that read other columns each, of "
            "rows whose number of columns the graph does not declare; convert the "
            "model with the shape of its input."
        )
    cells = tuple(rows.tensor.cells.reshape(-1))
    if rows.tensor.cells.ndim != 1:
        damaged(f"{node.op_type} reads no matrix")
    dtype = np.dtype(np.float64 if rows.types[-1] == DOUBLE else np.float32)
    lone = all(item.width == 1 for item in walk.inputs) and len(walk.inputs) > 1
    names = tuple(item.name for item in walk.inputs) if lone else None
    texts = tuple(i for i, kind in enumerate(types) if kind == STRING)
    columns = walk.n_columns, texts, whole
    return EnsembleContext(*place, dtype, len(cells), cells, names, *columns, norms)


def _declared(value: Any) -> _Input:
    from onnx import TensorProto

    tensor = value.type.tensor_type
    if tensor.elem_type not in DTYPES:
        names = {number: name.lower() for name, number in TensorProto.DataType.items()}
        kind = names.get(tensor.elem_type, f"type {tensor.elem_type}")
        raise UnsupportedModelError(
            f"The input {value.name!r} holds {kind} values; skforge reads float, "
            "double, int32, int64, bool and string."
        )
    width: int | None = None
    n_axes = len(tensor.shape.dim)
    if tensor.HasField("shape"):
        if n_axes not in (1, 2):
            raise UnsupportedModelError(
                f"The input {value.name!r} has {n_axes} dimensions, but rows have two."
            )
        dim = tensor.shape.dim[-1]
        width = int(dim.dim_value) if dim.HasField("dim_value") else None
        width = 1 if n_axes == 1 else width
    if width is not None and not 0 < width < 1 << 31:
        damaged(f"The input has {width} features")
    return _Input(value.name, tensor.elem_type, width, n_axes == 1)


def class_labels(node: Any) -> list[Any]:
    labels: list[Any] = []
    for attribute in node.attribute:
        if attribute.name in ("classlabels_int64s", "classlabels_strings"):
            labels += [*attribute.ints, *attribute.strings]
    return labels


def _array(tensor: Any, name: str) -> Array:
    from onnx import numpy_helper

    if tensor.data_location == 1:
        raise UnsupportedModelError(
            f"{name} is stored in another file; save the model in one file "
            "(save_as_external_data=False)."
        )
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception:  # noqa: BLE001 - the onnx package raises what it likes
        return damaged(f"{name[:60]!r} is no tensor")
