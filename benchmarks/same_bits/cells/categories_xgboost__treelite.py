"""Categories, XGBoost: treelite.

pip install treelite xgboost scikit-learn
"""

import numpy as np
import treelite
import xgboost

rng = np.random.default_rng(0)
codes = rng.integers(0, 100, (4000, 2))
X = np.column_stack([codes, rng.normal(size=(4000, 2))]).astype(np.float32)
y = np.sin(codes[:, 0] ** 2) + codes[:, 1] % 7 + X[:, 2]
rows = np.where(rng.random(X.shape) < 0.1, np.float32(np.nan), X)
kinds = ["c", "c", "q", "q"]
source = xgboost.XGBRegressor(
    n_estimators=50, max_depth=5, n_jobs=1, enable_categorical=True, feature_types=kinds
).fit(X, y)
expected = source.predict(rows)

source.save_model("model.json")
model = treelite.frontend.load_xgboost_model("model.json")
answers = treelite.gtil.predict(model, rows, nthread=1)

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
