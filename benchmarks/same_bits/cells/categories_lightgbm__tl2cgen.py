"""Categories, LightGBM: tl2cgen.

pip install treelite tl2cgen lightgbm scikit-learn
"""

import lightgbm
import numpy as np
import tl2cgen
import treelite

rng = np.random.default_rng(0)
codes = rng.integers(0, 100, (4000, 2))
X = np.column_stack([codes, rng.normal(size=(4000, 2))])
y = np.sin(codes[:, 0] ** 2) + codes[:, 1] % 7 + X[:, 2]
other = rng.choice([np.nan, -1, 1000, 7.9, 1e10], X.shape)
rows = np.where(rng.random(X.shape) < 0.1, other, X)
options = {"verbose": -1, "num_threads": 1}
data = lightgbm.Dataset(X, y, categorical_feature=[0, 1])
source = lightgbm.train(options, data, 50)
expected = source.predict(rows)

source.save_model("model.txt")
model = treelite.frontend.load_lightgbm_model("model.txt")
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
