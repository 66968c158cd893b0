"""Write small models as the converters make them: skl2onnx and onnxmltools.

Run once where these are installed: ``python onnx_make_models.py FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def main(folder: Path) -> None:
    import lightgbm as lgb
    import onnxmltools
    import xgboost as xgb
    from onnxmltools.convert.common.data_types import FloatTensorType
    from skl2onnx import to_onnx
    from sklearn.ensemble import (
        ExtraTreesClassifier,
        GradientBoostingClassifier,
        RandomForestClassifier,
        RandomForestRegressor,
    )

    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)).astype(np.float32)
    X[:, 3] = rng.integers(0, 6, 300)
    binary = (X[:, 0] + X[:, 1] > 0).astype(int)
    several = np.digitize(X[:, 0] + X[:, 1] * 0.5, [-0.5, 0.5])
    number = X[:, 0] * 2 + np.sin(X[:, 1])
    words = np.array(["no", "yes"])[binary]
    small = {"n_estimators": 5, "max_depth": 4, "random_state": 0}

    def save(name: str, model: object) -> None:
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())

    for name, model, y, zipmap in (
        ("rf_binary", RandomForestClassifier(**small), binary, False),
        ("rf_zipmap", RandomForestClassifier(**small), binary, True),
        ("rf_several", RandomForestClassifier(**small), several, False),
        ("et_words", ExtraTreesClassifier(**small), words, False),
        ("gb_binary", GradientBoostingClassifier(n_estimators=6), binary, False),
        ("gb_several", GradientBoostingClassifier(n_estimators=4), several, False),
    ):
        model.fit(X, y)
        options = {id(model): {"zipmap": zipmap}}
        save(name, to_onnx(model, X[:1], options=options))
    two = RandomForestRegressor(**small).fit(X, np.stack((number, -number), axis=1))
    save("rf_targets", to_onnx(two, X[:1]))

    rows = [("input", FloatTensorType([None, 5]))]
    for name, model, y in (
        ("xgb_number", xgb.XGBRegressor(n_estimators=6, max_depth=4), number),
        ("xgb_binary", xgb.XGBClassifier(n_estimators=6, max_depth=4), binary),
        ("xgb_several", xgb.XGBClassifier(n_estimators=4, max_depth=3), several),
    ):
        model.fit(X, y)
        save(name, onnxmltools.convert_xgboost(model, initial_types=rows))
    for name, model, y in (
        ("lgb_binary", lgb.LGBMClassifier(n_estimators=6, num_leaves=15), binary),
        ("lgb_several", lgb.LGBMClassifier(n_estimators=4, num_leaves=9), several),
    ):
        model.fit(X, y)
        save(name, onnxmltools.convert_lightgbm(model, initial_types=rows))
    # sets of categories become chains of equality tests with one true child
    effect = np.isin(X[:, 3], [1, 4]) * 3.0 + (X[:, 3] == 2) * 1.5 + X[:, 0] * 0.1
    model = lgb.LGBMRegressor(
        n_estimators=6, min_data_per_group=1, cat_smooth=0, max_cat_to_onehot=1
    )
    model.fit(X, effect, categorical_feature=[3])
    save("lgb_sets", onnxmltools.convert_lightgbm(model, initial_types=rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
