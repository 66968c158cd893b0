"""Probabilities, LightGBM: daal4py.

pip install scikit-learn-intelex lightgbm scikit-learn
"""

import daal4py
import lightgbm
import numpy as np

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5))
y = np.where(X[:, 0] * X[:, 1] > rng.normal(size=4000), 1, 0)
source = lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1)
source.fit(X, y)
expected = source.predict_proba(rows)[:, 1]

converted = daal4py.mb.convert_model(source)
daal4py.daalinit(1)
answers = converted.predict_proba(rows)[:, 1]

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
