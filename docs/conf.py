"""Sphinx settings: the pages of this folder as a site; README.md says how to build."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import skforge

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "skforge"
author = "The skforge maintainers"
copyright = author
version = release = skforge.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
]
templates_path = ["_templates"]
# myst-nb writes the second beside the first, where the next build would read it.
exclude_patterns = ["_build", "included", "jupyter_execute", "README.md"]
nitpicky = True
# What other packages document is not looked up: builds need no network.
nitpick_ignore_regex = [("py:.*", r"(?!skforge).*")]

# Where the site is served: social networks take no relative address of a picture.
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")

html_theme = "furo"
html_title = "skforge"
html_favicon = "_static/favicon.svg"
# Module names are underlined by Furo's own dark style, as if they were links.
pygments_dark_style = "github-dark"
# 88 columns of code fit beside the contents.
_FONTS = {"code-font-size": "var(--font-size--small--3)"}
html_theme_options = {"light_css_variables": _FONTS, "dark_css_variables": _FONTS}
html_static_path = ["_static"]
html_css_files = ["site.css"]
# In this order: site.js says which tables are sortable.
html_js_files = [
    "site.js",
    "sortable/sortable.min.js",
    "sortable/sortable.a11y.min.js",
]

myst_heading_anchors = 3
DESCRIPTION = (
    "Compiles tree ensembles of XGBoost, LightGBM, CatBoost, scikit-learn and ONNX: "
    "the same predictions to the last bit, many times as fast."
)
myst_html_meta = {
    "description lang=en": DESCRIPTION,
    "property=og:description": DESCRIPTION,
    "property=og:image": f"{html_baseurl}_static/social.png",
}
myst_enable_extensions = ["colon_fence"]
# What a block prints has no button, and a command is copied without its prompt.
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
copybutton_prompt_text = "$ "
# Not run here: tests/outside/test_notebooks.py does, and compares what they print.
nb_execution_mode = "off"

autosummary_generate = True
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    # scikit-learn's own, and what other modules of ours use
    "exclude-members": "set_score_request, limit_entries, threads",
}
autodoc_typehints = "none"  # numpydoc's sections have the types
numpydoc_show_class_members = False
# What is documented is a parameter, and in its place.
numpydoc_validation_checks = {"PR02", "PR03"}

#: Pages outside of this folder that the site has, too, in a copy of its own.
COPIED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "benchmarks/gpu/cost_model.md",
    "tests/reliability/README.md",
    "benchmarks/results",
    "benchmarks/same_bits/cells",
)

#: Pages for maintainers: links lead to them, the sidebar and the search do not.
ASIDE = (
    "appendix/",
    "decisions/",
    "repository/CHANGELOG",
    "repository/benchmarks/results/",
)
ASIDE += ("repository/benchmarks/same_bits/", "repository/benchmarks/gpu/")
ASIDE += ("repository/tests/",)


def copy_pages(app: Sphinx) -> None:
    """Copy pages of the repository to where Sphinx reads, if they have changed."""
    for name in COPIED:
        found = ROOT / name
        files = sorted(found.iterdir()) if found.is_dir() else [found]
        for file in filter(Path.is_file, files):  # running its code leaves folders
            copy = DOCS / "repository" / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists() or copy.read_bytes() != file.read_bytes():
                shutil.copyfile(file, copy)


def point_to_copies(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links that are right in the repository lead to the copies, and back."""
    if not docname.startswith("repository/"):
        up = "../" * docname.count("/")
        source[0] = source[0].replace(f"]({up}../", f"]({up}repository/")
        return
    up = "../" * docname.count("/")
    source[0] = source[0].replace(f"]({up[3:]}docs/", f"]({up}")
    source[0] = source[0].replace("](results/)", "](results/README.md)")


def set_aside(app: Sphinx, docname: str, source: list[str]) -> None:
    """Take the pages of maintainers out of the sidebar and the search."""
    if docname.startswith(ASIDE):
        source[0] = f"---\norphan: true\nnosearch: true\n---\n{source[0]}"


def setup(app: Sphinx) -> None:
    """Tell Sphinx of the functions above."""
    app.connect("builder-inited", copy_pages)
    app.connect("source-read", point_to_copies)
    app.connect("source-read", set_aside)
