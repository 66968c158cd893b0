"""The state of a fitted model: attributes, pickles, and a predictor made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skforge import config
from skforge._version import FORMAT, __version__, check_format, check_release
from skforge.compiler.target import Target
from skforge.engine.schedules import ScheduleTable
from skforge.engine.targets import resolve_target, stored_target
from skforge.forest.forest import Forest
from skforge.frontends.base import unwrap
from skforge.frontends.content import read_content
from skforge.modules.auto import AutoModule
from skforge.prediction.choose_targets import TargetChoice, compiled, rechosen
from skforge.prediction.counters import Counters
from skforge.prediction.kernel_checks import by_reference
from skforge.prediction.parameters import Parameters
from skforge.prediction.predictor import ForestPredictor
from skforge.prediction.shadow import shadow_state
from skforge.runtime.float_errors import own_arithmetic
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule
from skforge.sources.find import Fingerprint, has_changed, source_of
from skforge.sources.fitted import (
    FITTED,
    attribute_of,
    is_estimator,
    model_of,
    no_attribute,
    start_of,
)
from skforge.sources.stored_model.model import StoredModel

if TYPE_CHECKING:
    from skforge.compiler.ir.hir.nodes import Reduction
    from skforge.tuning.result import TuningResult


#: What a loaded model knows of its file, and of calls before it was whole.
OF_A_FILE = "_note", "_before"


def fitted_state(
    predictor: ForestPredictor, asked: tuple[Any, Any], tables: Any
) -> dict[str, Any]:
    """Return the attributes of a fitted ``CompiledForest``.

    ``asked`` are the target and the reduction asked for, and ``tables`` the schedules
    of the CPU and of the GPU, if both are used.
    """
    module, model = predictor.module, predictor.source.held
    return {
        "_stored" if isinstance(model, StoredModel) else "estimator_": model,
        "forest_": predictor.forest,
        "schedule_": ScheduleTable(module.schedules),
        "target_": module.target,
        "fitted_target_": module.target,
        "gpu_min_rows_": getattr(module, "gpu_min_rows", None),
        "tuning_result_": None,
        "compile_time_": 0.0,
        "_asked": asked,
        "_tables": tables,
        "_split": None,  # a pipeline's steps, or members
        "_fallback": "",  # why the model itself answers rows like those of fit
        "_fingerprint": predictor.fingerprint,
        "_predictor": predictor,
    }


class Revived(Parameters):
    """The state of a fitted ``CompiledForest``, and its predictor, made on demand.

    The state is the forest, the schedules and the model, or what is kept of it.
    """

    forest_: Forest
    _asked: tuple[Any, Reduction]  # the target and the reduction
    _tables: Any
    gpu_min_rows_: int | None
    schedule_: dict[BatchRange, Schedule]
    target_: Target
    fitted_target_: Target
    tuning_result_: TuningResult | None
    compile_time_: float
    _predictor: ForestPredictor

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; ``n_jobs`` drops entries. Open files are read now, once."""
        if name == "estimator":
            value = read_content(value)
        super().__setattr__(name, value)
        predictor = self.__dict__.get("_predictor")
        if name == "n_jobs" and predictor is not None:
            predictor.threads_change()
        if name in ("n_jobs", "gpu_min_rows"):
            for member in getattr(self.__dict__.get("_split"), "forests", ()):
                setattr(member, name, value)
        if name == "gpu_min_rows" and "forest_" in self.__dict__:
            self._move_crossover(value)

    def _move_crossover(self, rows: int | None) -> None:
        predictor = self.__dict__.get("_predictor")
        if rows is None or self.gpu_min_rows_ is None:
            return
        self.gpu_min_rows_ = rows
        if predictor is not None and isinstance(predictor.module, AutoModule):
            predictor.module.gpu_min_rows = rows
            predictor.threads_change()
            self.schedule_ = ScheduleTable(predictor.module.schedules)

    def _check_fitted(self) -> None:
        if "forest_" not in self.__dict__:
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self)

    def _check_model(self) -> None:
        fingerprint = self.__dict__.get("_fingerprint")  # absent for a stored model
        if fingerprint is not None:
            fingerprint.check()
        search = self.__dict__.get("search_")
        if search is not None and unwrap(search) is not model_of(self):
            raise has_changed(search)

    @own_arithmetic
    def _revive(self) -> ForestPredictor:
        self._check_fitted()
        self._check_model()
        forest, reduction = self.forest_.validate(), self._asked[1]
        if self._tables is not None:
            choice = rechosen(self._tables, forest, reduction)
        else:
            choice = TargetChoice(
                resolve_target(stored_target(self.target_)), self.schedule_
            )
        module = compiled(forest, choice, reduction, self.gpu_min_rows_)
        by_reference(module)
        self.target_, self.schedule_ = module.target, ScheduleTable(module.schedules)
        start = start_of(self)
        source = source_of(model_of(self), module.forest, start)
        revived = ForestPredictor(module, source, start)
        self._open_door(revived)
        revived.note = self.__dict__.get("_note")
        if (before := self.__dict__.get("_before")) is not None:
            revived.counters = Counters(before.counts)
            revived.ignores = before.ignores
        # threads that arrive together all use the first one's
        return self.__dict__.setdefault("_predictor", revived)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_predictor", *OF_A_FILE):
            state.pop(name, None)
        if state.get("_shadow") is not None:
            del state["_shadow"]
        if state.pop("_fingerprint", None) is not None:
            self._check_model()
        state |= {"_skforge_version": __version__, "_skforge_format": FORMAT}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a state; kernels compile on the first call, for this CPU."""
        state = dict(state)
        written = state.pop("_skforge_version", "unknown")
        form = state.pop("_skforge_format", 1)  # 0.1.0 stated none
        if "forest_" in state:
            check_format(form, written, "The pickle of a CompiledForest")
        check_release(written, "CompiledForest", "Fit")
        before = self.__dict__.pop("_predictor", None)
        if before is not None:  # the object was fitted before
            before.retire()
        self.__dict__.update(state)
        if "forest_" in state:
            if "_shadow" not in state:  # of a member
                self.__dict__.update(shadow_state())
            self._fingerprint = Fingerprint(model_of(self), start_of(self))
        here = self.__dict__.get("_asked", ("",))[0] in ("auto", "cpu")
        if here and self.target_.kind == "cpu":
            self.target_ = Target.host()

    def _open_door(self, predictor: ForestPredictor) -> None:
        """Compare forms of rows, unless it is a member: the whole model is compared."""
        is_member = self.__dict__.get("_shadow", self) is None
        if not is_member and config.compares_forms():
            predictor.open_door()

    def join_whole(self) -> None:
        """Become a member of a model that is compared, or answers, as a whole."""
        self.__dict__["_shadow"] = None
        if (predictor := self.__dict__.get("_predictor")) is not None:
            predictor.door = None

    def _compiled(self) -> ForestPredictor:
        return self.__dict__.get("_predictor") or self._revive()

    if TYPE_CHECKING:  # what models have most often; estimator_ has the rest
        estimator_: Any
        search_: Any
        classes_: Any
        n_classes_: Any
        n_features_in_: int
        feature_names_in_: Any
        feature_importances_: Any
        n_outputs_: int
        estimators_: Any
        best_iteration: int
        best_score: Any

    else:

        def __getattr__(self, name: str) -> Any:
            state = self.__dict__
            fitted = name in FITTED or (
                name.endswith("_") and not name.startswith("__")
            )
            if fitted and "forest_" in state:
                model = model_of(self)
                if hasattr(model, name):
                    self._check_model()
                    value = getattr(model, name)
                    if name == "n_features_in_" and value == 0:  # CatBoost's, unpickled
                        return state["forest_"].n_columns
                    return value
                live = is_estimator(model)  # texts have no n_features_in_
                if not live and not hasattr(model, "n_features_in_"):  # nor stored
                    value = attribute_of(state["forest_"], name)
                    if value is not None:
                        return value
            raise AttributeError(no_attribute(self, name))
