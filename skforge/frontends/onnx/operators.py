"""The operators before a tree ensemble that fold into its tests, in a table.

Each follows onnxruntime's CPU kernels bit by bit, on x86 where C leaves the answer
open: a number that does not fit int64 becomes the least one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, repeat
from typing import Any, NoReturn, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.exceptions import UnsupportedModelError
from skforge.forest.validation import NORMS, damaged
from skforge.frontends.onnx.symbols import (
    BOOL,
    DOUBLE,
    DTYPES,
    FLOAT,
    INT32,
    INT64,
    STRING,
    NormColumn,
    Tensor,
    cells_of,
)
from skforge.frontends.pipeline.columns import Column

ML = "ai.onnx.ml"
ENSEMBLES = ("TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble")
_REAL, _WHOLE = (FLOAT, DOUBLE), (INT32, INT64)
_MOST = 1 << 20  # cells of a tensor
_EXACT = 1 << 53  # from here on, float64 rounds whole numbers


ADVICE = (
    "so it cannot become part of the trees; if the model was converted from a "
    "scikit-learn pipeline, give skforge the pipeline, or convert its last step alone"
)


def title_of(node: Any) -> str:
    name = node.name or next(iter(node.output), "?")
    return f"node {name[:60]!r} ({node.op_type[:60]})"


class GraphNode:
    """A node of the graph: ``inputs`` are tensors, constants, or None if absent."""

    def __init__(
        self, node: Any, version: int, attributes: dict[str, Any], inputs: list[Any]
    ) -> None:
        self.node, self.version = node, version
        self.attributes, self.inputs = attributes, inputs
        self.title = title_of(node)

    def fail(self, why: str) -> NoReturn:
        raise UnsupportedModelError(f"The {self.title} {why}, {ADVICE}.")

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def tensor(self, i: int = 0) -> Tensor:
        value = self.inputs[i] if i < len(self.inputs) else None
        if not isinstance(value, Tensor):
            self.fail(f"does not read the model's input as its input {i}")
        return value

    def constant(self, i: int, name: str = "") -> Any:
        """Return a constant input, or the attribute that older operators have."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None and name:
            value = self.get(name)
        if value is None or isinstance(value, Tensor):
            self.fail(f"computes its input {i}, where a constant is folded")
        return np.asarray(value)

    def numbers(self, i: int, name: str = "") -> list[int]:
        values = self.constant(i, name)
        if values.dtype.kind not in "iu":
            damaged(f"input {i} of the {self.title} is no list of whole numbers")
        return [int(value) for value in values.reshape(-1)]

    def axis(self, value: Any, rank: int) -> int:
        """Return the place of an axis among those of a tensor's cells."""
        axis = int(value)
        axis += rank if axis < 0 else 0
        if not 0 < axis < rank:
            self.fail(f"works along axis {int(value)}, which mixes rows")
        return axis - 1

    def only(self, tensor: Tensor, types: Sequence[int]) -> Tensor:
        if tensor.type not in types:
            self.fail(f"reads values of type {tensor.type}, which do not fold there")
        return tensor


Operator: TypeAlias = Callable[[GraphNode], "list[Tensor]"]

# ------------------------------------------------------------ places of columns


def _identity(node: GraphNode) -> list[Tensor]:
    return [node.tensor()]


def _concat(node: GraphNode) -> list[Tensor]:
    parts = [node.tensor(i) for i in range(len(node.inputs))]
    axis = node.axis(node.get("axis", 1), parts[0].cells.ndim + 1)
    shapes = [[*part.cells.shape] for part in parts]
    alike = len({part.type for part in parts}) == len({*map(len, shapes)}) == 1
    others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if not alike or len(others) > 1:
        damaged(f"the inputs of the {node.title} differ")
    if sum(part.cells.size for part in parts) > _MOST:
        node.fail("makes more columns than memory holds")
    return [parts[0].of(np.concatenate([part.cells for part in parts], axis))]


def _vectorizer(node: GraphNode) -> list[Tensor]:
    parts = [node.tensor(i) for i in range(len(node.inputs))]
    sizes = node.get("inputdimensions", [])
    if [part.cells.size for part in parts] != [int(size) for size in sizes]:
        node.fail("cuts or pads its inputs")
    cells = np.concatenate([part.cells.reshape(-1) for part in parts])
    types = {part.type for part in parts}
    if len(types) > 1 or STRING in types:
        node.fail("joins columns of several types")
    return _to(node, Tensor(cells, parts[0].type), FLOAT)


def _reshape(node: GraphNode) -> list[Tensor]:
    tensor, dims = node.tensor(), node.numbers(1, "shape")
    shape = tensor.cells.shape
    if node.get("allowzero", 0) or dims.count(-1) > 1 or not dims:
        node.fail("changes the shape of its rows")
    dims = [
        (-1 if i == 0 else shape[i - 1] if i <= len(shape) else 0) if dim == 0 else dim
        for i, dim in enumerate(dims)
    ]
    new = dims[1:]
    if dims[0] != -1 or min(new, default=1) < 1:
        if dims[0] != -1 or dims.count(-1) != 2:
            node.fail("changes the shape of its rows")
        known = int(np.prod([dim for dim in new if dim > 0], dtype=object))
        if known < 1 or tensor.cells.size % known or node.numbers(1)[0] != 0:
            node.fail("changes the shape of its rows")
        new = [tensor.cells.size // known if dim == -1 else dim for dim in new]
    if int(np.prod(new, dtype=object)) != tensor.cells.size:
        node.fail("changes the number of its rows")
    return [tensor.of(tensor.cells.reshape(new))]


def _flatten(node: GraphNode) -> list[Tensor]:
    tensor = node.tensor()
    if node.get("axis", 1) != 1:
        node.fail("joins rows")
    return [tensor.of(tensor.cells.reshape(-1))]


def _gather(node: GraphNode) -> list[Tensor]:
    tensor, index = node.tensor(), node.constant(1)
    axis = node.axis(node.get("axis", 0), tensor.cells.ndim + 1)
    return [tensor.of(_taken(node, tensor.cells, index, axis))]


def _extract(node: GraphNode) -> list[Tensor]:
    """ArrayFeatureExtractor: columns of the last axis."""
    tensor, index = node.tensor(), node.constant(1).reshape(-1)
    axis = node.axis(-1, tensor.cells.ndim + 1)
    return [tensor.of(_taken(node, tensor.cells, index, axis))]


def _taken(node: GraphNode, cells: Any, index: Array, axis: int) -> Any:
    size = cells.shape[axis]
    if index.dtype.kind not in "iu" or ((index < -size) | (index >= size)).any():
        damaged(f"the {node.title} asks for columns that are not there")
    if index.size * (cells.size // max(1, size)) > _MOST:
        node.fail("makes more columns than memory holds")
    return np.take(cells, index, axis)


def _slice(node: GraphNode) -> list[Tensor]:
    tensor = node.tensor()
    starts, ends = node.numbers(1, "starts"), node.numbers(2, "ends")
    axes, steps = [*range(len(starts))], [1] * len(starts)
    if (len(node.inputs) > 3 and node.inputs[3] is not None) or node.get("axes"):
        axes = node.numbers(3, "axes")
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        steps = node.numbers(4)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        damaged(f"the {node.title} has starts, ends and axes that do not fit")
    cells = tensor.cells
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = node.axis(axis, cells.ndim + 1)
        end_ = None if step < 0 and end < -cells.shape[place] else end
        cells = cells[(slice(None),) * place + (slice(start, end_, step),)]
    return [tensor.of(cells)]


def _split(node: GraphNode) -> list[Tensor]:
    tensor, n_outputs = node.tensor(), len(node.node.output)
    axis = node.axis(node.get("axis", 0), tensor.cells.ndim + 1)
    size = tensor.cells.shape[axis]
    if (len(node.inputs) > 1 and node.inputs[1] is not None) or node.get("split"):
        sizes = node.numbers(1, "split")
    else:
        chunk = -(-size // n_outputs)
        sizes = [chunk] * (n_outputs - 1) + [size - chunk * (n_outputs - 1)]
    if sum(sizes) != size or len(sizes) != n_outputs or min(sizes, default=0) < 0:
        damaged(f"the sizes of the {node.title} do not add up")
    parts = np.split(tensor.cells, np.cumsum(sizes)[:-1], axis)
    return [tensor.of(part) for part in parts]


def _squeeze(node: GraphNode) -> list[Tensor]:
    tensor = node.tensor()
    rank = tensor.cells.ndim + 1
    axes = tuple(node.axis(axis, rank) for axis in node.numbers(1, "axes"))
    if any(tensor.cells.shape[axis] != 1 for axis in axes):
        damaged(f"the {node.title} drops an axis of several columns")
    return [tensor.of(tensor.cells.squeeze(axes))]


def _unsqueeze(node: GraphNode) -> list[Tensor]:
    tensor, axes = node.tensor(), node.numbers(1, "axes")
    rank = tensor.cells.ndim + 1 + len(axes)
    if len(axes) > 8:
        damaged(f"the {node.title} adds {len(axes)} axes")
    places = tuple(node.axis(axis, rank) for axis in axes)
    return [tensor.of(np.expand_dims(tensor.cells, places))]


# ------------------------------------------------------------ types


def _cast(node: GraphNode) -> list[Tensor]:
    return _to(node, node.tensor(), int(node.get("to", 0)))


def _cast_like(node: GraphNode) -> list[Tensor]:
    like = node.inputs[1] if len(node.inputs) > 1 else None
    if isinstance(like, Tensor):
        return _to(node, node.tensor(), like.type)
    kinds = {"f4": FLOAT, "f8": DOUBLE, "i8": INT64, "b1": BOOL}
    return _to(node, node.tensor(), kinds.get(np.asarray(like).dtype.str[1:], 0))


def _to(node: GraphNode, tensor: Tensor, to: int) -> list[Tensor]:
    before = tensor.type
    special: tuple[float, ...] = ()
    if to == before:
        return [tensor]
    if before == STRING or to not in (FLOAT, DOUBLE, INT64, BOOL):
        node.fail(f"converts values of type {before} to type {to}")
    function: Any = partial(_as_dtype, dtype=DTYPES[to])
    if to == BOOL:
        function, special = _as_bool, (0.0,)
    elif to == INT64:
        if before not in _REAL:  # whole numbers and booleans are held alike
            return [tensor.of(tensor.cells, to)]
        function, special = _as_whole, (2.0**63,)
    return [tensor.each(node.title, repeat(function), special, to)]


def _as_dtype(x: Array, dtype: Any) -> Array:
    return x.astype(dtype)


def _as_whole(x: Array) -> Array:
    wide = x.astype(np.float64)
    fits = (wide >= -(2.0**63)) & (wide < 2.0**63)
    return np.where(fits, np.trunc(wide), -(2.0**63)) + 0.0


def _as_bool(x: Array) -> Array:
    return x != 0


# ------------------------------------------------------------ ai.onnx.ml


def _by_column(node: GraphNode, name: str, width: int, default: float) -> Array:
    values = np.asarray(node.get(name, [default]), np.float32)
    if len(values) not in (1, width):
        damaged(f"{name} of the {node.title} has {len(values)} numbers for {width}")
    return np.broadcast_to(values, (width,))


def _scaler(node: GraphNode) -> list[Tensor]:
    tensor = node.only(node.tensor(), (*_REAL, *_WHOLE))
    offset = _by_column(node, "offset", tensor.width, 0.0)
    scale = _by_column(node, "scale", tensor.width, 1.0)
    if not (np.isfinite(offset).all() and np.isfinite(scale).all()):
        node.fail("has an offset or a scale that is not finite")
    dtype = np.dtype(np.float64 if tensor.type == DOUBLE else np.float32)
    functions = [
        partial(_scaled, dtype=dtype, offset=a, scale=b)
        for a, b in zip(offset.astype(dtype), scale.astype(dtype), strict=True)
    ]
    odd = not scale.astype(dtype).all()  # infinity times 0
    return [tensor.each(node.title, cycle(functions), (), FLOAT, odd=odd)]


def _scaled(x: Array, dtype: Any, offset: Any, scale: Any) -> Array:
    return ((x.astype(dtype) - offset) * scale).astype(np.float32)


def _imputer(node: GraphNode) -> list[Tensor]:
    tensor = node.only(node.tensor(), (FLOAT, INT64))
    whole = tensor.type == INT64
    kind = "int64" if whole else "float"
    values = node.get(f"imputed_value_{kind}s")
    marker = node.get(f"replaced_value_{kind}", 0)
    width = tensor.width
    if values is None or len(values) == 0:
        damaged(f"the {node.title} has no imputed_value_{kind}s")
    dtype = DTYPES[tensor.type]
    # onnxruntime takes the first value if there is not one for each column
    each = np.resize(values if len(values) == width else values[:1], width)
    if whole and max(map(abs, [*map(int, values), int(marker)])) >= _EXACT:
        node.fail("has whole numbers that float64 rounds")
    each, marker = each.astype(dtype), dtype.type(marker)
    special = () if np.isnan(marker) else (marker,)
    functions = [partial(_imputed, marker=marker, value=value) for value in each]
    odd = bool(np.isinf(marker))
    return [tensor.each(node.title, cycle(functions), special, tensor.type, odd=odd)]


def _imputed(x: Array, marker: Any, value: Any) -> Array:
    missing = np.isnan(x) if np.isnan(marker) else x == marker
    return np.where(missing, value, x)


def _normalizer(node: GraphNode) -> list[Tensor]:
    """Divide columns of the rows by their norm, which the rows' reader computes."""
    tensor = node.only(node.tensor(), (FLOAT,))
    norm = bytes(node.get("norm", b"MAX")).decode(errors="replace")
    cells = [*tensor.cells.reshape(-1)]
    sources = tuple(cell.source for cell in cells)
    if norm not in NORMS or tensor.cells.ndim != 1:
        damaged(f"the {node.title} has the norm {norm[:60]!r}, or reads no matrix")
    plain = all(type(cell) is Column and cell.stage is None for cell in cells)
    if not plain or len({*sources}) < len(sources):
        node.fail("computes with several columns of a row that other nodes make")
    if any(cell.dtype != np.float32 for cell in cells):
        node.fail("computes with several columns that are not float")
    made = [NormColumn(i, DTYPES[FLOAT], norm=(norm, sources)) for i in sources]
    return [tensor.of(cells_of(made, tensor.cells.shape))]


def _one_hot(node: GraphNode) -> list[Tensor]:
    tensor = node.tensor()
    texts = tensor.type == STRING
    known = _texts(node, "cats_strings") if texts else node.get("cats_int64s", [])
    if not texts:
        node.only(tensor, (FLOAT, DOUBLE, INT32, INT64))
        if tensor.type in _REAL:
            (tensor,) = _to(node, tensor, INT64)
        _check_whole(node, known)
    if not len(known) or len({*known}) < len(known):
        damaged(f"the {node.title} has no categories, or one twice")
    if tensor.cells.size * len(known) > _MOST:
        node.fail("makes more columns than memory holds")
    closed = not node.get("zeros", 1)
    if closed and not texts:
        node.fail(
            "raises an error for numbers that it does not know (zeros=0, from "
            "handle_unknown='error'), which the trees cannot"
        )
    keys = np.array([*known], object if texts else np.float64)
    table = {key: i for i, key in enumerate(keys.tolist())}
    function = partial(_hot, table=table)
    size = len(keys)
    return [tensor.each(node.title, repeat(function), keys, FLOAT, size, closed)]


def _hot(x: Array, table: dict[Any, int]) -> Array:
    codes = np.array([table.get(value, -1) for value in x.tolist()], np.intp)
    return (codes[:, None] == np.arange(len(table))).astype(np.float32)


def _check_whole(node: GraphNode, values: Any) -> None:
    if any(abs(int(value)) >= _EXACT for value in values):
        node.fail("has whole numbers that float64 rounds")


def _texts(node: GraphNode, name: str) -> list[str]:
    try:
        return [bytes(text).decode() for text in node.get(name, [])]
    except UnicodeDecodeError:
        damaged(f"{name} of the {node.title} holds bytes that are not UTF-8 text")


#: Of LabelEncoder: the words of its attributes, by type.
_WORDS = {STRING: "strings", INT64: "int64s", FLOAT: "floats"}
_DEFAULTS = {INT64: -1, FLOAT: -0.0}


def _label_encoder(node: GraphNode) -> list[Tensor]:
    tensor = node.tensor()
    keys, values, kind, default = _table(node, tensor)
    if len(keys) != len(values) or not len(keys):
        damaged(f"the {node.title} has {len(keys)} keys and {len(values)} values")
    table: dict[Any, int] = {}
    for i, key in enumerate(keys):  # the first of equal keys counts
        table.setdefault(key, i)
    numbers = np.append(np.asarray(values, DTYPES[kind]), DTYPES[kind].type(default))
    nan = len(values)  # NaN is no key before version 4 of the operator
    if node.version >= 4:
        nan = next((i for i, key in enumerate(keys) if key != key), nan)
    special = np.array([*table], object if tensor.type == STRING else np.float64)
    function = partial(_looked_up, table=table, values=numbers, nan=nan)
    odd = tensor.type == FLOAT and bool(np.isinf([*table]).any())
    return [tensor.each(node.title, repeat(function), special, kind, odd=odd)]


def _looked_up(x: Array, table: dict[Any, int], values: Array, nan: int) -> Array:
    get, last = table.get, len(values) - 1
    return values[[get(v, last) if v == v else nan for v in x.tolist()]]


def _table(node: GraphNode, tensor: Tensor) -> tuple[Any, Any, int, Any]:
    """Return the keys and values of a LabelEncoder, the values' type, the default."""
    reads = tensor.type
    for kind in (FLOAT, INT64):
        keys = node.get(f"keys_{_WORDS.get(reads, '')}")
        values = node.get(f"values_{_WORDS[kind]}")
        if keys is not None and values is not None and len(values):
            if reads == STRING:
                keys = _texts(node, "keys_strings")
            elif reads == INT64:
                _check_whole(node, keys)
            if kind == INT64:
                _check_whole(node, values)
            default = node.get(f"default_{_WORDS[kind][:-1]}", _DEFAULTS[kind])
            return [*_plain(keys)], values, kind, default
    return node.fail("maps other values than texts, int64 and float to numbers")


def _plain(keys: Any) -> list[Any]:
    return keys.tolist() if isinstance(keys, np.ndarray) else keys


# ------------------------------------------------------------ arithmetic


def _arithmetic(function: Any, node: GraphNode) -> list[Tensor]:
    """Compute with a column and a constant: that never changes the order of numbers."""
    at = next((i for i, x in enumerate(node.inputs) if isinstance(x, Tensor)), -1)
    if len(node.inputs) != 2 or at < 0 or isinstance(node.inputs[1 - at], Tensor):
        node.fail("computes with several columns of a row")
    tensor = node.only(node.tensor(at), _REAL)
    constant = node.constant(1 - at)
    rank = tensor.cells.ndim
    while constant.ndim > rank and constant.shape[0] == 1:
        constant = constant[0]
    if constant.dtype != DTYPES[tensor.type] or constant.ndim > rank:
        damaged(f"the constant of the {node.title} does not fit its column")
    divides = function is np.divide
    if not np.isfinite(constant).all() or (divides and not constant.all()):
        node.fail("computes with constants that are not finite, or divides by 0")
    if divides and at:
        node.fail("divides a constant by a column")
    try:
        shape = np.broadcast_shapes(tensor.cells.shape, constant.shape)
    except ValueError:
        damaged(f"the constant of the {node.title} does not fit its columns")
    if constant.size * tensor.cells.size > _MOST * max(constant.shape, default=1):
        node.fail("makes more columns than memory holds")
    wide = tensor.of(np.broadcast_to(tensor.cells, shape))
    functions = [
        partial(_with_constant, function=function, constant=number, first=at == 1)
        for number in np.broadcast_to(constant, shape).reshape(-1)
    ]
    odd = function is np.multiply and not constant.all()  # infinity times 0
    return [wide.each(node.title, functions, (), tensor.type, odd=odd)]


def _with_constant(x: Array, function: Any, constant: Any, first: bool) -> Any:
    return function(constant, x) if first else function(x, constant)


def _clip(node: GraphNode) -> list[Tensor]:
    tensor = node.only(node.tensor(), _REAL)
    dtype, ends = DTYPES[tensor.type], []
    finite = np.finfo(dtype)  # without an end, infinity becomes the largest number
    for i, (name, default) in enumerate((("min", finite.min), ("max", finite.max)), 1):
        given = len(node.inputs) > i and node.inputs[i] is not None
        end = node.constant(i) if given else np.asarray(node.get(name, default))
        if end.size != 1 or end.dtype.kind != "f" or np.isnan(end).any():
            damaged(f"{name} of the {node.title} is not one number")
        ends.append(dtype.type(end.reshape(-1)[0]))
    if ends[0] > ends[1]:
        damaged(f"min of the {node.title} is above its max")
    function = partial(_clipped, low=ends[0], high=ends[1])
    return [tensor.each(node.title, repeat(function), (), tensor.type)]


def _clipped(x: Array, low: Any, high: Any) -> Array:
    return np.where(x < low, low, np.where(x > high, high, x))


# ------------------------------------------------------------ the table

_PLAIN: dict[str, Operator] = {
    **{"Identity": _identity, "Concat": _concat, "Reshape": _reshape},
    **{"Flatten": _flatten, "Gather": _gather, "Slice": _slice, "Split": _split},
    **{"Squeeze": _squeeze, "Unsqueeze": _unsqueeze},
    **{"Cast": _cast, "CastLike": _cast_like},
    **{"Add": partial(_arithmetic, np.add), "Sub": partial(_arithmetic, np.subtract)},
    "Mul": partial(_arithmetic, np.multiply),
    "Div": partial(_arithmetic, np.divide),
    "Clip": _clip,
}
_OF_ML: dict[str, Operator] = {
    **{"Scaler": _scaler, "Imputer": _imputer, "OneHotEncoder": _one_hot},
    **{"LabelEncoder": _label_encoder, "FeatureVectorizer": _vectorizer},
    **{"ArrayFeatureExtractor": _extract, "Normalizer": _normalizer},
}


def operator_of(node: Any) -> Operator | None:
    if node.domain == ML:
        return _OF_ML.get(node.op_type)
    return _PLAIN.get(node.op_type) if node.domain in ("", "ai.onnx") else None
