"""Missing values, random forest: onnxruntime.

pip install skl2onnx onnxruntime scikit-learn
"""

import numpy as np
import onnxruntime
import skl2onnx
from sklearn.ensemble import RandomForestRegressor

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).round(1)
y = X[:, 0] * X[:, 1] + np.abs(X[:, 2])
X[rng.random(X.shape) < 0.2] = np.nan
special = [np.nan, 0.0, -0.0, 1e-40]
rows = np.where(rng.random(X.shape) < 0.3, rng.choice(special, X.shape), rows)
X, rows = X.astype(np.float32), rows.astype(np.float32)
source = RandomForestRegressor(20, max_depth=8, random_state=0).fit(X, y)
expected = source.predict(rows)

model = skl2onnx.to_onnx(source, X[:1])
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
