"""What users see of a CompiledForest: summary, card, repr and plots."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import joblib
import lightgbm as lgb
import numpy as np
import pandas
import pytest
import sklearn
import xgboost as xgb
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge import (
    CompiledForest,
    InvalidInputError,
    Schedule,
    Target,
    TreeExplainer,
    compile_forest,
    load_forest,
)
from skforge.display.notebook import draw
from skforge.display.summary import CallTime
from skforge.tuning import ScheduleSearch, ScheduleSpace, Tuner
from tests.plain import plain

X, Y = make_classification(300, 6, n_informative=4, random_state=0)
X = X.astype(np.float32)
FOREST = RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, Y)
LONG = {
    (1, 8): Schedule(),
    (9, None): Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1"),
}


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    monkeypatch.setattr("skforge.display.notebook.SECONDS", 0.02)


@pytest.fixture(scope="module")
def fast():
    return CompiledForest(FOREST, schedule=LONG).fit(X)


def facts_of(summary):
    return dict(summary.facts)


# ------------------------------------------------------------------ the facts


def test_the_facts(fast):
    summary = fast.summary()
    assert summary.title == "CompiledForest of RandomForestClassifier (scikit-learn)"
    assert (summary.n_trees, summary.n_features, summary.n_outputs) == (5, 6, 2)
    assert summary.n_nodes == sum(one.tree_.node_count for one in FOREST.estimators_)
    assert summary.depth[1] == max(one.get_depth() for one in FOREST.estimators_)
    assert summary.exact and (summary.n_checked, summary.n_drawn) == (256, 128)
    assert summary.schedules == LONG and summary.n_threads == 1
    assert summary.gpu_min_rows is None and summary.target == str(fast.target_)
    assert summary.compile_seconds == fast.compile_time_
    facts = facts_of(summary)
    assert facts.pop("compiled in").endswith((" ms", " s"))
    assert facts == {
        "trees": f"5, depth {summary.depth[0]} to 4, {summary.n_nodes} nodes",
        "features": "6, read as float32",
        "outputs": "2, binary classification",
        "exact": "yes; fit compared 256 rows of X and 128 random rows with the model, "
        "bit by bit",
        "runs on": f"{fast.target_}; 1 thread",
        "answers": "Rows like those given to fit are answered by compiled code.",
        "schedules": "for 1 to 8, 9 and more rows",
    }


def test_the_text_is_aligned(fast):
    title, *lines = str(fast.summary()).splitlines()
    assert title == "CompiledForest of RandomForestClassifier (scikit-learn)"
    assert lines[0].startswith("  trees        5, depth ")
    assert lines[1] == "  features     6, read as float32"
    gap = lines.index("")
    assert lines[gap + 1] == "Estimated time of kernels alone, by batch size"
    table = lines[gap + 2 : -2]
    assert table[0].split() == ["batch", "size", "per", "row", "per", "call"]
    assert len({len(line) for line in table}) == 1
    assert [line.split()[0] for line in table[1:]] == ["1", "8", "64", "512", "4,096"]
    assert lines[-2:] == [
        "A call from Python takes longer, above all with a frame; summary(X) measures",
        "calls.",
    ]
    assert repr(fast.summary()) == str(fast.summary())


def test_the_text_fits_a_terminal(fast):
    estimated = fast.summary()
    first, *_ = estimated.times
    timed = replace(first, origin="timed in fit"), *estimated.times[1:]
    row = CallTime(4096, 1e-4, "measured", 1.234e-2, 12.34, 12.34, "library")
    name = "HistGradientBoostingClassifier"
    for summary in (
        estimated,
        replace(estimated, times=timed, rows="Rows " * 40),
        replace(estimated, times=(row,), source=name, reference="the " * 40),
    ):
        lines = str(summary).splitlines()
        assert max(map(len, lines)) <= 80
        assert {len(line) - len(line.lstrip()) for line in lines} >= {0, 2}
    both = replace(estimated, times=timed).table
    assert both.title == "Time of kernels alone, by batch size"
    assert [row[-1] for row in both.rows[:2]] == ["timed in fit", "estimated"]


def test_other_modes_say_what_they_promise():
    for reduction in ("fast", "reproducible"):
        made = CompiledForest(FOREST, schedule=Schedule(), reduction=reduction).fit(X)
        summary = made.summary()
        assert not summary.exact
        start = f'no, reduction="{reduction}": sums are rounded '
        assert facts_of(summary)["exact"].startswith(start)


def test_loaded_models_say_what_is_checked_here(fast, tmp_path):
    skforge.save(fast, tmp_path / "model.skforge")
    loaded = skforge.load(tmp_path / "model.skforge")
    for other in (loaded, pickle.loads(pickle.dumps(fast)), fast.drop_estimator()):
        summary, before = other.summary(), {*vars(other)}
        assert facts_of(summary)["exact"] == (
            "yes; each kernel is compared with the trees on 64 random rows before its "
            "first answer"
        )
        assert summary.model == "RandomForestClassifier"
        assert summary.title in other._repr_html_()
        assert {*vars(other)} == before and "_predictor" not in before
        assert summary.times == fast.summary().times


def test_steps_of_a_pipeline():
    model = make_pipeline(PCA(3), StandardScaler(), clone(FOREST)).fit(X, Y)
    summary = plain(model).fit(X).summary()
    assert summary.model == "Pipeline ending in RandomForestClassifier"
    assert facts_of(summary)["steps"] == "2 in their library, 0 folded"
    assert summary.steps.splitlines()[0].split() == [
        "step",
        "transformer",
        "where",
        "why",
    ]
    card = summary._repr_html_()
    assert "<details><summary>Steps</summary><pre>step " in card


def test_forests_of_a_wrapper():
    model = MultiOutputRegressor(DecisionTreeRegressor(max_depth=2, random_state=0))
    model.fit(X, np.c_[Y, X[:, 0]])
    summary = plain(model).fit(X).summary()
    assert (summary.n_trees, summary.n_outputs, summary.task) == (2, 2, "regression")


def test_boosters_and_files(tmp_path):
    """Files have no model to compare with."""
    model = xgb.XGBClassifier(n_estimators=3, max_depth=3, n_jobs=1).fit(X, Y)
    file = tmp_path / "model.json"
    model.save_model(file)
    for given, name, judge in (
        (model.get_booster(), "Booster", "the model"),
        (str(file), "model.json", "the trees as read, evaluated in NumPy"),
        (file, "model.json", "the trees as read, evaluated in NumPy"),
        (load_forest(model), "Forest", "the trees as read, evaluated in NumPy"),
    ):
        made = plain(given).fit(X)
        summary = made.summary()
        assert summary.title == f"CompiledForest of {name} (XGBoost)"
        assert summary.reference == judge
        assert facts_of(summary)["exact"].endswith(f"rows with {judge}, bit by bit")
        times = made.summary(X, batch_sizes=[2]).times
        assert (times[0].source_seconds is not None) == (name == "Booster")


def test_a_gpu():
    made = CompiledForest(FOREST, target="emulated", tuning="off").fit(X)
    summary = made.summary()
    assert summary.times == ()  # there is no estimate
    assert facts_of(summary)["time"] == "not measured; summary(X) measures calls"
    assert facts_of(summary)["runs on"].startswith("emulated sm_")
    assert [t.n_rows for t in made.summary(X, batch_sizes=[1, 4]).times] == [1, 4]


def test_unfitted_models_have_no_summary():
    for ask in (
        lambda one: one.summary(),
        lambda one: one.summary(X),
        lambda one: one.plot_latency(X),
        lambda one: one.plot_tuning(),
    ):
        with pytest.raises(NotFittedError):
            ask(CompiledForest(FOREST))


# ------------------------------------------------------------------ times


def test_measured_times(fast, monkeypatch):
    # a busy machine leaves the source's calls out
    monkeypatch.setattr("skforge.display.notebook._fits", lambda *_, **__: True)
    made = CompiledForest(FOREST, schedule=Schedule()).fit(X)
    summary = made.summary(X, method="predict_proba", batch_sizes=[400, 320])
    assert (summary.method, summary.source) == (
        "predict_proba",
        FOREST.__class__.__name__,
    )
    assert [t.n_rows for t in summary.times] == [320, 400]  # more than there are rows
    for time in summary.times:
        assert time.origin == "measured"
        assert 0 < time.seconds <= time.high
        assert 0 < time.source_seconds <= time.source_high
        assert time.faster == time.source_seconds / time.seconds
    head = "batch size|per row|per call|99% within|answered by|model's own|faster"
    assert summary.table.head == head.split("|")
    assert [row[4] for row in summary.table.rows] == ["entry", "entry"]
    assert summary.table.notes == (
        "The model's own calls are those of RandomForestClassifier, with as many "
        "OpenMP threads.",
        "entry: compiled code that takes the rows from Python",
    )
    # shown from now on, and not in another process, nor after another fit
    assert made.summary().times == summary.times
    assert pickle.loads(pickle.dumps(made)).summary().times[0].origin == "estimated"
    made.n_jobs = 2
    assert made.summary().times[0].origin == "estimated"


def test_rows_of_all_kinds_are_timed():
    frame = pandas.DataFrame(X[:20], columns=[f"c{i}" for i in range(6)])
    model = RandomForestRegressor(2, max_depth=2, random_state=0).fit(frame, Y[:20])
    made = plain(model).fit(frame)
    mapping = frame.iloc[0].to_dict()
    columns = frame.to_dict("list")  # stand for the frame, which scikit-learn takes
    for rows in (frame, X[:20], X[:20].tolist(), columns):
        (time,) = made.summary(rows, batch_sizes=[3]).times
        assert time.n_rows == 3 and time.source_seconds is not None
    for rows in ([mapping, mapping], mapping):  # which scikit-learn does not take
        (time,) = made.summary(rows, batch_sizes=[3]).times
        assert time.n_rows == 3 and time.source_seconds is None


def test_times_of_the_search():
    space = ScheduleSpace.cpu().with_values(walk=["rows"], block=[0])
    tuner = Tuner("exhaustive", space=space, budget=2.0, records=None)
    made = CompiledForest(FOREST, tuning=tuner, batch_sizes=[4])
    summary = made.fit(X).summary()
    assert {t.origin for t in summary.times} == {"timed in fit"}
    best = made.tuning_result_.best[1, None]
    assert (4, best.seconds) in [(t.n_rows, t.seconds) for t in summary.times]
    assert facts_of(summary)["search"].startswith("exhaustive, ")
    made.n_jobs = 2  # for which nothing was timed
    assert {t.origin for t in made.summary().times} == {"estimated"}


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        (X, {"method": "transform"}, "method must be one of predict, predict_proba, "),
        (X, {"batch_sizes": [0]}, "batch_sizes must be positive whole numbers of rows"),
        (X[:0], {}, "X has 0 rows; pass at least one to measure calls."),
        (X[:, :5], {}, "X has 5 features"),  # by the method
    ],
)
def test_wrong_arguments(fast, rows, options, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        fast.summary(rows, **options)


# ------------------------------------------------------------------ the card


class Page(HTMLParser):
    """Collects tags and attributes; every tag must be closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.attributes = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_card(fast):
    card = fast._repr_html_()
    page = Page(card)
    assert set(page.tags) == {
        *("style", "div", "table", "tbody", "thead", "tr", "th", "td"),
        *("details", "summary", "pre"),
    }
    assert {name for name, _ in page.attributes} == {"class", "scope"}
    assert "url(" not in card and "http" not in card
    assert len(card) < 6000
    for label, text in fast.summary().facts:
        assert f'<th scope="row">{label}</th><td>{text}</td>' in card
    assert "<div>Estimated time of kernels alone, by batch size</div>" in card
    parameters = card.split("<summary>Parameters</summary><pre>")[1].split("</pre>")[0]
    lines = unescape(parameters).split("\n")
    assert lines[0] == f"estimator={FOREST!r}".split("\n")[0]
    assert {"n_jobs=None", "target='auto'", "reduction='exact'"} < {*lines}
    assert "deprecated" not in parameters
    assert "1 to 8 rows: Schedule()\n9 and more rows: Schedule().tile(&quot;" in card
    assert card == fast.summary()._repr_html_()


def test_a_changed_model_is_still_shown():
    model = clone(FOREST).fit(X, Y)
    made = CompiledForest(model, schedule=Schedule()).fit(X)
    before = made._repr_html_()
    model.fit(X[:, :3], Y)  # calls that need it raise now
    assert made._repr_html_() == before
    made.n_jobs = 0  # which calls refuse
    assert "1 thread" in made._repr_html_()
    assert "CompiledForest(" in repr(made)


def test_texts_are_escaped(tmp_path):
    file = tmp_path / "<b>&.json"
    xgb.XGBRegressor(n_estimators=1, max_depth=1, n_jobs=1).fit(X, Y).save_model(file)
    card = plain(file).fit(X)._repr_html_()
    assert "&lt;b&gt;&amp;.json" in card and "<b>" not in card


def test_what_notebooks_get():
    fast = CompiledForest(FOREST, schedule=LONG).fit(X)
    # Estimates change when another process has measured this machine.
    fast.summary(X, batch_sizes=[1])
    bundle = fast._repr_mimebundle_()
    assert bundle["text/plain"] == repr(fast)
    assert bundle["text/html"] == fast._repr_html_()
    with sklearn.config_context(display="text"):
        assert "text/html" not in fast._repr_mimebundle_()
    assert "sk-top-container" in CompiledForest(FOREST)._repr_html_()
    inside = make_pipeline(StandardScaler(), fast)._repr_html_()
    assert "sk-top-container" in inside and "<div>2 schedules</div>" in inside


def test_showing_compiles_and_changes_nothing(fast, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise AssertionError("compiled")

    skforge.save(fast, tmp_path / "model.skforge")
    joblib.dump(fast, tmp_path / "model.joblib")
    monkeypatch.setattr("skforge.prediction.state.CompiledState._revive", stop)
    monkeypatch.setattr("skforge.engine.machine.measure", stop)
    for loaded in (
        skforge.load(tmp_path / "model.skforge"),
        joblib.load(tmp_path / "model.joblib"),
    ):
        state = dict(vars(loaded))
        assert loaded._repr_html_() and repr(loaded) and str(loaded.summary())
        assert vars(loaded) == state


# ------------------------------------------------------------------ repr


def shown(text):
    """Check that a repr is short and has no address; return it."""
    assert " at 0x" not in text and len(text) < 700
    return text


def test_reprs_of_wrappers():
    assert shown(repr(CompiledForest(FOREST, n_jobs=2))) == (
        "CompiledForest(estimator=RandomForestClassifier(max_depth=4, n_estimators=5,\n"
        "                                                random_state=0),\n"
        "               n_jobs=2)"
    )
    inside = make_pipeline(StandardScaler(), CompiledForest(FOREST))
    assert len(shown(repr(inside)).splitlines()) == 5  # broken by scikit-learn
    assert repr(CompiledForest(FOREST, target=Target.host())).endswith(
        "target=Target.host())"
    )


def test_reprs_of_xgboost():
    model = xgb.XGBClassifier(n_estimators=2, max_depth=3, n_jobs=1)
    text = "XGBClassifier(max_depth=3, n_estimators=2, n_jobs=1)"
    made = CompiledForest(model)
    assert repr(made) == f"CompiledForest(estimator={text})"
    names = {"XGBClassifier": xgb.XGBClassifier, "CompiledForest": CompiledForest}
    assert repr(eval(repr(made), names)) == repr(made)
    steps = CompiledForest(make_pipeline(StandardScaler(), model))
    assert text in " ".join(shown(repr(steps)).split())
    booster = model.fit(X, Y).get_booster()
    made = plain(booster)
    assert "estimator=<Booster of xgboost>" in repr(made)
    assert "estimator=<Booster of xgboost: 2 trees, 6 features>" in repr(made.fit(X))
    assert made.estimator is booster
    assert repr(ScheduleSearch(booster)) == (
        "ScheduleSearch(estimator=<Booster of xgboost>)"
    )


def test_reprs_of_texts_and_protos():
    model = lgb.LGBMClassifier(n_estimators=2, num_leaves=4, verbose=-1).fit(X, Y)
    text = model.booster_.model_to_string()
    found = f"<text of a model, {len(text):,} characters>"
    assert f"estimator={found}" in shown(repr(CompiledForest(text)))
    assert "<Booster of lightgbm>" in shown(repr(CompiledForest(model.booster_)))
    onnx = pytest.importorskip("skl2onnx")
    proto = onnx.to_onnx(FOREST, X[:1], options={"zipmap": False})
    assert "<ModelProto of onnx>" in shown(repr(CompiledForest(proto)))


def test_reprs_of_what_comes_with_it(fast, tmp_path):
    skforge.save(fast, tmp_path / "model.skforge")
    stored = "<RandomForestClassifier, stored: 5 trees, 6 features>"
    assert f"estimator={stored}" in repr(skforge.load(tmp_path / "model.skforge"))
    module = compile_forest(load_forest(FOREST), Schedule())
    name = Target.host().cpu
    assert repr(module) == (
        f"<CompiledModule of 5 trees, 6 features, for {name}, exact, 1 schedule>"
    )
    assert repr(TreeExplainer(module)) == (
        "<TreeExplainer of 5 trees, 6 features, tree_path_dependent>"
    )
    lines = repr(fast.schedule_).splitlines()
    assert lines[0] == "{(1, 8): Schedule(),"
    assert len(lines) == 2 and eval(repr(fast.schedule_)) == LONG
    nest = LONG[1, 8].loop_nest(5)
    assert repr(nest) == str(nest)


# ------------------------------------------------------------------ plots


@pytest.fixture
def axes():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def test_a_plot_of_latency(fast, axes, monkeypatch):
    # However busy the machine is, there is time for both batch sizes.
    monkeypatch.setattr("skforge.display.notebook._fits", lambda *_, **__: True)
    assert fast.plot_latency(X, ax=axes, batch_sizes=[1, 8]) is axes
    ours, theirs = axes.get_lines()
    summary = fast.summary()  # of the same measurement
    assert ours.get_label() == "CompiledForest (entry)"
    assert theirs.get_label() == "RandomForestClassifier"
    assert ours.get_xdata().tolist() == [1, 8]
    assert ours.get_ydata().tolist() == [t.seconds for t in summary.times]
    assert theirs.get_ydata().tolist() == [t.source_seconds for t in summary.times]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[2:] == ["up to the 99th percentile"]
    again = fast.drop_estimator().plot_latency(X, batch_sizes=[1])
    assert len(again.get_lines()) == 1 and again is not axes


def test_a_plot_says_from_which_size_another_route_answers(axes):
    how = {"origin": "measured", "high": 2e-6}
    routes = (1, "entry"), (8, "entry"), (4096, "kernel"), (8192, "library")
    times = [CallTime(n, 1e-6, route=route, **how) for n, route in routes]
    draw(SimpleNamespace(times=times, source="", method="predict"), axes)
    assert axes.get_lines()[0].get_label() == (
        "CompiledForest (entry, kernel from 4,096 rows, library from 8,192 rows)"
    )


def test_a_plot_of_the_search(axes):
    values = {"node_tile": [1], "layout": ["sparse"], "hops": ["checked"]}
    values |= {"walk": ["rows"], "block": [0], "in_flight": [1, 8]}
    space = ScheduleSpace.cpu().with_values(**values)
    tuner = Tuner("exhaustive", space=space, budget=60.0, records=None)
    made = CompiledForest(FOREST, tuning=tuner, batch_sizes=[4])
    made.fit(X)
    assert made.plot_tuning(ax=axes) is axes
    assert axes.get_xlabel() == "times slower than the fastest schedule"
    assert axes.get_title() == "How much slower than the fastest the schedules are"
    slowdown = made.plot_tuning("slowdown")
    assert slowdown.get_title() == "The search, schedule by schedule"
    assert slowdown.get_ylabel() == "time, default schedule = 1"
    assert (axes.get_legend() is None, slowdown.get_legend() is None) == (False, True)
    (legend,) = slowdown.figure.legends  # beside the points
    assert [text.get_text() for text in legend.get_texts()] == ["4 rows"]
    with pytest.raises(InvalidInputError, match="kind must be one of distribution, "):
        made.plot_tuning("pie")


def test_no_search_to_draw(fast):
    with pytest.raises(InvalidInputError) as error:
        fast.plot_tuning()
    assert str(error.value) == (
        "fit searched no schedules, so there is nothing to draw; use a search, such as "
        "tuning='exhaustive'."
    )


def test_plots_without_matplotlib(fast, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidInputError) as error:
        fast.plot_latency(X)
    text = "drawing needs matplotlib: pip install matplotlib."
    assert str(error.value) == text
