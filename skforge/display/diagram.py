"""HTML for notebooks: the source model beside its compiled schedules."""

from __future__ import annotations

from typing import Any

from sklearn.utils import estimator_html_repr

from skforge.display.named import named
from skforge.sources.delegation import is_estimator, model_of

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
    names, details = [f"estimator: {type(model).__name__}"], [str(named(model))]
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
