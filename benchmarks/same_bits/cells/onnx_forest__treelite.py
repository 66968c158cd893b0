"""ONNX, random forest of two classes: treelite.

pip install treelite scikit-learn
"""

import numpy as np
import treelite
from sklearn.ensemble import RandomForestClassifier

rng = np.random.default_rng(0)
X, rows = rng.normal(size=(2, 4000, 5)).astype(np.float32)
y = np.where(X[:, 0] * X[:, 1] > rng.normal(size=4000), 1, 0)
source = RandomForestClassifier(20, max_depth=8, random_state=42)
source.fit(X, y)
expected = source.predict(rows)

model = treelite.sklearn.import_model(source)
answers = treelite.gtil.predict(model, rows, nthread=1).argmax(axis=-1)

a = np.float64(expected).reshape(len(rows), -1)
b = np.float64(answers).reshape(a.shape)
differ = (a.view(np.int64) != b.view(np.int64)).any(axis=1).sum()
gaps, greatest = np.abs(a - b).max(axis=1), np.abs(a).max()
more = len(rows) - (gaps <= 1e-4 * greatest).sum()
print(f"{differ} of {len(rows)} rows differ, by {gaps.max():.1e} at most")
print(f"{more} by more than rounding; the greatest answer is {greatest:.1e}")
