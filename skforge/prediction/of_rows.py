"""Which forest reads a call's rows, and the numbers that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from skforge._compat import cached_property
from skforge.engine.arrays import is_device_array
from skforge.engine.entry.mappings import CompiledDictReader
from skforge.exceptions import InvalidInputError
from skforge.forest.forest import Forest
from skforge.modules.auto import AutoModule
from skforge.modules.compiled import CompiledModule
from skforge.prediction import counters
from skforge.prediction.engines import SourceEngine
from skforge.rows.plain import ReadArray
from skforge.runtime.float_errors import own_arithmetic
from skforge.runtime.log import INFO, log
from skforge.runtime.mappings import Mappings, is_mapped
from skforge.sources.base import Source
from skforge.sources.find import Fingerprint, FirstMember, source_of

if TYPE_CHECKING:
    from typing_extensions import Self

#: Answers rows, or declines them with None: of the predictor, a method, rows and a
#: number of threads.
Route: TypeAlias = Callable[[Any, str, Any, "int | None"], Any]

#: Forms of rows that are looked into.
_MOST_FORMS = 32
NO_PARAMS: Mapping[str, Any] = MappingProxyType({})


class Basis(NamedTuple):
    """What a predictor is made of."""

    module: CompiledModule | AutoModule
    model: Any  # which the module's forest is read from
    start: FirstMember = None  # what runs before the forest; see ``source_of``
    source: Source | None = None  # the model's adapter, if it is known


class RowsRead(NamedTuple):
    """A call's rows, as a forest and as the model take them."""

    by: OfRows  # the predictor whose forest reads them
    rows: Any  # numbers, or sparse ones; None: only the model reads them
    given: Any  # after steps of a pipeline that are run once a call


class OfRows:
    """Reads rows, or asks the model; the first base of ``ForestPredictor``."""

    #: What each call looks at, faster than in the dictionary of all others.
    __slots__ = (
        *("by_members", "_direct", "_routes", "_warning", "entries", "entry_jobs"),
        *("known_forms", "source", "__dict__", "__weakref__"),
    )

    def __init__(self, basis: Basis) -> None:
        module, model, start, source = basis
        self.module: Any = module
        self.forest: Forest = module.forest
        self.source: Source = source or source_of(model, module.forest, start)
        self.engine = SourceEngine(module, self.source)
        self.fingerprint = Fingerprint(model, start)
        self.counters = counters.Counters()
        #: By form of rows: itself, one with another forest, or None: the source alone.
        self.of_forms: dict[Any, Self | None] = {}
        #: By method, and class of rows or dtype of arrays. They hold no reference to
        #: the predictor, so that it is freed, and its methods retire, with the last
        #: one of a user.
        self._routes: dict[tuple[str, Any], tuple[Route, ...]] = {}
        #: Whether a user was told already that further keys of mappings are ignored.
        self.ignores = False

    def read(self, X: Any, method: str, by: OfRows | None = None) -> RowsRead:
        """Read rows, by the forest of their form or a given one; warn as the model."""
        given = self.source.prepared(self.framed(X), method)
        by = by or self.of_rows(given)
        return RowsRead(by, by.rows(given, method), given)

    @cached_property
    def mappings(self) -> Mappings | None:
        """The reader of mappings; None if the model takes them."""
        columns = self.source.columns()
        if columns is None:
            return None
        mappings = Mappings(columns, CompiledDictReader)
        mappings.ignores |= self.ignores
        return mappings

    def framed(self, X: Any) -> Any:
        if is_mapped(X) and self.mappings is not None:
            return self.mappings.frame(X)
        return X

    def of_rows(self, X: Any) -> Self:
        """Return the predictor whose forest reads rows: itself, or their form's."""
        return self.of_form(X) or self

    def of_form(self, X: Any) -> Self | None:
        """Return the predictor for rows of another form, made for the first of them."""
        form = self.source.form(X)
        if form is None:
            return None
        if form not in self.of_forms:
            if len(self.of_forms) >= _MOST_FORMS:
                return None
            return self._look_into(form)
        return self.of_forms[form]

    @own_arithmetic
    def _look_into(self, form: Any) -> Self | None:
        self.fingerprint.check()
        self.of_forms[form] = None  # for other threads in the meantime
        source, who = self.source.of_form(form), "the model itself"
        if source is self.source:
            self.of_forms[form], who = self, "the kernels of float64 rows"
        elif source is not None and isinstance(self.module, CompiledModule):
            module = self.engine.module_of(source.forest)
            reader = type(self)(Basis(module, source.held, source=source))
            reader.counters, who = self.counters, "kernels of their own"
            self.of_forms[form] = reader
        self._routes = {}
        from skforge.rows.forms import form_text

        log(INFO, "rows of the form %s are answered by %s", form_text(form), who)
        return self.of_forms[form]

    def rows(self, X: Any, method: str, known: ReadArray | None = None) -> Any:
        """Return numbers for the engine, which may be read already, and warn.

        None if only the model reads these rows; without it, raise an error.
        """
        rows = self.source.taken(known)
        return self.source.rows(X, method) if rows is None else rows

    def are_on_device(self, X: Any) -> bool:
        """Tell whether kernels read rows on a GPU; refuse them if the CPU has to."""
        if not is_device_array(X) or self.source.before:  # its steps may take them
            return False
        if not self.source.facts.on_device:
            raise InvalidInputError(
                f"{self.source.class_name} computes its predictions on the CPU; pass "
                "the rows as a NumPy array."
            )
        return True

    @property
    def route(self) -> int:
        """What kernels count as: steps of a pipeline may have run before them."""
        return counters.STEPS if self.source.before else counters.KERNEL

    # ------------------------------------------------------------ the model itself

    def ask(self, method: str, X: Any) -> Any:
        self.fingerprint.check()
        return self.by_model(method, self.framed(X))

    def by_model(
        self, method: str, X: Any, params: Mapping[str, Any] = NO_PARAMS
    ) -> Any:
        answer = self.source.call(method, X, **params)
        self.counters.add(counters.LIBRARY, counters.rows_of(answer))
        return answer
