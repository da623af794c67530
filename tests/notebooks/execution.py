"""Run a notebook in a kernel of its own, with other parameters than its own where asked."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.support.commands import ROOT, environment

__all__ = ["NOTEBOOKS", "execute", "names_set", "parameters_cell", "with_parameters"]

NOTEBOOKS = ROOT / "notebooks"
_CELL_SECONDS = 1200  # on a busy machine

# No window is opened, and the debugger does not warn of what it cannot do.
_QUIET = {"SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def parameters_cell(notebook: NotebookNode) -> int:
    """The position of the one code cell that is tagged ``parameters``."""
    (position,) = (
        number
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", [])
    )
    return position


def names_set(source: str) -> set[str]:
    """The names that a cell assigns to."""
    assignments = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    targets = [target for node in assignments for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def with_parameters(notebook: NotebookNode, parameters: Mapping[str, Any]) -> NotebookNode:
    """A copy in which a cell after the one tagged ``parameters`` sets these.

    Raises:
        KeyError: The notebook has no parameter of that name.
    """
    changed = copy.deepcopy(notebook)
    position = parameters_cell(changed)
    unknown = parameters.keys() - names_set(changed.cells[position].source)
    if unknown:
        raise KeyError(f"no parameters: {', '.join(sorted(unknown))}")
    source = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": ["injected-parameters"]})
    changed.cells.insert(position + 1, cell)
    return changed


def execute(notebook: NotebookNode, directory: Path) -> None:
    """Run all cells in order, and keep their outputs in ``notebook``.

    Args:
        notebook: Changed in place.
        directory: Where the kernel runs.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raised.
    """
    client = NotebookClient(
        notebook,
        timeout=_CELL_SECONDS,
        kernel_name=notebook.metadata.kernelspec.name,
        resources={"metadata": {"path": str(directory)}},
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    client.execute(env={**environment(), **_QUIET})
