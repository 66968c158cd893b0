import pickle
from pathlib import Path

import numpy as np
from flask import Flask, request

app, model = Flask("served"), pickle.loads(Path("model.pickle").read_bytes())


@app.post("/")
def predict() -> list[list[float]]:
    return model.predict_proba(np.array(request.json)).tolist()
