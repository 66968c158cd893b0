"""Notes in the cache of what answers for a file's model, for the next processes.

A note has the compiled entries, the kernels that were compared by then, how mappings
are read, and what ``warm_up`` used of the cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge.compiler.target import Target
from skforge.engine.entry.mappings import cached_reader
from skforge.engine.kernels import suits_entries
from skforge.exceptions import InvalidInputError
from skforge.persistence.ready import key_of, record_of
from skforge.runtime import object_cache, stored_kernels
from skforge.runtime.mappings import MappingColumns
from skforge.runtime.records import plain_in, plain_out

if TYPE_CHECKING:
    from skforge.prediction.predictor import ForestPredictor
    from skforge.sources.base import Source

#: Methods that a model answers by way of another one.
_BY_OTHERS = {"predict_log_proba"}


class Note:
    def __init__(self, digest: str) -> None:
        self._digest = digest

    def __call__(self, predictor: ForestPredictor, method: str) -> None:
        key, source, module = key_of(self._digest), predictor.source, predictor.module
        entry = predictor.entries.get(method)
        holder: Any = getattr(entry, "__self__", None)
        labels = _labels_out(getattr(holder, "labels", None))
        if key is None or holder is None or not holder.alone or labels is None:
            return
        kernels, code = self._kernels(module), holder.jit.cache_key
        if not kernels or code is None:
            return
        firsts = module.kernels.first_rows
        known = record_of(self._digest)
        if known is None or known["ranges"] != firsts:
            known = {"entries": {}, "kernels": [], "warm": None}
        for number, place, digest in known["kernels"]:  # of batches that came before
            if digest == object_cache.digest_of(place, stored_kernels.KERNELS):
                kernels.setdefault(number, [number, place, digest])
        record = {
            "direct": source.facts.direct and not source.warning,
            "lists": _reads_lists(source),
            "ranges": firsts,
            "kernels": [kernels[number] for number in sorted(kernels)],
            "columns": (columns := _columns_out(predictor)),
            "reader": columns and cached_reader(),
            "dtype": predictor.forest.input_dtype.name,
            "converts": source.facts.limit == np.inf,
            "warm": known["warm"],
            "entries": {
                **known["entries"],
                method: [*code, labels, [*holder.sizes], holder.loops],
            },
        }
        self._keep(record, known)
        module.kernels.note = self.kernel

    def _keep(self, record: Any, known: Any) -> None:
        key = key_of(self._digest)
        if key is not None and record != known:
            object_cache.store(key, json.dumps(record).encode())

    def kernel(self, table: Any, number: int, kernel: Any) -> None:
        """Note a kernel that came after the entries."""
        known = record_of(self._digest)
        own = table.cache.kernel(table.ranges[number][1], table.element)
        if known is None or kernel is not own or not suits_entries(kernel):
            return
        if known["ranges"] != table.first_rows or kernel.cache_key is None:
            return
        kernels = {entry[0]: entry for entry in known["kernels"]}
        kernels[number] = [number, *kernel.cache_key]
        record = {**known, "kernels": [kernels[number] for number in sorted(kernels)]}
        self._keep(record, known)

    def warmed(
        self,
        predictor: ForestPredictor,
        methods: Iterable[str],
        batch_sizes: Any,
        used: Iterable[tuple[str, str]],
    ) -> None:
        """Note what ``warm_up`` used of the cache, if entries answer all methods."""
        known = record_of(self._digest)
        if known is None or not known["entries"].keys() >= {*methods} - _BY_OTHERS:
            return
        table, sizes = predictor.module.kernels, np.ravel(batch_sizes)
        every = range(len(table.ranges))
        needed = {*(every if batch_sizes is None else map(table.number, sizes))}
        noted = {entry[0] for entry in known["kernels"]}
        if known["ranges"] != table.first_rows or not needed <= noted:
            return
        before = known["warm"]
        if before is None or not all(object_cache.holds(*x) for x in before["used"]):
            before = {"sizes": [], "used": []}
        some = batch_sizes is not None and before["sizes"] is not None
        warm = {
            "sizes": sorted({*sizes.tolist(), *before["sizes"]}) if some else None,
            "used": sorted({*map(tuple, before["used"]), *used}),
        }
        reader = known["columns"] and cached_reader()
        self._keep({**known, "warm": warm, "reader": reader}, known)

    def _kernels(self, module: Any) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        table, kernels = module.kernels, module.compiler
        if table.element != "accumulator" or module.target != Target.host():
            return found
        with kernels.lock:
            for number in table.compiled():
                kernel = table.kernel(number)
                own = kernels.kernel(table.ranges[number][1], table.element)
                if kernel is own and suits_entries(kernel):  # entries decline the rest
                    if kernel.cache_key is None:
                        return {}
                    found[number] = [number, *kernel.cache_key]
        return found


def _labels_out(labels: Any) -> Any:
    plain = {bool, int, float, str}
    if labels is None or not plain.issuperset(map(type, np.ravel(labels).tolist())):
        return None
    return plain_out(labels)


def _reads_lists(source: Source) -> bool:
    """Tell whether lists of floats are read as arrays of them are, without a word."""
    array = np.full((1, source.forest.n_features), 0.5)
    reads = [source.read(array), source.read(array.tolist())]
    if any(read is None or read[1] for read in reads):
        return False
    of_array, of_list = (read[0] for read in reads if read is not None)
    return of_array.dtype == of_list.dtype and np.array_equal(of_array, of_list)


def _columns_out(predictor: ForestPredictor) -> Any:
    with suppress(InvalidInputError):  # the model knows no names
        columns = predictor.source.columns()
        if columns is not None and not columns.by_frame:
            written = plain_out(columns)
            same = repr(plain_in(MappingColumns, written, "")) == repr(columns)
            return written if same else None
    return None
