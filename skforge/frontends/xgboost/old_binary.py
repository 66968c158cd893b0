"""Reads the binary format that XGBoost wrote until 3.0, and reads no more since 3.1.

The format has no marks between its parts, so each length is compared with the bytes
that are left before anything is read. Numbers are little-endian, as on all platforms
for which XGBoost has wheels.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.runtime.libm import exp

_NODE = np.dtype(
    [(name, "<i4") for name in ("parent", "left", "right")]
    + [("split", "<u4"), ("value", "<f4")]
)
_STATISTICS = np.dtype(
    [("gain", "<f4"), ("cover", "<f4"), ("weight", "<f4"), ("leaves", "<i4")]
)
_HEADER, _TREES, _TREE = 136, 160, 148  # bytes of fixed parts, spare ones included
_SIGN = 1 << 31  # of a node's feature: missing goes left; of its parent: a left child
_CONFIG = b"CONFIG-offset:"
_LAST = [3, 0, 5]  # the last XGBoost that reads the format, and what a document is of
_ROOT = (1 << 31) - 1  # what documents have for the parent of a root
_LIMIT = np.float32(88.7)  # of exponents, in XGBoost's sigmoid
_OF_EXPONENTS = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox")

#: What documents say of an objective's training, unless the file says it itself.
_WEIGHT = {"reg_loss_param": {"scale_pos_weight": "1"}}
_DETAILS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("reg:squarederror", "reg:logistic", "reg:gamma"), _WEIGHT),
    **dict.fromkeys(("binary:logistic", "binary:logitraw"), _WEIGHT),
    "reg:tweedie": {"tweedie_regression_param": {"tweedie_variance_power": "1.5"}},
    "reg:pseudohubererror": {"pseudo_huber_param": {"huber_slope": "1"}},
    **{
        f"rank:{kind}": {"lambdarank_param": {}} for kind in ("pairwise", "ndcg", "map")
    },
}


def document_of(data: bytes) -> dict[str, Any]:
    """Return the document that ``save_model`` would have written as JSON.

    Arrays of nodes are NumPy's. Of another booster than trees, only its name is there.
    """
    return _OldBinaryReader(*_model_in(data)).document()


def _model_in(data: bytes) -> tuple[bytes, int]:
    """Return bytes that end with the model, and where in them it begins."""
    if data[:4] == b"bs64":
        try:
            data = base64.b64decode(b"".join(data[4:].split()), validate=True)
        except binascii.Error as error:
            raise InvalidModelError(
                f"The model in base64 cannot be decoded ({error}); the file is damaged "
                "or cut off, so copy it again."
            ) from None
    start = 0
    if data.startswith(_CONFIG):  # of pickles and R
        start = len(_CONFIG) + 8
        size = int.from_bytes(data[len(_CONFIG) : start], "little")
        if size > len(data) - start:
            _cut(start, len(data), f"a model of {size} bytes")
        data = data[: start + size]
    elif data[:2] == b"\0\5" or (data[:2] == b"\0\0" and not _is_plain(data)):
        start = _spark_columns(data)
    return data, start + 4 if data[start : start + 4] == b"binf" else start


def _is_plain(data: bytes) -> bool:
    """Tell whether the names of the objective and the booster are in their places."""
    at = _HEADER
    for most in (128, 8):
        size = int.from_bytes(data[at : at + 8], "little")
        at += 8 + size
        if not 0 < size <= most or at > len(data):
            return False
    return data[at - size : at] in (b"gbtree", b"dart", b"gblinear")


def _spark_columns(data: bytes) -> int:
    """Return where the model begins behind what Spark's wrapper wrote.

    Since 0.8 this is the number of classes; before, the kind of model, the columns'
    names and the thresholds. These numbers are big-endian, as Java writes them.
    """
    if data[:2] == b"\0\0":
        return 4
    at, names = 0, 5 if data[2:7] == b"_cls_" else 4
    for _ in range(names):
        at += 2 + int.from_bytes(data[at : at + 2], "big")
    if names == 5:
        n = int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
        at += 8 + 8 * max(n, 0)
    return min(at, len(data))


def _cut(at: int, size: int, what: str) -> NoReturn:
    raise InvalidModelError(
        f"Byte {at} of {size} of XGBoost's old binary format: {what} should follow, "
        "but the file ends before; it is damaged or cut off, so copy it again."
    )


class _OldBinaryReader:
    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.offset = start

    def damaged(self, what: str) -> NoReturn:
        raise InvalidModelError(
            f"Byte {self.offset} of {len(self.data)} of XGBoost's old binary format: "
            f"{what}; the file is damaged, so copy it again."
        )

    def take(self, size: int, what: str) -> int:
        start = self.offset
        if size > len(self.data) - start:
            _cut(start, len(self.data), f"{what} of {size} bytes")
        self.offset = start + size
        return start

    def numbers(self, form: str, size: int, what: str) -> tuple[Any, ...]:
        """Return the first numbers of a part of fixed size."""
        return struct.unpack_from(f"<{form}", self.data, self.take(size, what))

    def array(self, dtype: Any, count: int, what: str) -> Array:
        start = self.take(count * np.dtype(dtype).itemsize, what)
        return np.frombuffer(self.data, dtype, count, start)

    def count(self, what: str) -> int:
        return int(self.numbers("Q", 8, f"the length of {what}")[0])

    def text(self, what: str) -> str:
        size = self.count(what)
        start = self.take(size, what)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError:
            self.damaged(f"{what} is not UTF-8")

    def texts(self, what: str) -> list[str]:
        return [self.text(what) for _ in range(self.limited(self.count(what), 8, what))]

    def limited(self, count: int, size: int, what: str) -> int:
        """Return a count if that many parts of at least ``size`` bytes can follow."""
        if count < 0:
            self.damaged(f"the number of {what} is {count}")
        if count * size > len(self.data) - self.offset:
            _cut(self.offset, len(self.data), f"{count} {what}")
        return count

    def document(self) -> dict[str, Any]:
        form = "fIiiiIIIi"
        base, n_features, n_classes, has_attributes, has_metrics, *rest = self.numbers(
            form, _HEADER, "the header"
        )
        major, _, n_targets, estimates = rest
        objective = self.text("the objective's name")
        kind = self.text("the booster's name")
        if kind not in ("gbtree", "dart"):
            return {"learner": {"gradient_booster": {"name": kind}}}
        outputs = max(n_classes, n_targets, 1)
        model, weights = self.trees(kind, n_features, outputs, major)
        attributes = self.pairs() if has_attributes else {}
        self.tail(objective, has_metrics and major < 1)
        booster: dict[str, Any] = {"model": model, "name": "gbtree"}
        if kind == "dart":
            booster = {"gbtree": booster, "name": kind, "weight_drop": weights}
        details = _objective(objective, n_classes, attributes)
        if major < 1:
            base = _score_of(base, details["name"])
        parameters = {
            "base_score": str(np.float32(base)),
            "boost_from_average": str(int(estimates != 0)),
            "num_class": str(n_classes),
            "num_feature": str(n_features),
            "num_target": str(max(n_targets, 1)),
        }
        learner = {
            "attributes": attributes,
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": booster,
            "learner_model_param": parameters,
            "objective": details,
        }
        return {"learner": learner, "version": _LAST}

    def trees(
        self, kind: str, n_features: int, n_outputs: int, major: int
    ) -> tuple[dict[str, Any], Array]:
        n_trees, parallel = self.numbers("ii", _TREES, "the model's parameters")
        self.limited(n_trees, _TREE + _NODE.itemsize + _STATISTICS.itemsize, "trees")
        trees = [self.tree(i, n_features, major) for i in range(n_trees)]
        outputs = self.array("<i4", n_trees, "the outputs of trees")
        weights = np.zeros(0, np.float32)
        if kind == "dart" and n_trees:
            count = self.limited(self.count("weights of trees"), 4, "weights of trees")
            weights = self.array("<f4", count, "the weights of trees")
        round_of = n_outputs * max(parallel, 1)
        model = {
            "gbtree_model_param": {
                "num_parallel_tree": str(max(parallel, 1)),
                "num_trees": str(n_trees),
            },
            "tree_info": outputs,
            "trees": trees,
        }
        if not n_trees % round_of:
            model["iteration_indptr"] = [*range(0, n_trees + 1, round_of)]
        return model, weights

    def tree(self, i: int, n_features: int, major: int) -> dict[str, Any]:
        of = f"of tree {i}"
        n_roots, n_nodes, n_deleted, _, _, n_values = self.numbers(
            "6i", _TREE, f"the parameters {of}"
        )
        if n_roots != 1:
            raise UnsupportedModelError(
                f"Tree {i} has {n_roots} roots, and XGBoost reads trees of one root "
                "only; train the model again."
            )
        size = _NODE.itemsize + _STATISTICS.itemsize
        self.limited(n_nodes, size, f"nodes {of}")
        if not n_nodes:
            self.damaged(f"tree {i} has no nodes")
        nodes = self.array(_NODE, n_nodes, f"the nodes {of}")
        known = self.array(_STATISTICS, n_nodes, f"the statistics {of}")
        if n_values and major < 2:  # no XGBoost filled them
            what = f"values {of}"
            self.take(4 * self.limited(self.count(what), 4, what), what)
        elif n_values > 1:
            raise UnsupportedModelError(
                f"The leaves {of} have {n_values} values, which no XGBoost wrote in "
                "this format; save the model as JSON or UBJSON."
            )
        empty = dict.fromkeys(
            (f"categories{part}" for part in ("", "_nodes", "_segments", "_sizes")),
            np.zeros(0, np.int32),
        )
        return {
            "base_weights": known["weight"],
            **empty,
            "default_left": nodes["split"] >> 31,
            "id": i,
            "left_children": nodes["left"],
            "loss_changes": known["gain"],
            "parents": nodes["parent"] & _ROOT,
            "right_children": nodes["right"],
            "split_conditions": nodes["value"],
            "split_indices": nodes["split"] & np.uint32(_SIGN - 1),
            "split_type": np.zeros(n_nodes, np.uint8),
            "sum_hessian": known["cover"],
            "tree_param": {
                "num_deleted": str(n_deleted),
                "num_feature": str(n_features),
                "num_nodes": str(n_nodes),
                "size_leaf_vector": "1",
            },
        }

    def pairs(self) -> dict[str, str]:
        what = "attributes"
        count = self.limited(self.count(what), 16, what)
        return {self.text("an attribute"): self.text(what) for _ in range(count)}

    def tail(self, objective: str, has_metrics: bool) -> None:
        """Read what no prediction needs: a parameter of training and metrics of 0.x."""
        left = len(self.data) - self.offset
        if left and objective == "count:poisson":
            self.text("max_delta_step")
        if has_metrics:
            self.texts("metrics")
        if left := len(self.data) - self.offset:
            more = f"{left} more byte{'s' if left > 1 else ''}"
            self.damaged(f"the model ends here, but the file has {more}")


def _objective(name: str, n_classes: int, attributes: dict[str, str]) -> dict[str, Any]:
    """Return the objective's part of a document, and take it out of the attributes."""
    known: Any = None
    with suppress(ValueError, RecursionError):
        known = json.loads(attributes.pop("objective", ""))
    step = attributes.pop("count_poisson_max_delta_step", "0.7")
    attributes.pop("metrics", None)
    name = ":".join(name.split(":")[-2:])  # 0.7x may have a device before
    name = "reg:squarederror" if name == "reg:linear" else name
    details = _DETAILS.get(name, {})
    if name == "count:poisson":
        details = {"poisson_regression_param": {"max_delta_step": step}}
    if name.startswith("multi:"):
        details = {"softmax_multiclass_param": {"num_class": str(n_classes)}}
    return details | (known if isinstance(known, dict) else {}) | {"name": name}


def _score_of(margin: float, objective: str) -> float:
    """Return the base score of a margin, as which 0.x saved it.

    XGBoost up to 3.0 read these files so, in float32, and made a margin of it again.
    """
    value: Array = np.array([margin], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if objective in ("binary:logistic", "reg:logistic"):
            value = 1 / (exp(np.minimum(-value, _LIMIT)) + np.float32(1))
        elif objective in _OF_EXPONENTS:
            value = exp(value)
        elif objective == "binary:hinge":
            value = (value > 0).astype(np.float32)
    return float(value[0])
