"""Missing values, histogram gradient boosting: hummingbird.

pip install hummingbird-ml torch scikit-learn
"""

import numpy as np
from hummingbird.ml import convert
from sklearn.ensemble import HistGradientBoostingRegressor

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).round(1)
y = X[:, 0] * X[:, 1] + np.abs(X[:, 2])
X[rng.random(X.shape) < 0.2] = np.nan
special = [np.nan, 0.0, -0.0, 1e-40]
rows = np.where(rng.random(X.shape) < 0.3, rng.choice(special, X.shape), rows)
source = HistGradientBoostingRegressor(max_iter=50).fit(X, y)
expected = source.predict(rows)

answers = convert(source, "torch").predict(rows)

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
