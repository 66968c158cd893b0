"""Notebooks of docs run from top to bottom, and print what they are stored with.

Pictures and cards are made anew and not compared: they show times. ``--update-golden``
stores new outputs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.doors

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
#: The others take a search, whose budget is seconds, or SHAP.
OFTEN = "schedules_by_hand"


def executed(notebook: Any, folder: Path) -> Any:
    """Return a copy with new outputs, run in a process of its own in ``folder``."""
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = nbclient.NotebookClient(
        copy,
        timeout=120,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    for cell in copy.cells:
        cell.metadata.pop("execution", None)  # when it ran
    return copy


def printed(notebook: Any) -> list[tuple[str, list[str]]]:
    """Return each code cell with what it printed; a word for a picture or a card."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            found = []
            for output in cell.outputs:
                data = output.get("data", {})
                text = output.get("text") or data.get("text/plain", "")
                if "TuningWarning" in text:  # time was short: the machine is busy
                    continue
                card = "skforge-card" in data.get("text/html", "")
                text = "card" if card else text
                found.append("picture" if "image/png" in data else text)
            cells.append((cell.source, found))
    return cells


@pytest.mark.parametrize(
    "path",
    [
        path if path.stem == OFTEN else pytest.param(path, marks=pytest.mark.slow)
        for path in NOTEBOOKS
    ],
    ids=lambda path: path.name,
)
def test_a_notebook_prints_what_it_is_stored_with(path, request, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("xgboost")
    if path.name == "explaining.ipynb":
        pytest.importorskip("shap")
    ways = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, ways)))
    stored = nbformat.read(path, as_version=4)
    true = executed(stored, tmp_path)
    if request.config.getoption("--update-golden") and printed(true) != printed(stored):
        nbformat.write(true, path)
        pytest.skip(f"wrote {path.name}; read the diff")
    assert printed(true) == printed(stored)


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [
        "explaining",
        "schedules_by_hand",
        "xgboost_to_production",
    ]


def test_a_changed_output_is_noticed(tmp_path):
    stored = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1 + 1)")])
    stored.cells[0].outputs = [nbformat.v4.new_output("stream", text="3\n")]
    assert printed(stored) == [("print(1 + 1)", ["3\n"])]
    assert printed(executed(stored, tmp_path)) == [("print(1 + 1)", ["2\n"])]
