import bentoml
import joblib
import numpy as np


@bentoml.service(workers=1)
class Forest:
    def __init__(self) -> None:
        self.model = joblib.load("model.joblib")

    @bentoml.api
    def predict(self, rows: list[list[float]]) -> list[list[float]]:
        return self.model.predict_proba(np.array(rows)).tolist()
