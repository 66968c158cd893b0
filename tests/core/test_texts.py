"""What is compiled for schedules of each family: digests of the IR, the code, the data.

Nothing runs. A digest differs where the compiler makes something else of a schedule; if
that was meant, ``--update-golden`` writes them anew. To see what differs, print
``Lowered.text("lir")`` of the case before and after the change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any, get_args

import numpy as np
import pytest

import skforge
from skforge.compiler.backend import backend_of
from skforge.compiler.binning import encoder_routines
from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.defaults.cpu import contribution_schedules
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.target import Target
from skforge.engine.compiling import ScheduleLowering
from skforge.engine.cpu import worker_routines
from skforge.engine.entry import (
    hashing_routines,
    mapping_routine,
    routines,
)
from skforge.engine.explanations import background
from skforge.engine.leaves import samples_function
from skforge.exceptions import ScheduleError, UnsupportedModelError
from skforge.exporters import c_source, library, wheel
from skforge.exporters.contents import Library
from skforge.forest.outputs import OutputSpec
from skforge.runtime import dict_reader
from tests.exactness import families, gpu_families
from tests.exactness.forests import MAKERS, forest

#: Forests that are made anew in each process; those of many trees take too long.
NAMES = [name for name in MAKERS if name not in ("wide records", "vector 100")]
TARGETS = {
    "cpu": {
        **{level: Target.x86_64(level) for level in ("v2", "v3", "v4")},
        "aarch64": Target.aarch64(),
    },
    "gpu": {"sm_80": Target.cuda("sm_80")},
}


def digest(*parts: str | bytes) -> str:
    texts = (part.encode() if isinstance(part, str) else part for part in parts)
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


def of_data(data: dict[str, np.ndarray]) -> str:
    arrays = ((name, str(x.dtype), str(x.shape), x) for name, x in data.items())
    return digest(*(p for *head, x in arrays for p in (*head, x.tobytes())))


def case(
    name: str, schedule, target: Target, element="accumulator", reduction="exact"
) -> Iterator[str]:
    lowering = ScheduleLowering(forest(name), target, reduction)
    try:
        lowered = lowering.lowered(schedule, element)
    except (ScheduleError, UnsupportedModelError) as error:
        yield f"refused: {digest(str(error))}"
        return
    function = lowered.kernel.function
    yield digest(print_lir(function))
    yield of_data({d.buffer.name: d.data for d in lowered.kernel.data})
    if backend_of(target).native:
        yield digest(emit_llvm(function, target))
    else:
        yield digest(backend_of(target).device_text(function, target, "cuda"))


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_kernels(kind: str, golden: Callable[[str, str], None]) -> None:
    schedules = families.FAMILIES if kind == "cpu" else gpu_families.FAMILIES
    turns = zip(schedules.items(), cycle(NAMES), cycle(TARGETS[kind].items()))
    lines = [
        " | ".join((family, name, place, *case(name, schedule, target)))
        for (family, schedule), name, (place, target) in turns
    ]
    golden("\n".join(lines) + "\n", "digests")


@pytest.mark.parametrize("place", [*TARGETS["cpu"], *TARGETS["gpu"]])
def test_defaults(place: str, golden: Callable[[str, str], None]) -> None:
    """The schedules that forests get, where no machine was measured."""
    target = {**TARGETS["cpu"], **TARGETS["gpu"]}[place]
    backend, lines = backend_of(target), []
    own = NAMES[[*TARGETS["cpu"], *TARGETS["gpu"]].index(place) :: 2]
    turns = zip(own, cycle(["exact", "reproducible", "fast"]))
    for number, (name, reduction) in enumerate(turns):
        if forest(name).n_trees == 0:
            continue
        table = backend.default_table(forest(name), target, reduction, False)
        lines += [f"{name}, {reduction}, {at}: {s!r}" for at, s in table.items()]
        schedule = [*table.values()][number % len(table)]
        lines.append(" | ".join(case(name, schedule, target, reduction=reduction)))
    golden("\n".join(lines) + "\n", "digests")


def test_explanations(golden: Callable[[str, str], None]) -> None:
    lines = []
    places = {**TARGETS["cpu"], **TARGETS["gpu"]}
    explained = [name for name in NAMES if len(forest(name).cover)]
    for name, (place, target) in zip(explained, cycle(places.items())):
        made = forest(name)
        tables = {"contribution": backend_of(target).contribution_table(made)}
        if target.kind == "cpu":
            tables["interaction"] = contribution_schedules(made, "interactions")
        of_background = {"walk": background.WALK, "look up": background.LOOK_UP}
        tables["contribution"] = {**tables["contribution"], **of_background}
        tables["pattern"] = {"count": background.COUNT}
        for element, table in tables.items():
            for at, schedule in table.items():
                parts = case(name, schedule, target, element)
                lines.append(" | ".join((name, place, element, str(at), *parts)))
    golden("\n".join(lines) + "\n", "digests")


def test_routines(golden: Callable[[str, str], None]) -> None:
    """The code of programs that is not made of schedules."""
    host, classes = TARGETS["cpu"]["v3"], ["str", "str_", "float", "float64"]
    archs = "x86_64", "aarch64", None
    made = {
        **{f"workers {arch}": worker_routines.routines(arch) for arch in archs},
        "encoder": [encoder_routines.encoder(host)],
        "hashes": [hashing_routines.city_hash(), hashing_routines.body_of_objects()],
        "objects": [hashing_routines.object_reader([*classes, "int", "bool"])],
        "texts": [hashing_routines.text_hasher()],
        "dicts": [
            mapping_routine.routine(kind.__name__ for kind in dict_reader.CLASSES)
        ],
        "entries": routines.functions(),
        "samples": [
            samples_function.function(statistic, narrow)
            for statistic in get_args(samples_function.SampleStatistic)
            for narrow in (False, True)
        ],
    }
    lines = []
    for name, functions in made.items():
        texts = [f if isinstance(f, str) else print_lir(f) for f in functions]
        lines.append(" | ".join((name, *map(digest, texts))))
    golden("\n".join(lines) + "\n", "digests")


#: Forests that are exported: their tasks, and what answers are.
EXPORTED: dict[str, tuple[Any, OutputSpec]] = {
    "multiclass": ("multiclass", OutputSpec("softmax", labels="best_score")),
    "full": (
        "binary",
        OutputSpec("sigmoid", probabilities="complement", labels="half"),
    ),
    "vector 3": ("regression", OutputSpec()),
    "averaged": ("regression", OutputSpec("exp")),
}


def test_exports(golden: Callable[[str, str], None], monkeypatch: Any) -> None:
    """The texts of libraries and wheels, and portable C."""
    monkeypatch.setattr(library, "emit_object", lambda texts, target: texts)
    monkeypatch.setattr(library, "check_targets", lambda targets: None)
    monkeypatch.setattr(library, "_digest_of_exp", lambda: library._BY_SUM)
    lines = []
    turns = zip(EXPORTED.items(), TARGETS["cpu"].items(), strict=True)
    for (name, (task, spec)), (place, target) in turns:
        made = replace(forest(name), task=task, outputs=spec)
        to_export = Library("m", made, *library.outputs_of(made), apply=True)
        how = {"contribs": len(made.cover) > 0, "python": True}
        whole, texts = library.export_object(to_export, [target], [None], **how)
        package = wheel._module(whole, "1.0", "m.so")
        texts += c_source.header_text(whole), c_source.source_text(to_export), package
        plain = (part.replace(skforge.__version__, "") for part in texts)
        lines.append(" | ".join((name, place, *whole.results, *map(digest, plain))))
    golden("\n".join(lines) + "\n", "digests")
