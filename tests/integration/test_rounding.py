"""Bits of source libraries on 64-bit Arm, checked on any machine.

The numbers are those of the libraries' wheels for aarch64 (CatBoost 1.2.10, ONNX
Runtime 1.32), which ran on a Neoverse N1 that qemu plays. Each differs on x86-64.
"""

import pickle
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

import skforge
from skforge.exceptions import UnsupportedModelError
from skforge.forest.outputs import OutputSpec
from skforge.forest.reference import reference_raw
from skforge.forest.rounds import BoostingRounds
from skforge.frontends import load_forest
from skforge.outputs import catboost, onnx
from skforge.outputs.library import HOST
from skforge.runtime import libm
from tests.sklearn_rows import same_bits as same


def become(monkeypatch, machine):
    monkeypatch.setattr(libm, "machine", lambda: machine)


@pytest.fixture
def arm(monkeypatch):
    become(monkeypatch, "aarch64")


def numbers(*texts, dtype="float64"):
    return np.array([*map(float.fromhex, texts)], dtype)


def differs_elsewhere(monkeypatch, compute, wanted):
    """Check an array on Arm, and that each row of it has other bits on x86-64."""
    same(compute(), wanted)
    become(monkeypatch, "x86_64")
    assert (compute() != wanted).reshape(len(wanted), -1).any(1).all()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "arm64", ""])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_and_a_sum_are_rounded_once_on_arm(machine, dtype, monkeypatch):
    become(monkeypatch, machine)
    random = np.random.default_rng(0)
    a, c = random.standard_normal((2, 500)).astype(dtype)
    b = a.dtype.type(1.37)
    c[:250] = -a[:250] * b  # of which rounding twice leaves nothing
    found = libm.multiply_add(a, b, c)
    exact = [Fraction(float(x)) * Fraction(float(b)) for x in a]
    exact = [x + Fraction(float(y)) for x, y in zip(exact, c, strict=True)]
    near = found.astype(object)
    error = [abs(Fraction(float(x)) - y) for x, y in zip(near, exact, strict=True)]
    half = [Fraction(float(x)) / 2 for x in np.spacing(np.abs(found))]
    once = all(x <= y for x, y in zip(error, half, strict=True))
    assert found.dtype == dtype
    assert once == libm.on_arm() == (machine in ("aarch64", "arm64"))
    same(libm.multiply_add(a, 1.0, c), a + c)


#: CatBoost's scores and exponentials, and scores and probabilities of three classes.
EXPONENTIALS = {
    "-0x1.7499c09cedcedp-4": "0x1.d37b0376a47dcp-1",
    "-0x1.7d3966a300ea5p-4": "0x1.d27f514604386p-1",
    "0x1.7803dcf836ab9p-4": "0x1.189d094bf08cap+0",
}
CLASSES = (
    ("-0x1.c81eb5dddc21ap+0", "-0x1.5edf958157eb2p-2", "0x1.0feb4d9f190ecp+1"),
    ("0x1.007e77df523cdp+1", "-0x1.561c2085b2fcap-2", "-0x1.ab75e79d37ba3p+0"),
    ("-0x1.6ace10bec7534p+0", "0x1.71af2986fd1b6p-1", "0x1.63ecf7f6918f0p-1"),
)
PROBABILITIES = (
    ("0x1.2a51fb6569f23p-6", "0x1.3a7c9cfee58e7p-4", "0x1.cf5ddc84f7febp-1"),
    ("0x1.c85d654709e62p-1", "0x1.6067d86099d19p-4", "0x1.72b3f59c5bf46p-6"),
    ("0x1.cd3d06a998128p-5", "0x1.e9aa06d853902p-2", "0x1.dcae5852796dap-2"),
)


def test_catboost_calls_the_c_library(arm, monkeypatch):
    scores = np.array([numbers(*row) for row in CLASSES])
    wanted = np.array([numbers(*row) for row in PROBABILITIES])
    of_one = numbers(*EXPONENTIALS)
    edges = np.array([-750.0, -708.5, 709.75, 710.0, np.inf, -np.inf, np.nan])
    assert catboost.exp(edges)[[0, 3, 4, 5]].tolist() == [0, np.inf, np.inf, 0]
    assert np.isnan(catboost.exp(edges)[6])
    assert catboost.exp(edges)[1] < 3e-308
    differs_elsewhere(monkeypatch, lambda: catboost.softmax(scores), wanted)
    become(monkeypatch, "aarch64")
    wanted = numbers(*EXPONENTIALS.values())
    differs_elsewhere(monkeypatch, lambda: catboost.exp(of_one), wanted)


#: Sums of CatBoost's leaves, and its scores with a scale of 1.37 and a bias of 0.731.
SCALED = {
    "-0x1.7c6d8da7908fdp+2": "-0x1.da66fbec3839dp+2",
    "-0x1.be1eca1ea22f4p+0": "-0x1.a80c7c53f3b27p+0",
    "0x1.c8e81dd654003p+1": "0x1.67c3dd247a909p+2",
}


def test_catboost_scales_with_one_rounding(arm, monkeypatch):
    sums, wanted = numbers(*SCALED)[:, None], numbers(*SCALED.values())[:, None]
    forest = SimpleNamespace(scaling=(1.37, 0.731), divisor=1, source="catboost")
    forest.n_trees, forest.finish = 0, lambda raw: skforge.Forest.finish(forest, raw)
    rounds = BoostingRounds(forest, 1, 1, 1)

    def finish(scale):
        raw = sums.copy()
        scale(raw)
        return raw

    for scale in (
        forest.finish,
        lambda raw: rounds.finish(raw, 0),
        lambda raw: rounds.steps(raw[:, None], 0, 1),
    ):
        differs_elsewhere(monkeypatch, lambda how=scale: finish(how), wanted)
        become(monkeypatch, "aarch64")
    same(finish(lambda raw: rounds.finish(raw, 1)), sums * 1.37)
    same(finish(lambda raw: rounds.steps(raw[:, None], 1, 1)), sums * 1.37)
    sums[:], forest.scaling = 0.0, (-2.0,)
    same(finish(lambda raw: rounds.finish(raw, 0)), -sums)


#: Numbers, and ONNX Runtime's PROBIT of them.
PROBITS = {
    "0x1.4fa7b60000000p-5": "-0x1.bd38540000000p+0",
    "0x1.34e56e0000000p-5": "-0x1.c70a0c0000000p+0",
    "0x1.a9b8740000000p-1": "0x1.eba1980000000p-1",
    "0x1.e091260000000p-1": "0x1.8b0bd80000000p+0",
}


def test_onnx_runtime_fuses_a_product_of_probit(arm, monkeypatch):
    spec = OutputSpec("onnx", layout="target", post="probit", offsets=(0.0,))
    x = numbers(*PROBITS, dtype="f4")[:, None]
    wanted = numbers(*PROBITS.values(), dtype="f4")[:, None]
    differs_elsewhere(monkeypatch, lambda: onnx.values(x, spec, HOST), wanted)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tracks", [0, 1])
@pytest.mark.parametrize("members", [[100, 5, 0], [100, 5], [0, 5]], ids=str)
def test_onnx_runtime_takes_nan_for_0_in_large_sets(
    members, tracks, dtype, tmp_path, monkeypatch
):
    pytest.importorskip("onnx")
    from tests.onnx_models import one_set
    from tests.unit.test_frontend_onnx import VALUES

    rows = np.array(VALUES, dtype)[:, None]
    model, nan = one_set(members, tracks, dtype), np.isnan(rows[:, 0])
    inside = {"x86_64": bool(tracks), "aarch64": bool(tracks) or members[-1] == 0}
    inside["aarch64"] &= bool(tracks) or 100 in members  # small sets are bits
    forests = {}
    for machine in inside:
        become(monkeypatch, machine)
        forests[machine] = forest = load_forest(model)
        skforge.save(forest, tmp_path / machine)
        compiled = skforge.compile_forest(forest).predict_raw(rows)
        same(compiled, reference_raw(forest, rows)[:, 0])
        assert (compiled[nan] == 2).all() == inside[machine]
    others = (reference_raw(forest, rows)[~nan] for forest in forests.values())
    same(*others)
    # a saved or pickled forest follows the machine that has it now
    pickles = {machine: pickle.dumps(forest) for machine, forest in forests.items()}
    for machine, forest in forests.items():
        become(monkeypatch, machine)
        for other in forests:
            for back in (skforge.load(tmp_path / other), pickle.loads(pickles[other])):
                assert back.content_hash() == forest.content_hash()


@pytest.mark.parametrize("wrapped", [False, True])
def test_dropout_of_xgboost_is_refused_on_arm(wrapped, monkeypatch):
    xgb = pytest.importorskip("xgboost")
    random = np.random.default_rng(0)
    X = random.standard_normal((200, 3)).astype(np.float32)

    def trained(rate):
        model = xgb.XGBRegressor(booster="dart", rate_drop=rate, n_estimators=5)
        model.fit(X, X[:, 0])
        return model if wrapped else model.get_booster()

    dropped, whole = trained(0.9), trained(0.0)
    hashes = [load_forest(model).content_hash() for model in (dropped, whole)]
    become(monkeypatch, "aarch64")
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(dropped)
    assert str(error.value) == (
        "On Arm, XGBoost multiplies DART's leaves by weights and adds them with one "
        "rounding, as skforge does not; use XGBoost, or train without dropout."
    )
    assert load_forest(whole).content_hash() == hashes[1]
    become(monkeypatch, "x86_64")
    assert load_forest(dropped).content_hash() == hashes[0]
