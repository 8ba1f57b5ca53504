"""The notebook of the documents runs, and its stored outputs are complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOK = Path(__file__).parents[1] / "docs/how-to/first-look.ipynb"
MOST_BYTES = 300_000
KERNELS = 900
"""Seconds for one cell: the first time on a machine it compiles kernels."""


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def check_outputs(notebook: Any) -> None:
    """Nothing on the standard streams, and every output is HTML with a text version."""
    shown = outputs(notebook)
    assert len(shown) >= 4
    for output in shown:
        assert output.output_type in ("execute_result", "display_data"), output
        assert set(output.data) == {"text/html", "text/plain"}
    assert sum("<table" in output.data["text/html"] for output in shown) >= 3


# A kernel asks zmq for a port without encryption, and says so.
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(notebook, timeout=KERNELS, resources={"metadata": {"path": str(tmp_path)}}).execute()
    check_outputs(notebook)


def test_the_notebook_is_stored_executed_and_small() -> None:
    """Cells were executed in order, and outputs name no folders of the machine."""
    notebook = nbformat.read(NOTEBOOK, 4)
    numbers = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1))
    check_outputs(notebook)
    assert NOTEBOOK.stat().st_size < MOST_BYTES
    assert not any(word in NOTEBOOK.read_text() for word in ("/home/", "/root/", "/work/", "/tmp/"))
