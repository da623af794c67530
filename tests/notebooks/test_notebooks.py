"""The notebooks run, with tiny budgets, and what is committed of them is fit to be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from tests.notebooks.checks import complaints, faults, pictures
from tests.notebooks.execution import NOTEBOOKS, execute, parameters_cell, with_parameters

#: Name -> the parameters for a run of seconds, and how many pictures it shows at least.
TINY: dict[str, tuple[dict[str, Any], int]] = {
    "01_quickstart": ({"total_timesteps": 512, "num_envs": 4, "film_steps": 10}, 2),
    "02_your_own_server": ({"generations": 2, "population": 8}, 1),
    "03_pixels_text_dict": ({"total_timesteps": 512}, 4),
    "04_the_wire": ({"phases": "exchange:*every integer type"}, 3),
    "05_many_clients": ({"total_timesteps": 10_000}, 1),
    "06_taking_over": ({"total_timesteps": 250, "evaluation_episodes": 2}, 3),
}


def read(name: str) -> NotebookNode:
    """A notebook as it is committed."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


# pyzmq on Windows; the notebook does not see it.
@pytest.mark.filterwarnings("ignore:Proactor event loop:RuntimeWarning")
@pytest.mark.parametrize("name", TINY)
def test_a_notebook_runs_from_top_to_bottom_without_a_complaint(name: str, tmp_path: Path):
    parameters, shown = TINY[name]
    notebook = with_parameters(read(name), parameters)
    execute(notebook, tmp_path)
    assert complaints(notebook, waits=False) == []
    assert pictures(notebook) >= shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TINY)
def test_a_notebook_is_committed_with_the_outputs_of_one_whole_run(name: str):
    notebook = read(name)
    nbformat.validate(notebook)
    assert faults(notebook) == []
    assert pictures(notebook) >= TINY[name][1]


def test_all_notebooks_are_tested_and_in_the_index():
    assert sorted(TINY) == sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    index = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\w+)\.ipynb\)", index) == sorted(TINY)


@pytest.mark.parametrize("name", TINY)
def test_what_a_notebook_links_to_is_there(name: str):
    text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (NOTEBOOKS / link).exists()] == []


# -- the checks themselves ----------------------------------------------------------------


def sample() -> NotebookNode:
    """A notebook without a fault."""
    code = nbformat.v4.new_code_cell("seeds = 5", metadata={"tags": ["parameters"]})
    code.execution_count = 1
    code.outputs = [nbformat.v4.new_output("stream", name="stdout", text="5\n")]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=[code], metadata={"kernelspec": kernel})


def test_the_sample_has_no_fault():
    assert faults(sample()) == []


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (
            nbformat.v4.new_output("error", ename="KeyError", evalue="'x'", traceback=[]),
            "an error: KeyError: 'x'",
        ),
        (
            nbformat.v4.new_output("stream", name="stderr", text="UserWarning: old\n"),
            "on stderr: UserWarning: old",
        ),
        (
            nbformat.v4.new_output("stream", name="stdout", text="saved /home/ann/model.zip"),
            "a path of a machine: /home/ann",
        ),
        (
            nbformat.v4.new_output("display_data", data={"text/html": r"in C:\Users\ann"}),
            r"a path of a machine: C:\Users",
        ),
        (
            nbformat.v4.new_output("display_data", data={"image/png": "A" * 1_600_000}),
            "bytes, more than 1500000",
        ),
    ],
)
def test_an_output_that_should_not_be_committed_is_found(output: NotebookNode, fault: str):
    notebook = sample()
    notebook.cells[0].outputs.append(output)
    (found,) = faults(notebook)
    assert fault in found


@pytest.mark.parametrize("count", [None, 7])
def test_cells_that_did_not_run_in_order_are_found(count: int | None):
    notebook = sample()
    notebook.cells[0].execution_count = count
    assert faults(notebook) == [f"its cells were not run once, in order: [{count}]"]


def test_a_run_with_other_parameters_or_kernels_is_found():
    notebook = with_parameters(sample(), {"seeds": 1})
    notebook.cells[1].execution_count = 2
    notebook.metadata.kernelspec.name = "mine"
    assert faults(notebook) == [
        "it ran with parameters other than its own",
        "its kernel is mine",
    ]


def test_urls_and_addresses_are_no_paths_of_a_machine():
    notebook = sample()
    notebook.cells[0].outputs[0].text = "ws://127.0.0.1:8000/tmp/x runs/tmp/x https://a.b/home/x"
    assert faults(notebook) == []


def test_parameters_are_set_after_the_cell_that_has_them():
    notebook = sample()
    changed = with_parameters(notebook, {"seeds": 1})
    assert [cell.source for cell in changed.cells] == ["seeds = 5", "seeds = 1"]
    assert len(notebook.cells) == 1
    assert parameters_cell(changed) == 0


def test_a_parameter_that_is_not_there_is_refused():
    with pytest.raises(KeyError, match="no parameters: seed"):
        with_parameters(sample(), {"seed": 1})
