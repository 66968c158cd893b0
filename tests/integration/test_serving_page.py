"""The service of docs/serving.md: odd bodies give errors of the client, never 500."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import skforge
from tests.plain import plain

pytest.importorskip("fastapi")

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
(SERVICE,) = re.findall(
    r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)
NAMES = ["age", "income", "visits", "score"]


def frame(categories=None):
    X, y = make_classification(200, 4, n_informative=3, n_redundant=1, random_state=0)
    rows = pd.DataFrame(X, columns=NAMES)
    if categories is not None:
        words = np.where(X[:, 3] > 0, "a", "b")
        rows["score"] = pd.Series(words, dtype=categories)
    return rows, y


def small_model(kind):
    """Return a fitted model as the service has it, and a category of its rows."""
    if kind == "lightgbm":
        lightgbm = pytest.importorskip("lightgbm")
        rows, y = frame()
        model = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1)
    elif kind == "scikit-learn":
        rows, y = frame()
        forest = RandomForestClassifier(3, max_depth=3, random_state=0)
        model = make_pipeline(StandardScaler(), forest)
    elif kind == "texts":
        rows, y = frame("object")
        encode = make_column_transformer((OneHotEncoder(), ["score"]), remainder="drop")
        model = make_pipeline(encode, RandomForestClassifier(3, random_state=0))
    else:
        xgboost = pytest.importorskip("xgboost")
        rows, y = frame("category" if kind != "artifact" else None)
        model = xgboost.XGBClassifier(
            n_estimators=3, max_depth=3, n_jobs=1, enable_categorical=True
        )
    word = None if rows["score"].dtype == float else "a"
    return plain(model.fit(rows, y)).fit(rows), word


@pytest.fixture(
    params=["xgboost", "lightgbm", "scikit-learn", "texts", "artifact"], scope="module"
)
def service(request, tmp_path_factory):
    """Return the page's service as a namespace, and a category of its rows."""
    folder = tmp_path_factory.mktemp("service")
    model, word = small_model(request.param)
    code = SERVICE
    if word is not None:
        code = code.replace('"score": 0.2', f'"score": "{word}"')
    if request.param == "artifact":
        skforge.save(model, folder / "model.skforge")
        model = skforge.load(folder / "model.skforge")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skforge, "load", lambda path: model)
        namespace: dict[str, object] = {}
        exec(compile(code, "service.py", "exec"), namespace)
    return namespace, word


def post(service, path, body):
    """Return the status and the content of the service's answer."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    with contextlib.suppress(
        Exception
    ):  # what gives 500 is raised again for the server
        asyncio.run(service["app"](scope, receive, send))
    return sent[0]["status"], b"".join(part.get("body", b"") for part in sent)


GOOD = {"age": 0.5, "income": 1, "visits": None, "score": -1}
ONE = {
    "good": GOOD,
    "nothing known": dict.fromkeys(NAMES),
    "a text": GOOD | {"age": "x"},
    "a number as text": GOOD | {"age": "1.5"},
    "a text of odd Unicode": GOOD | {"age": "\ud800"},
    "a category": GOOD | {"score": "a"},
    "a new category": GOOD | {"score": "zz"},
    "a number for a category": GOOD | {"score": 0.5},
    "a missing key": {"age": 1},
    "no keys": {},
    "a key too many": GOOD | {"zz": 1},
    "keys in capitals": {name.upper(): 1 for name in NAMES},
    "nested": GOOD | {"age": {"a": 1}},
    "a list in it": GOOD | {"age": [1]},
    "a boolean": GOOD | {"age": True},
    "a huge number": GOOD | {"age": 1e308},
    "a huge integer": GOOD | {"age": 10**400},
    "NaN": GOOD | {"age": np.nan},
    "infinity": GOOD | {"age": np.inf},
    "a list": [1, 2, 3, 4],
    "an empty list": [],
    "null": None,
}
MANY = {
    "good": [GOOD, GOOD],
    "no rows": [],
    "an object": GOOD,
    "a row without keys": [GOOD, {}],
    "a row of null": [None],
    "nested": [[GOOD]],
    "a text at the end": [GOOD] * 50 + [GOOD | {"age": "q"}],
    "infinity": [GOOD, GOOD | {"income": np.inf}],
    "too many": [GOOD] * 10_001,
}
RAW = {"no JSON": b"{", "nothing": b"", "no text": b"\xff\xfe", "deep": b"[" * 100_000}


@pytest.mark.sampled(2)
def test_no_body_gives_500(service):
    namespace, word = service
    bodies = [("/score", key, json.dumps(body).encode()) for key, body in ONE.items()]
    bodies += [("/scores", key, json.dumps(it).encode()) for key, it in MANY.items()]
    bodies += [(path, *it) for path in ("/score", "/scores") for it in RAW.items()]
    statuses, said = {}, {}
    for path, key, body in bodies:
        if word is not None:
            body = body.replace(b'"score": -1', f'"score": "{word}"'.encode())
        statuses[path, key], content = post(namespace, path, body)
        answer = json.loads(content)
        if statuses[path, key] != 200:
            assert answer["detail"] and "Stack trace" not in str(answer)
            said[path, key] = answer["detail"][0]
    assert {*statuses.values()} <= {200, 400, 422}
    assert statuses["/score", "good"] == statuses["/scores", "good"] == 200
    for key in ("a missing key", "no keys", "keys in capitals", "nested", "null"):
        assert statuses["/score", key] == 422
    for key in ("no rows", "an object", "a row without keys", "nested", "too many"):
        assert statuses["/scores", key] == 422
    assert said["/scores", "no rows"]["msg"] == (
        "List should have at least 1 item after validation, not 0"
    )
    assert said["/scores", "too many"]["msg"] == (
        "List should have at most 10000 items after validation, not 10001"
    )


@pytest.mark.parametrize("error", [ValueError, TypeError, RuntimeError, MemoryError])
def test_faults_of_the_server_stay_500(service, monkeypatch, error):
    class Broken:
        def predict_proba(self, rows):
            raise error("the GPU is gone")

    monkeypatch.setitem(service[0], "model", Broken())
    body = json.dumps(GOOD).encode()
    assert post(service[0], "/score", body)[0] == 500
    assert post(service[0], "/scores", b"[" + body + b"]")[0] == 500
