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
from skforge.outputs.answers import labels_of
from skforge.prediction import counters
from skforge.prediction.engines import SourceEngine
from skforge.runtime.float_errors import own_arithmetic
from skforge.runtime.log import INFO, log
from skforge.runtime.mappings import Mappings, is_mapped
from skforge.sources.base import Source
from skforge.sources.find import Fingerprint, FirstMember

if TYPE_CHECKING:
    from typing_extensions import Self

    from skforge.prediction.door import Door
    from skforge.prediction.forms_met import KnownForm

#: Answers rows, or declines them with None: of the predictor, a method, rows and a
#: number of threads.
Route: TypeAlias = Callable[[Any, str, Any, "int | None"], Any]
#: Takes rows and returns None for those that it declines.
Entry: TypeAlias = Callable[[Any], Any]

#: Forms of rows that are looked into.
_MOST_FORMS = 32
NO_PARAMS: Mapping[str, Any] = MappingProxyType({})


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

    def __init__(
        self,
        module: CompiledModule | AutoModule,
        source: Source,
        start: FirstMember = None,
    ) -> None:
        """Set all that a predictor has, of each of the five files.

        ``start`` is what runs before the source's forest; see ``source_of``.
        """
        # ``__del__`` asks for these, whatever fails below
        self._retired = False
        self._methods: dict[Entry, tuple[Any, Any]] = {}
        model = source.held
        self.module: Any = module
        self.forest: Forest = module.forest
        self.source = source
        self.engine = SourceEngine(module, source)
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

        # answers
        answers = source.answers
        self.by_members = answers.by_members
        #: Methods that what leaves hold answers, and not raw scores.
        self.by_leaves: tuple[str, ...]
        self.by_leaves = getattr(source.leaf_source, "by_leaves", ())
        self._made = self.forest.n_made
        #: The labels that ``predict`` returns; None for 0, 1, ...
        self.classes: Any = labels_of(self.forest.answers, model)
        #: Returns a method's answer for raw scores.
        self.of_scores = answers.of_scores(self.forest, model)

        # what was compared with the model
        #: Compares each form of rows with a live model; None where nothing is compared.
        self.door: Door | None = None
        #: By method, whether answers that were written over their own rows agreed.
        self.agreed_over: dict[str, bool] = {}
        #: Rows of X, and drawn ones, on which ``fit`` compared it with the source.
        self.checked = 0, 0
        #: Some of the rows that ``fit`` saw; a saved file is compared on them.
        self.sample: Any = None

        # entries
        #: By method. None: the method has no entry. Absent: not called yet.
        self.entries: dict[str, Entry | None] = {}
        #: The number of threads that entries are for.
        self.entry_jobs: int | None = None
        #: Those that take arrays of objects, of a model with hashed categories.
        self._of_objects: dict[str, Entry] = {}
        #: Those that take rows with hashes of categories.
        self._of_hashes: dict[str, Entry] = {}
        #: Whether entries take arrays as users pass them, and what is then warned of.
        self._direct, self._warning = source.facts.direct, ""
        #: By method and class of rows.
        self.known_forms: dict[Any, list[KnownForm]] = {}
        #: Methods known to be offered; see ``fitted.offered``.
        self.offered: dict[Any, Any] = {}
        #: Keeps for the next process which entries methods have; of a file's model.
        self.note: Any = None
        #: What ``CompiledForest.summary(X)`` measured last: the method, the times by
        #: batch size and the source's name.
        self.timed: tuple[str, tuple[Any, ...], str] | None = None

    def read(self, X: Any, method: str, by: OfRows | None = None) -> RowsRead:
        """Read rows, by the forest of their form or a given one; warn as the model."""
        given = self.source.prepared(self.framed(X), method)
        by = by or self.of_rows(given)
        return RowsRead(by, by.source.rows(given, method), given)

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
            reader = type(self)(module, source)
            reader.counters, who = self.counters, "kernels of their own"
            self.of_forms[form] = reader
        self._routes = {}
        from skforge.rows.forms import form_text

        log(INFO, "rows of the form %s are answered by %s", form_text(form), who)
        return self.of_forms[form]

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
