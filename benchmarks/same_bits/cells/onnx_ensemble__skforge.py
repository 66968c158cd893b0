"""ONNX, ONNX Runtime's `TreeEnsemble` of opset 5: skforge.

pip install skforge-compiler onnx onnxruntime
"""

import numpy as np
import onnx
import onnxruntime

from skforge import CompiledForest

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).round(1)
child = 2 * np.tile(np.arange(15), 50) + 1
tree = np.repeat(np.arange(50), 15)
leaves = (child >= 15).astype(int)
first, second = (
    np.where(leaves == 1, 16 * tree + c - 15, 15 * tree + c) for c in (child, child + 1)
)
tensor = onnx.numpy_helper.from_array
node = onnx.helper.make_node(
    "TreeEnsemble",
    ["X"],
    ["Y"],
    domain="ai.onnx.ml",
    tree_roots=[*range(0, 750, 15)],
    nodes_featureids=rng.integers(0, 5, 750),
    nodes_modes=tensor(rng.choice(np.uint8([0, 1]), 750)),  # <= and <
    nodes_splits=tensor(rng.normal(size=750).round(1)),
    nodes_truenodeids=first,
    nodes_falsenodeids=second,
    nodes_trueleafs=leaves,
    nodes_falseleafs=leaves,
    leaf_targetids=np.zeros(800, int),
    leaf_weights=tensor(rng.normal(size=800)),
    n_targets=1,
    aggregate_function=1,  # sum
    post_transform=0,
)
value = onnx.helper.make_tensor_value_info
x, y = (value(n, onnx.TensorProto.DOUBLE, [None, c]) for n, c in (("X", 5), ("Y", 1)))
graph = onnx.helper.make_graph([node], "forest", [x], [y])
opsets = [onnx.helper.make_opsetid("ai.onnx.ml", 5)]
onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), "model.onnx")
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
source = onnxruntime.InferenceSession("model.onnx", options)
expected = source.run(None, {"X": rows})[0]

fast = CompiledForest("model.onnx").fit(X)
answers = fast.predict(rows)

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
