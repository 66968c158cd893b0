"""What shells and notebooks show of a ``CompiledForest``."""

from __future__ import annotations

from typing import Any

from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from skforge._docs import documented
from skforge.display.latency import draw, drawn_search, measured
from skforge.display.named import OwnRepr
from skforge.display.summary import Summary, summary_of
from skforge.prediction.delegated import Delegated
from skforge.sources.delegation import is_estimator, model_of
from skforge.tuning.plots import axes_for


class Shown(Delegated):
    """Adds summaries, plots, the repr and the card; only those with rows measure."""

    def summary(
        self, X: Any = None, *, method: str = "predict", batch_sizes: Any = None
    ) -> Summary:
        """Return the model, what was checked, the schedules and the time of a call.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), default=None
            Rows on which to measure single calls, for about a second, beside the
            model's own method if there is a live model. Without rows nothing is
            measured: times are those of the last ``summary(X)`` or of the search, or
            estimates.
        method : str, default="predict"
            The method to measure, such as "predict_proba".
        batch_sizes : array-like of int, default=None
            Rows per call; None means 1, 8, 64, 512 and 4,096. Rows repeat in batches
            larger than ``X``.

        Returns
        -------
        Summary
            It prints as text, and notebooks show it as a card.

        Examples
        --------
        >>> from skforge import CompiledForest
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
        >>> summary = CompiledForest(tree).fit([[0.0]]).summary()
        >>> summary.model, summary.library, summary.n_trees, summary.exact
        ('DecisionTreeRegressor', 'scikit-learn', 1, True)
        """
        check_is_fitted(self)
        if X is None:
            return summary_of(self)
        return measured(self, X, method, batch_sizes)

    @documented(summary)
    def plot_latency(
        self,
        X: Any,
        *,
        ax: Any = None,
        method: str = "predict",
        batch_sizes: Any = None,
    ) -> Any:
        """Measure calls as :meth:`summary` does, and draw their times by batch size.

        Lines are medians; the area above a line reaches to the 99th percentile.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        ax : matplotlib.axes.Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        InvalidInputError
            If matplotlib is not installed.
        """
        check_is_fitted(self)
        ax = axes_for(ax)  # before anything is measured
        return draw(measured(self, X, method, batch_sizes), ax)

    def plot_tuning(self, kind: str = "distribution", *, ax: Any = None) -> Any:
        """Draw the search for schedules that ``fit`` made.

        Parameters
        ----------
        kind : {"distribution", "slowdown", "sensitivity"}, default="distribution"
            What to draw, see :meth:`skforge.tuning.TuningResult.plot`.
        ax : matplotlib.axes.Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        InvalidInputError
            If ``fit`` searched or timed nothing, or matplotlib is not installed.
        """
        check_is_fitted(self)
        return drawn_search(self.tuning_result_, kind, ax)

    __repr__ = OwnRepr()

    def _sk_visual_block_(self) -> Any:
        """Return the parts that a diagram around it draws."""
        return visual_block(self)

    def _html_repr(self) -> str:
        """Return what notebooks show: the card, or a diagram before ``fit``."""
        if not self.__sklearn_is_fitted__():
            return html_of(self)
        return summary_of(self)._repr_html_()

    def _repr_html_inner(self) -> str:  # scikit-learn 1.6 does not call _html_repr
        return self._html_repr()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:  # nor here
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        return bundle | {"text/html": self._html_repr()} if len(bundle) > 1 else bundle


# ------------------------------------------------------------ the diagram

#: Wraps long schedules, which would otherwise overflow the box.
_STYLE = (
    "<style>.skforge-box div.sk-toggleable__content pre "
    "{white-space: pre-wrap; overflow-wrap: anywhere}</style>"
)


def html_of(wrapper: Any) -> str:
    """Return the HTML of a wrapper, with one line per schedule."""
    drawn: str = estimator_html_repr(wrapper)
    return f'{_STYLE}<div class="skforge-box">{drawn}</div>'


def visual_block(wrapper: Any) -> Any:
    """Return the parts of a wrapper that scikit-learn draws."""
    model = model_of(wrapper)
    parts = [model if is_estimator(model) else type(model).__name__]
    names, details = [f"estimator: {type(model).__name__}"], [str(model)]
    if wrapper.__sklearn_is_fitted__():
        split = wrapper.__dict__.get("_split")
        if split is not None:
            parts.append(_Lines(split.summary, str(split).splitlines()))
        lines = [f"target: {wrapper.target_.cpu}"]
        for (first, last), schedule in sorted(wrapper.schedule_.items()):
            sizes = f"{first}–{last or ''}" if last != first else f"{first}"
            lines.append(f"{sizes} rows: {schedule!r}")
        n = len(wrapper.schedule_)
        parts.append(_Lines(f"{n} schedule{'s'[: n > 1]}", lines))
        names, details = [*names, "compiled"], [*details, lines[0]]
    return _block("parallel", parts, names, details)


class _Lines:
    """A box that expands to show some lines."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self._name, self._lines = name, lines

    def _sk_visual_block_(self) -> Any:
        return _block("single", self, self._name, "\n".join(self._lines))


def _block(kind: str, parts: Any, names: Any, details: Any) -> Any:
    try:
        from sklearn.utils._repr_html.estimator import _VisualBlock
    except ImportError:  # scikit-learn before 1.8
        from sklearn.utils._estimator_html_repr import _VisualBlock
    return _VisualBlock(kind, parts, names=names, name_details=details)
