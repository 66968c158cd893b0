"""Models in their own libraries, as judges: what they answer to rows of a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from skforge._compat import no_warnings
from skforge._typing import Array
from skforge.cli.frames import Rows, joined
from skforge.cli.models import live_model
from skforge.exceptions import with_article
from skforge.forest.forest import Forest
from skforge.frontends.base import is_a, is_compiled, unwrap
from skforge.sources.base import given_names
from skforge.sources.fitted import model_of
from skforge.sources.row_facts import RowFacts

#: Methods of estimators that may be compared; contributions have other bits.
METHODS = (
    "predict", "predict_proba", "predict_log_proba", "decision_function",
    "score_samples", "apply",
)  # fmt: skip

#: What ``predict`` of estimators takes to return raw scores.
_RAW: dict[str, dict[str, Any]] = {
    "xgboost.sklearn.XGBModel": {"output_margin": True},
    "lightgbm.sklearn.LGBMModel": {"raw_score": True},
    "catboost.core.CatBoost": {"prediction_type": "RawFormulaVal"},
}

#: How a model's user has rows of its columns, and what it answers to them.
Given: TypeAlias = Callable[[Rows], Any]
OwnAnswer: TypeAlias = Callable[[Any], Any]


def unchanged(frame: Any) -> Any:
    return frame


class NoLibraryError(Exception):
    """A model cannot be asked in its own library; the text says why."""


@dataclass(frozen=True)
class ModelLibrary:
    """A model in its own library.

    ``name`` is that of the library. ``given`` makes a frame of rows, ``taken`` what the
    model takes of a frame, and ``answers`` are by method.
    """

    name: str
    answers: Mapping[str, OwnAnswer]
    given: Given
    names: Sequence[str] | None
    width: int
    #: Whether rows may lack some columns.
    part: bool = False
    taken: OwnAnswer = unchanged
    #: Whether it answers with numbers of classes.
    numbered: bool = False
    #: Whether names may have spaces, for which LightGBM has underscores.
    spaces: bool = True

    def rows(self, rows: Rows, places: Sequence[int] | None = None) -> Any:
        """Return rows of a file as the library takes them."""
        return self.taken(self.frame(rows, places))

    def frame(self, rows: Rows, places: Sequence[int] | None = None) -> Any:
        """Return the columns of the model, as its user has them in Python."""
        how = places, self.part, self.spaces
        return self.given(rows.of(self.names, self.width, *how))

    def answer(self, method: str, X: Any) -> Any:
        """Return the model's own answer, on one thread: others may add up otherwise."""
        with no_warnings(), ExitStack() as stack:
            if "joblib" in sys.modules:  # as where there are estimators
                from joblib import parallel_config

                stack.enter_context(parallel_config("sequential"))
            return self.answers[method](X)


def library_of(
    path: Path, model: Any, forest: Any, spec: RowFacts
) -> ModelLibrary | None:
    """Return an opened model in its own library; None if no library takes it.

    The ``forest`` is that of a model that is no estimator.

    Raises NoLibraryError if the library is not installed, or refuses the model.
    """
    if not find_spec("pandas"):
        raise NoLibraryError("pandas is not installed")
    live = live_model(model)
    if live is None:
        inner = unwrap(model_of(model) if is_compiled(model) else model)
        live = inner if is_a(inner, *_BOOSTERS) else None
    if live is not None:
        make = next((f for name, f in _BOOSTERS.items() if is_a(live, name)), None)
        return _estimator(live, spec) if make is None else make(live, forest, spec)
    if not isinstance(model, Forest) or model.source not in _OPENED:
        return None
    name, module, opened = _OPENED[model.source]
    try:
        with _without_sklearn():
            import_module(module)
        return opened(path, forest, spec)
    except ImportError as error:
        raise NoLibraryError(f"{module} is not installed") from error
    except NoLibraryError:
        raise
    except Exception as error:  # each library has its own errors
        said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise NoLibraryError(f"{name} cannot read {path.name}: {said}") from error


#: Whether nobody else will use the libraries that this process imports.
alone = False


@contextmanager
def _without_sklearn() -> Iterator[None]:
    """Hide scikit-learn while a library is imported: LightGBM and XGBoost do without.

    They import it for their estimators alone, and that takes longer than all else.
    """
    hides = alone and "sklearn" not in sys.modules
    if hides:
        sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hides:
            del sys.modules["sklearn"]


# ------------------------------------------------------------ estimators


def _estimator(live: Any, spec: RowFacts) -> ModelLibrary:
    answers = {
        method: getattr(live, method)
        for method in METHODS
        if callable(getattr(live, method, None))
    }
    for name, how in _RAW.items():
        if is_a(live, name):
            answers["predict_raw"] = partial(_predict_of(live), **how)
    part = spec.used is not None
    name, width = with_article(type(live).__name__), spec.width
    names = getattr(live, "feature_names_in_", None)
    given: Given = partial(_as_trained, spec)
    if is_a(live, "catboost.core.CatBoost"):
        names = _catboost_names(live, spec)
        given = partial(_catboost_rows, live, spec)
    elif is_a(live, "xgboost.sklearn.XGBModel"):
        booster = live.get_booster()
        given, names = partial(_xgboost_frame, booster), booster.feature_names
    elif is_a(live, "lightgbm.sklearn.LGBMModel"):
        names, given = spec.names, partial(_lightgbm_rows, live.booster_, spec)
    names = None if names is None else [str(each) for each in names]
    taken = _as_array if spec.names is None and not spec.framed else unchanged
    spaces = not spec.underscores
    return ModelLibrary(name, answers, given, names, width, part, taken, spaces=spaces)


def _predict_of(live: Any) -> Any:
    if is_a(live, "catboost.core.CatBoost"):  # a ranker's own takes no prediction type
        from catboost import CatBoost

        return partial(CatBoost.predict, live)
    return live.predict


def _as_array(frame: Any) -> Any:
    return frame.to_numpy()  # as it was trained


def _as_trained(spec: RowFacts, rows: Rows) -> Any:
    there = [str(name) for name in rows.plain.columns]
    places = {name: i for i, name in enumerate(spec.names or there)}
    columns = []
    for i, name in enumerate(there):
        place = places.get(name, i)
        if place in spec.hashed:
            columns.append(rows.texts(i))
        elif place in spec.categories:
            columns.append(rows.categories(i, spec.categories[place]))
        elif (place in spec.texts and rows.spelled is not None) or (
            (place in spec.texts or spec.whole) and rows.is_text(i)
        ):
            columns.append(rows.texts(i, spec.texts.get(place, ())))
        else:
            columns.append(rows.numbers(i))
    return joined(columns, there)


# ------------------------------------------------------------ boosters and files


def _xgboost_file(path: Path, forest: Forest, spec: RowFacts) -> ModelLibrary:
    import xgboost

    with xgboost.config_context(verbosity=0):  # old files cause a warning
        booster = xgboost.Booster(model_file=bytearray(path.read_bytes()))
    return _xgboost(booster, forest, spec)


def _xgboost(booster: Any, forest: Forest, spec: RowFacts) -> ModelLibrary:
    booster = booster.copy()
    booster.set_param({"nthread": 1})
    rounds = (0, 0)  # all
    # XGBoost's scikit-learn wrapper predicts with the rounds up to the best iteration
    if booster.attr("scikit_learn") is not None:
        rounds = (0, int(booster.attr("best_iteration") or -1) + 1)
    named = booster.feature_names is not None
    how = {"iteration_range": rounds, "validate_features": named}
    predict: Any = partial(booster.predict, **how)
    answers: dict[str, OwnAnswer] = {
        **_of_values(predict, forest, output_margin=True),
        "predict_raw": partial(predict, output_margin=True),
        "apply": partial(predict, pred_leaf=True),
    }

    def taken(frame: Any) -> Any:
        from xgboost import DMatrix

        return DMatrix(frame, enable_categorical=True, nthread=1)

    names, width = booster.feature_names, booster.num_features()
    given = partial(_xgboost_frame, booster)
    return ModelLibrary("XGBoost", answers, given, names, width, False, taken, True)


def _xgboost_frame(booster: Any, rows: Rows) -> Any:
    kinds, known = booster.feature_types or [], _xgboost_categories(booster)
    coded = [i for i, kind in enumerate(kinds) if kind == "c" and known.get(i)]
    return rows.framed({i: known[i] for i in coded})


def _xgboost_categories(booster: Any) -> dict[int, list[Any]]:
    """Return the categories that the model knows by name, which is so from 3.1 on."""
    if not hasattr(booster, "get_categories"):
        return {}
    known = booster.get_categories(export_to_arrow=True).to_arrow()
    return {i: a.to_pylist() for i, (_, a) in enumerate(known) if a is not None}


def _of_values(predict: Any, forest: Forest, **raw: bool) -> dict[str, OwnAnswer]:
    """Return what classifiers of the library make of what its boosters predict.

    XGBoost's multi:softmax predicts labels, and the classifier makes probabilities.
    """
    if not forest.classifies:
        return {"predict": predict}
    several = forest.task == "multiclass"

    def proba(X: Any) -> Any:
        found = predict(X)
        if several and found.ndim == 1:
            from scipy.special import softmax  # type: ignore[import-untyped, unused-ignore]

            return softmax(predict(X, **raw), axis=1)
        return found if several else np.stack([1.0 - found, found], axis=1)

    def label(X: Any) -> Any:
        found = predict(X)
        if several and found.ndim == 1:
            return found.astype(np.int32)
        return proba(X).argmax(axis=1)

    return {"predict_proba": proba, "predict": label}


def _lightgbm_file(path: Path, forest: Forest, spec: RowFacts) -> ModelLibrary:
    import lightgbm

    return _lightgbm(lightgbm.Booster(model_file=str(path)), forest, spec)


def _lightgbm(booster: Any, forest: Forest, spec: RowFacts) -> ModelLibrary:
    predict: Any = partial(booster.predict, num_threads=1)
    answers: dict[str, OwnAnswer] = {
        **_of_values(predict, forest),
        "predict_raw": partial(predict, raw_score=True),
        "apply": partial(predict, pred_leaf=True),
    }
    names, width = given_names(booster.feature_name()), booster.num_feature()
    given = partial(_lightgbm_rows, booster, spec)
    how = unchanged, True, False
    return ModelLibrary("LightGBM", answers, given, names, width, False, *how)


def _lightgbm_rows(booster: Any, spec: RowFacts, rows: Rows) -> Any:
    """Return a frame whose columns of categories are those of training.

    These are the columns of texts in the file; where their number is another, as
    categories may be numbers, the model's own reader says which they are.
    """
    lists = booster.pandas_categorical or []
    places = [i for i in range(rows.plain.shape[1]) if rows.is_text(i)]
    if len(places) != len(lists):
        places = sorted(spec.categories)
    return rows.framed(dict(zip(places, lists, strict=True)))


def _catboost_file(path: Path, forest: Forest, spec: RowFacts) -> ModelLibrary:
    import catboost

    if path.read_bytes()[:1] == b"{":
        raise NoLibraryError(
            "CatBoost reads the numbers of JSON files with other last bits"
        )
    make = catboost.CatBoostClassifier if forest.classifies else catboost.CatBoost
    model = make().load_model(str(path), format="cbm")
    raw = partial(catboost.CatBoost.predict, model, thread_count=1)
    answers = {"predict_raw": partial(raw, prediction_type="RawFormulaVal")}
    kind = {"fast_exp": "Exponent", "identity": "RawFormulaVal"}
    if forest.classifies:
        answers["predict"] = partial(raw, prediction_type="Class")
        answers["predict_proba"] = partial(raw, prediction_type="Probability")
    elif forest.outputs.function in kind:
        how = kind[forest.outputs.function]
        answers["predict"] = partial(raw, prediction_type=how)
    given, names = partial(_catboost_rows, model, spec), _catboost_names(model, spec)
    width, part = forest.n_columns, spec.used is not None
    return ModelLibrary("CatBoost", answers, given, names, width, part)


def _catboost_names(model: Any, spec: RowFacts) -> Sequence[str] | None:
    names = [str(name) for name in model.feature_names_]
    return names if len(names) == spec.width else spec.names  # it has dropped some


def _catboost_rows(model: Any, spec: RowFacts, rows: Rows) -> Any:
    from pandas import Series

    texts, names = {*model.get_cat_feature_indices()}, [*rows.plain.columns]
    found: dict[int, int] = {i: i for i in range(len(names))}
    if spec.used is not None and spec.names is not None:  # it has dropped others
        found = {spec.names.index(name): i for i, name in enumerate(names)}
        names = [*spec.names]
    columns = [Series(0.0, index=rows.plain.index) for _ in names]
    for place, i in found.items():
        columns[place] = rows.texts(i) if place in texts else rows.numbers(i)
    return joined(columns, names)


def _onnx_file(path: Path, forest: Forest, spec: RowFacts) -> ModelLibrary:
    import onnxruntime
    from pandas import DataFrame

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    cpu = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(path), options, providers=cpu)
    feeds, outputs = session.get_inputs(), session.get_outputs()
    dtypes = {"double": "f8", "int32": "i4", "int64": "i8", "string": "O", "bool": "?"}
    kinds = [
        dtypes.get(feed.type.removeprefix("tensor(").removesuffix(")"), "f4")
        for feed in feeds
    ]
    widths = [feed.shape[1] if len(feed.shape) > 1 else 1 for feed in feeds]
    if len(feeds) == 1:
        widths = [forest.n_columns]
    ends = np.cumsum(widths).tolist()
    texts = {
        place
        for kind, width, end in zip(kinds, widths, ends, strict=True)
        for place in range(end - width, end)
        if kind == "O"
    }

    def answer(places: slice, X: Mapping[str, Array]) -> Array:
        found = session.run([output.name for output in outputs[places]], X)
        if isinstance(found[0], list):  # of a ZipMap
            return DataFrame(found[0]).to_numpy(np.float32)
        several = len(found) > 1  # ZipMap's columns
        scores = np.column_stack(found) if several else found[0]
        return scores[:, 0] if scores.shape[1:] == (1,) else scores

    def taken(frame: Any) -> dict[str, Array]:
        return {
            feed.name: frame.iloc[:, end - width : end].to_numpy().astype(kind)
            for feed, kind, width, end in zip(feeds, kinds, widths, ends, strict=True)
        }

    answers = {"predict": partial(answer, slice(1))}  # labels or scores
    if forest.classifies:
        answers["predict_proba"] = partial(answer, slice(1, None))
    width, names = forest.n_columns, forest.feature_names
    given = partial(Rows.framed, coded=dict.fromkeys(texts))
    return ModelLibrary("ONNX Runtime", answers, given, names, width, taken=taken)


#: What asks a model that is no estimator, and the libraries that open files.
_BOOSTERS = {"xgboost.core.Booster": _xgboost, "lightgbm.basic.Booster": _lightgbm}
_OPENED = {
    "xgboost": ("XGBoost", "xgboost", _xgboost_file),
    "lightgbm": ("LightGBM", "lightgbm", _lightgbm_file),
    "catboost": ("CatBoost", "catboost", _catboost_file),
    "onnx": ("ONNX Runtime", "onnxruntime", _onnx_file),
}
