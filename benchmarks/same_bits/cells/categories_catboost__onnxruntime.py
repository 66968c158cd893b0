"""Categories, CatBoost: onnxruntime.

pip install onnxruntime catboost
"""

import catboost
import numpy as np
import onnxruntime

rng = np.random.default_rng(0)
codes = rng.integers(0, 100, (4000, 2))
X = np.char.add("c", codes.astype(str)).astype(object)
rows = np.where(rng.random(X.shape) < 0.1, "another", X)
y = np.sin(codes[:, 0] ** 2) + codes[:, 1] % 7
options = dict(iterations=50, thread_count=1, verbose=0)
source = catboost.CatBoostRegressor(cat_features=[0, 1], **options)
source.fit(X, y)
expected = source.predict(rows)

source.save_model("model.onnx", format="onnx")
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession("model.onnx", options)
feed = {session.get_inputs()[0].name: np.float32(rows)}
answers = session.run(None, feed)[-1]

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
