"""Sums of many trees, XGBoost: tl2cgen.

pip install treelite tl2cgen xgboost scikit-learn
"""

import numpy as np
import tl2cgen
import treelite
import xgboost

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).astype(np.float32)
y = 1000 * X[:, 0] * X[:, 1] + 100 * np.abs(X[:, 2])
source = xgboost.XGBRegressor(n_estimators=200, max_depth=4, n_jobs=1).fit(X, y)
expected = source.predict(rows)

source.save_model("model.json")
model = treelite.frontend.load_xgboost_model("model.json")
tl2cgen.export_lib(model, toolchain="gcc", libpath="model.so")
predictor = tl2cgen.Predictor("model.so", nthread=1)
answers = predictor.predict(tl2cgen.DMatrix(rows))

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
