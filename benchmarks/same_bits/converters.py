"""How converters are called, each with the setting nearest to the model's library.

``code`` defines ``answers`` from what a trait's code has defined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.same_bits.traits import Trait


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of a script: the packages it needs, its imports, and its code."""

    packages: tuple[str, ...]
    imports: tuple[str, ...]
    code: str


def _labels(trait: Trait) -> str:
    return ".argmax(axis=-1)" if trait.answer == "labels" else ""


def skforge(trait: Trait) -> Text | None:
    """The same call as of the library."""
    predict = trait.code.splitlines()[-1].partition("source")[2]
    source = "source"
    if trait.library == "onnx":
        source, predict = '"model.onnx"', ".predict(rows)"
    code = f"fast = CompiledForest({source}).fit(X)\nanswers = fast{predict}\n"
    return Text(("skforge-compiler",), ("from skforge import CompiledForest",), code)


_FILE = {"xgboost": "model.json", "lightgbm": "model.txt", "catboost": "model.cbm"}


def _save(trait: Trait) -> str:
    booster = ".booster_" if "LGBMClassifier" in trait.code else ""
    return f'source{booster}.save_model("{_FILE[trait.library]}")\n'


def lignum(trait: Trait) -> Text | None:
    """Its reader of the libraries' files; it takes rows as float64."""
    if trait.library not in _FILE:
        return None
    read = f'lignum.load("{_FILE[trait.library]}")'
    predict = f"{read}.predict(rows, n_jobs=1){_labels(trait)}"
    code = f"{_save(trait)}answers = {predict}\n"
    return Text(("pylignum",), ("import lignum",), code)


def _treelite_model(trait: Trait) -> str:
    match trait.library:
        case "xgboost":
            read = 'treelite.frontend.load_xgboost_model("model.json")'
        case "lightgbm":
            read = 'treelite.frontend.load_lightgbm_model("model.txt")'
        case "sklearn":
            return "model = treelite.sklearn.import_model(source)\n"
        case _:
            return ""
    return f"{_save(trait)}model = {read}\n"


def treelite(trait: Trait) -> Text | None:
    """Its interpreter, GTIL."""
    model = _treelite_model(trait)
    code = f"{model}answers = treelite.gtil.predict(model, rows, nthread=1)"
    return (
        Text(("treelite",), ("import treelite",), f"{code}{_labels(trait)}\n")
        if model
        else None
    )


def tl2cgen(trait: Trait) -> Text | None:
    """C code, compiled with gcc."""
    model = _treelite_model(trait)
    code = (
        f"{model}"
        'tl2cgen.export_lib(model, toolchain="gcc", libpath="model.so")\n'
        'predictor = tl2cgen.Predictor("model.so", nthread=1)\n'
        f"answers = predictor.predict(tl2cgen.DMatrix(rows)){_labels(trait)}\n"
    )
    imports = ("import tl2cgen", "import treelite")
    return Text(("treelite", "tl2cgen"), imports, code) if model else None


def lleaves(trait: Trait) -> Text | None:
    """LLVM code of LightGBM's files; not with the llvmlite that pip takes."""
    if trait.library != "lightgbm":
        return None
    code = (
        f"{_save(trait)}"
        'compiled = lleaves.Model(model_file="model.txt")\n'
        "compiled.compile()\n"
        "answers = compiled.predict(rows, n_jobs=1)\n"
    )
    return Text(("lleaves", '"llvmlite<0.44"'), ("import lleaves",), code)


_FLOAT = "from onnxmltools.convert.common.data_types import FloatTensorType"
_TYPES = 'types = [("X", FloatTensorType([None, X.shape[1]]))]\n'
_SESSION = """\
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession({model}, options)
feed = {{session.get_inputs()[0].name: np.float32(rows)}}
"""


def onnxruntime(trait: Trait) -> Text | None:
    """ONNX Runtime, with rows of float32: converters make models of no other type."""
    imports: tuple[str, ...] = ("import onnxruntime",)
    model = "model.SerializeToString()"
    packages: tuple[str, ...] = ("onnxmltools", "onnxruntime")
    match trait.library:
        case "xgboost":
            convert = f"{_TYPES}model = convert_xgboost(source, initial_types=types)\n"
            imports += ("from onnxmltools import convert_xgboost", _FLOAT)
        case "lightgbm":
            # As the converter advises: a node for each ten trees, and float64 sums.
            option = "split=10" if trait.answer == "value" else "zipmap=False"
            call = f"convert_lightgbm(source, initial_types=types, {option})"
            convert = f"{_TYPES}model = {call}\n"
            imports += ("from onnxmltools import convert_lightgbm", _FLOAT)
        case "catboost":
            convert = 'source.save_model("model.onnx", format="onnx")\n'
            model, packages = '"model.onnx"', ("onnxruntime",)
        case "sklearn":
            option = "" if trait.answer == "value" else ', options={"zipmap": False}'
            sample = "np.float32(X[:1])" if trait.histogram else "X[:1]"
            convert = f"model = skl2onnx.to_onnx(source, {sample}{option})\n"
            imports += ("import skl2onnx",)
            packages = ("skl2onnx", "onnxruntime")
            packages += ('"protobuf<7"',) if trait.histogram else ()
        case _:
            return None
    if trait.release:
        packages = ("skl2onnx", f"onnxruntime=={trait.release}")
    session = _SESSION.format(model=model)
    output = "[0]" if trait.answer == "labels" else "[-1]"
    answers = f"session.run(None, feed){output}"
    if trait.library == "catboost" and trait.answer != "value":  # a dict for each row
        answers = f"np.array([[*row.values()] for row in {answers}])"
    answers += "[:, 1]" if trait.answer == "chance" else ""
    return Text(packages, imports, f"{convert}{session}answers = {answers}\n")


def daal4py(trait: Trait) -> Text | None:
    """oneDAL's forests; scikit-learn's through treelite, as its documentation says."""
    match trait.library:
        case "xgboost" | "lightgbm" | "catboost":
            code = "converted = daal4py.mb.convert_model(source)\n"
            imports: tuple[str, ...] = ("import daal4py",)
            packages: tuple[str, ...] = ("scikit-learn-intelex",)
        case "sklearn":
            code = (
                "model = treelite.sklearn.import_model(source)\n"
                "converted = daal4py.mb.convert_model(model)\n"
            )
            imports = ("import daal4py", "import treelite")
            packages = ("treelite", "scikit-learn-intelex")
        case _:
            return None
    method = "predict" if trait.answer == "value" else "predict_proba"
    last = "[:, 1]" if trait.answer == "chance" else _labels(trait)
    if trait.library == "sklearn" and trait.answer == "labels":
        method, last = "predict", " > 0.5"  # treelite's binary forests: the chance
    return Text(
        packages,
        imports,
        f"{code}daal4py.daalinit(1)\nanswers = converted.{method}(rows){last}\n",
    )


def hummingbird(trait: Trait) -> Text | None:
    """Tensor operations of PyTorch; an XGBoost before 3.1, which it can read."""
    if trait.library not in ("xgboost", "lightgbm", "sklearn"):
        return None
    method = "predict" if trait.answer in ("value", "labels") else "predict_proba"
    last = "[:, 1]" if trait.answer == "chance" else ""
    code = f'answers = convert(source, "torch").{method}(rows){last}\n'
    packages: tuple[str, ...] = ("hummingbird-ml", "torch")
    if trait.library == "xgboost":
        packages += ('"xgboost<3.1"',)
    return Text(packages, ("from hummingbird.ml import convert",), code)


#: The order of the table's columns.
CONVERTERS: dict[str, Callable[[Trait], Text | None]] = {
    "skforge": skforge,
    "lignum": lignum,
    "treelite": treelite,
    "tl2cgen": tl2cgen,
    "lleaves": lleaves,
    "onnxruntime": onnxruntime,
    "daal4py": daal4py,
    "hummingbird": hummingbird,
}
