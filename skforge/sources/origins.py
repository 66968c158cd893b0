"""Where an adapter's model comes from: a live one, a file alone, or stored plain data.

What adapters do otherwise with each of them is here, so that nothing else has to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

from skforge.engine.by_round import ARGUMENTS
from skforge.exceptions import SourceNeededError, with_article
from skforge.frontends.base import last_step
from skforge.frontends.checks import ROUNDS, refuse_arguments
from skforge.rows.frames import kind_of
from skforge.runtime.mappings import Mappings


class FromFile:
    """A model file or a forest alone: no library reads its rows, nor answers."""

    #: The live model; None where there is none to ask, and why.
    model: Any = None
    absence = "was loaded, stripped or compiled from a file"
    class_name = "model file"
    #: What ``fit`` compares kernels with.
    reference = "the trees as read, evaluated in NumPy"

    def __init__(self, held: Any) -> None:
        #: The live model, or what there is in its place.
        self.held = held

    @property
    def whole(self) -> Any:
        """A wrapper around members that are models, or stored ones."""
        return self.held

    def decline(self, source: Any, X: Any, method: str) -> None:
        """Raise an error about declined rows, unless the model is called with them."""

    def tried(self, source: Any, X: Any, method: str) -> Any:
        return source._rows(X, method)

    def twin(self, source: Any, form: Any) -> Any:
        """Return an adapter with a forest for another form of rows, or None."""

    def refuse_mappings(self, source: Any, mappings: Mappings, X: Any) -> None:
        """Raise an error about a value that certainly no frame helps to read."""

    def check_fitted(self) -> None:
        """Raise the library's error if somebody has taken a live model apart."""

    def method(self, source: Any, name: str) -> Callable[[Any], Any] | None:
        """Return the library's function of users' rows that answers as a method."""
        return None

    def leave(self, error: Exception) -> None:
        """Raise an error, unless the model itself is to say what is wrong."""
        raise error

    def need(self, who: str, instead: str) -> None:
        """Raise an error unless there is a model to ask."""
        raise SourceNeededError(
            f"{who} needs the model itself, which this CompiledForest does not have: "
            f"it {self.absence}. {instead}, or use the original model."
        )

    def named(
        self, method: str, X: Any, args: tuple[Any, ...], params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return arguments by the names that they have in the model's own method."""
        if (called := getattr(self.model, method, None)) is None:
            n = f"2 positional arguments but {2 + len(args)} were given"
            raise TypeError(f"CompiledForest.{method}() takes {n}")
        names = signature(called)
        (_, *rest) = names.bind(X, *args).arguments.items()
        names.bind(X, *args, **params)  # an argument that is there twice
        changed = {k: v for k, v in rest if v is not names.parameters[k].default}
        return {**changed, **params}

    def refuse_rounds(self, source: Any, method: str, params: Set[str]) -> None:
        """Refuse another library's names of rounds, which LightGBM ignores."""

    def argument_of_stages(self, source: Any) -> str:
        """Return what a library is told each stage by, if it predicts anew; or ""."""
        return ""


class Live(FromFile):
    """A live model, which reads and answers whatever its adapter declines."""

    absence = ""
    reference = "the model"

    def __init__(self, held: Any) -> None:
        self.held = self.model = held
        self.class_name = type(held).__name__

    def twin(self, source: Any, form: Any) -> Any:
        return source.twin_of_live(form)

    def check_fitted(self) -> None:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self.model)

    def method(self, source: Any, name: str) -> Callable[[Any], Any] | None:
        if source.answers.labels:
            return getattr(self.model, name, None)
        of_booster = name in ("predict", "predict_raw")
        return partial(source.call, name) if of_booster else None

    def leave(self, error: Exception) -> None:
        pass

    def need(self, who: str, instead: str) -> None:
        pass

    def refuse_rounds(self, source: Any, method: str, params: Set[str]) -> None:
        called = getattr(last_step(self.model), method, None)
        names = params if called is None else ROUNDS & params
        scores = not source.answers.labels  # in place of a classifier's
        if called is not None and not (scores and source.forest.classifies):
            names = names - signature(called).parameters.keys()
        refuse_arguments(method, names, f" of {with_article(self.class_name)}")

    def argument_of_stages(self, source: Any) -> str:
        *_, last = ARGUMENTS.get(source.forest.source, ("",))
        return "" if source.members or last == "ntree_end" else last


class Stored(FromFile):
    """What is kept of a model: its adapter reads what the library would read, too."""

    def __init__(self, held: Any) -> None:
        self.held, self.class_name = held, held.class_name

    @property
    def whole(self) -> Any:
        return self.held.whole

    def decline(self, source: Any, X: Any, method: str) -> None:
        if self.held.answer_to_no_rows(X, method) is None:
            from skforge.sources.stored_model.declined import decline

            decline(source, X, method)

    def tried(self, source: Any, X: Any, method: str) -> Any:
        X = source._of_batch(X) if kind_of(X) == "batch" else X
        rows = source._rows(X, method)
        return source._unaided(X, method) if rows is None else rows

    def twin(self, source: Any, form: Any) -> Any:
        from skforge.rows.forms import form_text

        held = self.held
        if (twin := held.twins.get(form_text(form))) is None:
            return None
        twin = replace(twin, attributes=held.attributes, whole=held.whole)
        return type(source)(twin, twin.forest, form)

    def refuse_mappings(self, source: Any, mappings: Mappings, X: Any) -> None:
        if why := mappings.refusal(X, source.outside):
            raise SourceNeededError(why)

    def named(
        self, method: str, X: Any, args: tuple[Any, ...], params: Mapping[str, Any]
    ) -> dict[str, Any]:
        what = f"{method} with arguments by position"
        return self.held.refuse(what, "Pass them by their names.")
