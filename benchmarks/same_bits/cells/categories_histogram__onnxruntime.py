"""Categories, histogram gradient boosting: onnxruntime.

pip install skl2onnx onnxruntime "protobuf<7" scikit-learn
"""

import numpy as np
import onnxruntime
import skl2onnx
from sklearn.ensemble import HistGradientBoostingRegressor

rng = np.random.default_rng(0)
codes = rng.integers(0, 100, (4000, 2))
X = np.column_stack([codes, rng.normal(size=(4000, 2))])
y = np.sin(codes[:, 0] ** 2) + codes[:, 1] % 7 + X[:, 2]
other = rng.choice([np.nan, 200], X.shape)
rows = np.where(rng.random(X.shape) < 0.1, other, X)
source = HistGradientBoostingRegressor(max_iter=50, categorical_features=[0, 1])
source.fit(X, y)
expected = source.predict(rows)

model = skl2onnx.to_onnx(source, np.float32(X[:1]))
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
