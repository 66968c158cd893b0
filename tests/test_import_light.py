"""`import skforge` is cheap, and still offers every public name."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge.cli.main import app
from skforge.distributed._artifact import job as job_of

pytestmark = pytest.mark.doors

X, y = load_iris(return_X_y=True)
TREE = DecisionTreeClassifier(max_depth=2).fit(X, y)


def saved(model, path, **options):
    fast = skforge.CompiledForest(model, **{"tuning": "off"} | options).fit(X)
    skforge.save(fast, path)


ROOT = Path(__file__).parents[1]
HEAVY = (
    "catboost", "cupy", "dask", "distributed", "joblib", "lightgbm", "llvmlite",
    "onnx", "pandas", "pyarrow", "pyspark", "ray", "rich", "scipy", "sklearn", "typer",
    "xgboost",
)  # fmt: skip

#: What makes kernels, which no loaded model needs whose kernels are in the cache.
COMPILER = (
    *("binning", "codegen", "cost", "defaults", "ir", "layouts", "lowering"),
    *("passes", "driver", "runtime.compiling", "runtime.cpu.jit", "runtime.machine"),
)


def python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return run.stdout.strip()


#: What has no need of others, and the modules that it does not import.
LIGHT = {
    "import skforge": HEAVY,
    "import skforge; dir(skforge)": HEAVY,
    "from skforge import Schedule, SkforgeError": HEAVY,
    "import skforge.distributed": HEAVY,
    **{
        f"from skforge.distributed import {engine}": (
            *("dask", "distributed", "pyspark", "ray", "pandas"),
        )
        for engine in ("dask", "spark", "ray")
    },
    "import skforge.outputs.answers": ("llvmlite", "scipy.special", "xgboost"),
    "from skforge import load_forest": (
        *("xgboost", "lightgbm", "catboost", "onnx", "pandas", "llvmlite"),
    ),
}


@pytest.mark.parametrize("statement", LIGHT)
def test_imports_load_nothing_heavy(statement):
    others = LIGHT[statement]
    code = f"{statement}; import sys; print([m for m in {others} if m in sys.modules])"
    assert python(code) == "[]"


def test_a_process_that_computes_on_its_cpu_imports_nothing_of_gpus():
    code = """
import numpy as np
import skforge, sys
from sklearn.tree import DecisionTreeRegressor
from skforge.schedule.families import bitsliced_schedule
from skforge.tuning import tune
X = np.random.default_rng(0).random((64, 3), np.float32)
forest = skforge.load_forest(DecisionTreeRegressor(max_depth=3).fit(X, X[:, 0]))
module = skforge.compile_forest(forest, target="cpu")
module.predict(X), module.apply(X), module.inspect("asm"), module.entry("raw")
skforge.compile_forest(forest, bitsliced_schedule(128)).predict(X)
tune(forest, target="cpu", budget=0.1, ranges={(1, None): 64})
print([m for m in sys.modules if m.startswith("skforge.gpu")])
"""
    assert python(code) == "[]"


def test_a_file_of_another_library_is_refused_without_scikit_learn():
    code = (
        "import skforge, sys\n"
        "try: skforge.load(b'{\"learner\": {}}')\n"
        "except skforge.InvalidModelError as error: print('XGBoost' in str(error))\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert python(code) == "True\n[]"


@pytest.mark.parametrize("name", skforge.__all__)
def test_every_public_name_resolves(name):
    assert getattr(skforge, name) is not None
    assert name in dir(skforge)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError) as error:
        skforge.Forrest  # noqa: B018
    assert str(error.value) == "module 'skforge' has no attribute 'Forrest'"


#: All in one process, of which half the time is scikit-learn's import.
LOADED = """
import sys, pickle, numpy as np
import skforge
loaded = []
for library, path in {models!r}:
    fast = skforge.load(path)
    X = np.load({rows!r})
    fast.predict(X[:1])
    compiler = [m for m in sys.modules if m.startswith("skforge.schedule.d")]
    for name in ("predict", "predict_proba", "predict_raw"):
        getattr(fast, name)(X)
        getattr(fast, name)(X[:1])
    compiler += [m for m in sys.modules if m.startswith({compiler!r})]
    print(library, compiler)
    loaded.append(fast)
for fast in loaded:
    fast.warm_up(), fast.warm_up([1]), fast.counters()
    compiler = [m for m in sys.modules if m.startswith({compiler!r})]
    fast.n_jobs = 2; fast.classes_
    fast.n_features_in_, hasattr(fast, "transform_"), hasattr(fast, "__array__")
    print(compiler, [m for m in {later} if m in sys.modules])
answers = [fast.predict_proba(X) for fast in loaded]
from sklearn.base import BaseEstimator, clone, is_classifier
for fast, expected in zip(loaded, answers):
    assert isinstance(fast, BaseEstimator) and is_classifier(fast)
    from skforge import CompiledForest
    assert isinstance(fast, CompiledForest)
    assert repr(fast).startswith("CompiledForest(")
    assert fast.counters()["library"]["calls"] == 0
    np.testing.assert_array_equal(fast.predict_proba(X), expected)
    copy = pickle.loads(pickle.dumps(fast))
    np.testing.assert_array_equal(copy.predict_proba(X), expected)
"""


def test_loaded_models_answer_without_scikit_learn(tmp_path):
    forest = RandomForestClassifier(3, random_state=0)
    models = {"sklearn": forest, "pipeline": make_pipeline(StandardScaler(), forest)}
    if find_spec("xgboost"):
        models["xgboost"] = import_module("xgboost").XGBClassifier(n_estimators=3)
    if find_spec("lightgbm"):
        models["lightgbm"] = import_module("lightgbm").LGBMClassifier(n_estimators=3)
    rows = str(tmp_path / "rows.npy")
    np.save(rows, X)
    paths = {library: str(tmp_path / f"{library}.skforge") for library in models}
    for library, path in paths.items():
        saved(models[library].fit(X, y), path)
        again = skforge.load(path)  # and fills the cache, as the process will ask
        for name in ("predict", "predict_proba", "predict_raw"):
            getattr(again, name)(X)
            getattr(again, name)(X[:1])
        again.warm_up()
    # None measures the machine: another profile might choose other kernels.
    measuring = "skforge.engine.machine"
    later = [*HEAVY, "skforge.tuning", "skforge.gpu", measuring]
    compiler = tuple(f"skforge.compiler.{name}" for name in COMPILER)
    compiler += ("difflib", "tempfile", "zipfile")
    code = LOADED.format(
        models=[*paths.items()], rows=rows, later=later, compiler=compiler
    )
    first = [f"{library} []" for library in models]
    assert python(code).splitlines() == [*first, *("[] []" for _ in models)]


#: What a worker runs, and what the command line runs.
WORKER = """
import pickle, sys, numpy as np
pickle.loads({job!r}).of_rows(np.zeros((3, 4)))
print([m for m in {heavy} if m in sys.modules])
"""
COMMAND = """
import sys
from skforge.cli.main import main
sys.argv = ["skforge", "predict", {path!r}, {rows!r}, "-o", {out!r}]
try:
    main()
except SystemExit as end:
    assert not end.code
print([m for m in {heavy} if m in sys.modules])
"""


def test_workers_and_the_command_line_predict_without_scikit_learn(tmp_path):
    path, rows = str(tmp_path / "m.skforge"), str(tmp_path / "rows.csv")
    saved(TREE, path)
    np.savetxt(rows, X, delimiter=",")
    job = pickle.dumps(job_of(path, "predict", 1, "auto"))
    terminal = ("rich", "typer", "pyarrow")
    others = [name for name in HEAVY if name not in terminal]
    out = str(tmp_path / "out.csv")
    pickle.loads(job).of_rows(np.zeros((3, 4)))  # fills the cache
    with pytest.raises(SystemExit):
        app(["predict", path, rows, "-o", str(tmp_path / "first.csv")])
    for code in (
        WORKER.format(job=job, heavy=HEAVY),
        COMMAND.format(path=path, rows=rows, out=out, heavy=others),
    ):
        assert python(code).splitlines()[-1] == "[]"


#: Files of libraries' models, and what the comparison of the first rows imports.
SAVERS = {
    "xgboost": lambda model, path: model.save_model(f"{path}.json"),
    "lightgbm": lambda model, path: model.booster_.save_model(f"{path}.txt"),
    "catboost": lambda model, path: model.save_model(f"{path}.cbm"),
}
ESTIMATORS = {
    "xgboost": ("XGB", {"n_estimators": 3}),
    "lightgbm": ("LGBM", {"n_estimators": 3, "verbose": -1}),
    "catboost": (
        "CatBoost",
        {"iterations": 3, "verbose": 0, "allow_writing_files": False},
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["Classifier", "Regressor"])
@pytest.mark.parametrize("library", SAVERS)
def test_the_command_line_predicts_model_files_without_scikit_learn(
    library, kind, tmp_path
):
    """Where it compares the first rows with the library, too."""
    module = pytest.importorskip(library)
    X = np.random.default_rng(0).normal(size=(80, 3))
    name, params = ESTIMATORS[library]
    model = getattr(module, name + kind)(**params).fit(X, (X[:, 0] > 0).astype(int))
    SAVERS[library](model, tmp_path / "model")
    (path,) = tmp_path.iterdir()
    rows, out = str(tmp_path / "rows.csv"), str(tmp_path / "out.csv")
    np.savetxt(rows, X, delimiter=",")
    code = COMMAND.format(path=str(path), rows=rows, out=out, heavy=HEAVY)
    imported = python(code).splitlines()[-1]
    assert repr(library) in imported and "'pandas'" in imported  # it was asked
    assert "sklearn" not in imported and "joblib" not in imported
    np.testing.assert_array_equal(
        np.loadtxt(out, skiprows=1).astype(np.float32),
        model.predict(X).astype(np.float32),
    )
    light = "import os; os.environ['SKFORGE_CHECK'] = 'off'\n" + code
    imported = python(light).splitlines()[-1]
    assert not any(name in imported for name in (library, "scipy", "pandas"))


def test_the_command_line_says_what_it_needs():
    code = """
import runpy, sys
sys.modules["typer"] = None
sys.stderr = sys.stdout
try:
    runpy.run_module("skforge", run_name="__main__")
except SystemExit as end:
    print(end.code)
"""
    assert python(code) == (
        "Error: the command line needs typer and rich, and what else pip installs with "
        "skforge unless it is told --no-deps: typer is missing.\n2"
    )


ASKED = (
    "pickle.dumps(fast)",
    "fast.summary()",
    "fast.score(X, fast.predict(X))",
    "fast.fit(X)",
    "fast.inspect('loops')",
    "fast._repr_mimebundle_()",
    "skforge.TreeExplainer(fast)",
    "dir(fast).index('score')",
    "clone(fast)",
    "make_pipeline(fast).predict(X)",
)
BECOMES = """
import copy, pickle, skforge, numpy as np
path = {path!r}
for asked in {asked!r}:
    fast, X = skforge.load(path), np.zeros((2, 4))
    before = fast.predict(X)
    name = type(fast).__name__
    if "clone" in asked or "make_pipeline" in asked:
        from sklearn.base import clone
        from sklearn.pipeline import make_pipeline
    exec(asked)
    assert (fast.predict(X) == before).all(), asked
    print(name, type(fast).__name__)
"""


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(ASKED, id="all"),
        # in a process of its own each imports scikit-learn, for 1.3 s
        *(pytest.param([one], id=one, marks=pytest.mark.slow) for one in ASKED),
    ],
)
def test_a_loaded_model_becomes_an_estimator_where_one_is_needed(asked, tmp_path):
    path = str(tmp_path / "m.skforge")
    saved(TREE, path)
    names = python(BECOMES.format(path=path, asked=asked)).splitlines()
    assert len(names) == len(asked)
    assert {*names} <= {"LoadedForest CompiledForest", "ReadyForest CompiledForest"}


#: What a small image can do, and each value as its process with scikit-learn has it.
STAYS = """
import copy, io, pickle, sys
import numpy as np
for name in {without}:
    sys.modules[name] = None
import skforge
X = np.zeros((2, 4))
def saved(fast):
    file = io.BytesIO()
    skforge.save(fast, file)
    return skforge.load(file.getvalue())
for path in {paths}:
    for whole in (False, True):
        for ask in (
            lambda fast: fast,
            copy.copy,
            copy.deepcopy,
            saved,
            lambda fast: fast.drop_estimator(),
            lambda fast: fast.set_params(n_jobs=1),
            lambda fast: pickle.loads(pickle.dumps(fast)) if {without} else fast,
        ):
            fast = skforge.load(path)
            fast.predict(X)
            if whole:
                fast.warm_up()
            new = ask(fast)
            answer = new.predict_proba(X).tolist(), fast.predict_proba(X).tolist()
            print(repr(new), str(new), new.get_params()["n_jobs"], answer)
        if {without}:
            assert getattr(fast, "nope", None) is None and not hasattr(fast, "fit")
            assert "predict" in dir(fast)
        try:
            fast.set_params(jobs=1)
        except ValueError as error:
            print(error)
    assert not [m for m in ("sklearn", "scipy", "pandas") if sys.modules.get(m)]
try:
    if {without}:
        fast.summary()
except AttributeError as error:
    print(error)
"""


def test_a_loaded_model_prints_copies_and_saves_without_scikit_learn(tmp_path):
    paths, expected = [], []
    how = {"verbose": 0, "batch_sizes": [1, 8, 64]}
    for model, options in (
        (TREE, {}),
        (make_pipeline(StandardScaler(), TREE), {**how, "random_state": 123}),
    ):
        paths.append(str(tmp_path / f"{len(paths)}.skforge"))
        saved(model.fit(X, y), paths[-1], **options)
        own = skforge.load(paths[-1])
        own.predict(np.zeros((2, 4))), own.warm_up()  # which fills the cache
        proba = own.predict_proba(np.zeros((2, 4))).tolist()
        for _ in range(2):
            for change in ({}, {}, {}, {}, {}, {"n_jobs": 1}, {}):
                new = skforge.load(paths[-1]).set_params(**change)
                text = repr(new)
                expected.append(f"{text} {text} {new.n_jobs} {(proba, proba)}")
            with pytest.raises(ValueError, match="Invalid parameter") as error:
                own.set_params(jobs=1)
            expected.append(str(error.value))
    assert "\n" in expected[-2]  # long ones break their lines as scikit-learn's do
    last = (
        "'CompiledForest' object has no attribute 'summary' where scikit-learn is not "
        "installed"
    )
    for without, ends in (([], []), (["sklearn", "joblib", "scipy"], [last])):
        code = STAYS.format(paths=paths, without=without)
        assert python(code).splitlines() == "\n".join([*expected, *ends]).splitlines()
