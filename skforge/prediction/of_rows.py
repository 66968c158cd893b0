"""Which forest reads a call's rows, and the numbers that it reads."""

from __future__ import annotations

from typing import Any, NamedTuple

from skforge.engine.module import CompiledModule
from skforge.runtime.log import INFO, log
from skforge.runtime.mappings import is_mapped
from skforge.sources.base import Source
from skforge.sources.plain import ReadArray

#: Forms of rows that are looked into.
_MOST_FORMS = 32


class RowsRead(NamedTuple):
    """A call's rows, as a forest and as the model take them."""

    by: Any  # the predictor whose forest reads them
    rows: Any  # numbers, or sparse ones; None: only the model reads them
    given: Any  # after steps of a pipeline that are run once a call


class OfRows:
    """A base of ``ForestPredictor``."""

    __slots__ = ()

    source: Source
    module: Any
    #: By form of rows: itself, one with another forest, or None: the source alone.
    of_forms: dict[Any, Any]

    def read(self: Any, X: Any, method: str, by: Any = None) -> RowsRead:
        """Read rows, by the forest of their form or a given one; warn as the model."""
        given = self.source.prepared(self.framed(X), method)
        by = by or self.of_rows(given)
        return RowsRead(by, by.rows(given, method), given)

    def framed(self: Any, X: Any) -> Any:
        if is_mapped(X) and self._mappings is not None:
            return self._mappings.frame(X)
        return X

    def of_rows(self: Any, X: Any) -> Any:
        """Return the predictor whose forest reads rows: itself, or their form's."""
        return self._of_form(X) or self

    def _ask_form(self: Any, method: str, X: Any, n_jobs: int | None) -> Any:
        reader = self._of_form(X)
        return None if reader is None else reader.answer(method, X, n_jobs)

    def _of_form(self: Any, X: Any) -> Any:
        """Return the predictor for rows of another form, made for the first of them."""
        form = self.source.form(X)
        if form is None:
            return None
        if form not in self.of_forms:
            if len(self.of_forms) >= _MOST_FORMS:
                return None
            self.fingerprint.check()
            self.of_forms[form] = None  # for other threads in the meantime
            source, who = self.source.of_form(form), "the model itself"
            if source is self.source:
                self.of_forms[form], who = self, "the kernels of float64 rows"
            elif source is not None and isinstance(self.module, CompiledModule):
                module = self.engine.module_of(source.forest)
                model = source.model if source.stored is None else source.stored
                reader = type(self)(module, model, source=source)
                reader.counters, who = self.counters, "kernels of their own"
                self.of_forms[form] = reader
            self._routes: Any = {}
            from skforge.sources.forms import form_text

            log(INFO, "rows of the form %s are answered by %s", form_text(form), who)
        return self.of_forms[form]

    def rows(self, X: Any, method: str, known: ReadArray | None = None) -> Any:
        """Return numbers for the engine, which may be read already, and warn.

        None if only the model reads these rows; without it, raise an error.
        """
        rows = None
        if method != "apply":  # for which some libraries take fewer rows
            rows = self.source.taken(known or self.source.read(X))
        return self.source.rows(X, method) if rows is None else rows
