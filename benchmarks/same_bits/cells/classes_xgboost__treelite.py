"""Classes, XGBoost: treelite.

pip install treelite xgboost scikit-learn
"""

import numpy as np
import treelite
import xgboost

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).astype(np.float32)
y = (X[:, 0] * X[:, 1] > 0) + 2 * (X[:, 2] > rng.normal(size=4000))
source = xgboost.XGBClassifier(n_estimators=20, max_depth=4, n_jobs=1).fit(X, y)
expected = source.predict_proba(rows)

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
