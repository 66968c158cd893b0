"""Probabilities, random forest: onnxruntime.

pip install skl2onnx onnxruntime scikit-learn
"""

import numpy as np
import onnxruntime
import skl2onnx
from sklearn.ensemble import RandomForestClassifier

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).astype(np.float32)
y = (X[:, 0] * X[:, 1] > 0) + 2 * (X[:, 2] > rng.normal(size=4000))
source = RandomForestClassifier(20, max_depth=8, random_state=0)
source.fit(X, y)
expected = source.predict_proba(rows)

model = skl2onnx.to_onnx(source, X[:1], options={"zipmap": False})
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model.SerializeToString(), options)
feed = {session.get_inputs()[0].name: np.float32(rows)}
answers = session.run(None, feed)[-1]

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
