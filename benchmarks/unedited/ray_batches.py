import logging
from collections.abc import Mapping
from typing import Any

import joblib
import ray
from ray.util.joblib import register_ray
from sklearn.model_selection import cross_val_predict
from work import Work, X, forest, frame, y


class Predictor:
    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        return {"c0": batch["c0"], "second": self.model.predict_proba(batch)[:, 1]}


ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR)
ray.data.DataContext.get_current().enable_progress_bars = False
logging.getLogger("ray.data").setLevel(logging.ERROR)
model = forest().fit(frame[:1500], y[:1500])
work = Work()
answers = ray.data.from_pandas(frame).map_batches(
    *(Predictor,),
    **{"fn_constructor_args": [model], "batch_format": "pandas", "batch_size": 60},
    compute=ray.data.ActorPoolStrategy(size=1),
)
work.keep(*answers.to_pandas().sort_values("c0").to_numpy("f8").T)
register_ray()
with joblib.parallel_backend("ray"):
    work.keep(
        cross_val_predict(forest(), X[:1500], y[:1500], method="predict_proba", cv=3)
    )
work.end()
