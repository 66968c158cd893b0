"""Sums of many trees, XGBoost: onnxruntime.

pip install onnxmltools onnxruntime xgboost scikit-learn
"""

import numpy as np
import onnxruntime
import xgboost
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).astype(np.float32)
y = 1000 * X[:, 0] * X[:, 1] + 100 * np.abs(X[:, 2])
source = xgboost.XGBRegressor(n_estimators=200, max_depth=4, n_jobs=1).fit(X, y)
expected = source.predict(rows)

types = [("X", FloatTensorType([None, X.shape[1]]))]
model = convert_xgboost(source, initial_types=types)
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
