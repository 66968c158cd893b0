import joblib
import numpy as np
from fastapi import FastAPI

app, model = FastAPI(), joblib.load("model.joblib")


@app.post("/")
def predict(rows: list[list[float]]) -> list[list[float]]:
    return model.predict_proba(np.array(rows)).tolist()
