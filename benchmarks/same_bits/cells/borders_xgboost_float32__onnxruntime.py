"""Thresholds met exactly, XGBoost: onnxruntime.

pip install onnxmltools onnxruntime xgboost scikit-learn
"""

import numpy as np
import onnxruntime
import xgboost
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

rng = np.random.default_rng(0)
times = 1.7e9 + rng.integers(0, 100_000, (4000, 2))  # Unix times, in seconds
prices = rng.integers(0, 1000, (4000, 3)) / 10
X = np.column_stack([times, prices])
y = times[:, 0] % 977 / 100 + prices[:, 0] - prices[:, 1] * prices[:, 2] / 50
rows = np.column_stack([times, prices + rng.integers(0, 2, prices.shape) / 20])
X, rows = X.astype(np.float32), rows.astype(np.float32)
source = xgboost.XGBRegressor(n_estimators=50, max_depth=5, n_jobs=1).fit(X, y)
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
