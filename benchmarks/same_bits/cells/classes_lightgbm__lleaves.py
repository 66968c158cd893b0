"""Classes, LightGBM: lleaves.

pip install lleaves "llvmlite<0.44" lightgbm scikit-learn
"""

import lightgbm
import lleaves
import numpy as np

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5))
y = (X[:, 0] * X[:, 1] > 0) + 2 * (X[:, 2] > rng.normal(size=4000))
source = lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1)
source.fit(X, y)
expected = source.predict_proba(rows)

source.booster_.save_model("model.txt")
compiled = lleaves.Model(model_file="model.txt")
compiled.compile()
answers = compiled.predict(rows, n_jobs=1)

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
