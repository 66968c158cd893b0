"""Classes, random forest: daal4py.

pip install treelite scikit-learn-intelex scikit-learn
"""

import daal4py
import numpy as np
import treelite
from sklearn.ensemble import RandomForestClassifier

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).astype(np.float32)
y = (X[:, 0] * X[:, 1] > 0) + 2 * (X[:, 2] > rng.normal(size=4000))
source = RandomForestClassifier(10, random_state=0).fit(X, y)
expected = source.predict(rows)

model = treelite.sklearn.import_model(source)
converted = daal4py.mb.convert_model(model)
daal4py.daalinit(1)
answers = converted.predict(rows) > 0.5

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
