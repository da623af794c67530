"""What must not be in a notebook that is committed."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from typing import Any

import nbformat
from nbformat import NotebookNode

__all__ = ["complaints", "faults", "pictures"]

MOST_BYTES = 1_500_000
_PICTURES = ("image/png", "image/gif")
# Directories of somebody's machine, as text has them.
_PATHS = re.compile(
    r"(?<![\w.:/])/(?:tmp|home|root|work|Users|var|opt|usr|private|mnt)/[\w.-]+"
    r"|\b[A-Z]:\\{1,2}\w+"
)


def pictures(notebook: NotebookNode) -> int:
    """How many pictures the outputs show, films too."""
    return sum(
        kind in output.get("data", {}) for output in _outputs(notebook) for kind in _PICTURES
    )


def complaints(notebook: NotebookNode, *, waits: bool = True) -> list[str]:
    """Errors and whatever else a run said that nobody wants to read; one sentence each.

    Args:
        waits: How long something was waited for counts, too.
    """
    found = []
    for output in _outputs(notebook):
        if output.output_type == "error":
            found.append(f"an error: {output.ename}: {output.evalue}")
        elif output.output_type == "stream" and output.name == "stderr":
            lines = output.text.strip().splitlines()
            # A slow machine is no fault; to be committed such a line is one, all the same.
            said = "\n".join(line for line in lines if waits or not line.startswith("waiting for "))
            if said:
                found.append(f"on stderr: {said[:200]}")
    return found


def faults(notebook: NotebookNode) -> list[str]:
    """All that is wrong with a notebook that is to be committed; one sentence each."""
    found = complaints(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        found.append(f"its cells were not run once, in order: {counts}")
    if any("injected-parameters" in cell.metadata.get("tags", []) for cell in code):
        found.append("it ran with parameters other than its own")
    if notebook.metadata.kernelspec.name != "python3":
        found.append(f"its kernel is {notebook.metadata.kernelspec.name}")
    size = len(nbformat.writes(notebook).encode())
    if size > MOST_BYTES:
        found.append(f"it has {size} bytes, more than {MOST_BYTES}")
    for text in _texts(notebook):
        found += [f"a path of a machine: {path}" for path in _PATHS.findall(text)]
        found += [f"a name of this machine: {name}" for name in _names() if name in text]
    return found


def _outputs(notebook: NotebookNode) -> Iterator[NotebookNode]:
    for cell in notebook.cells:
        yield from cell.get("outputs", [])


def _texts(notebook: NotebookNode) -> Iterator[str]:
    """All that people read; not the bytes of pictures."""
    for cell in notebook.cells:
        yield cell.source
    for output in _outputs(notebook):
        yield output.get("text", "")
        for kind, content in output.get("data", {}).items():
            if kind not in _PICTURES:
                yield _text(content)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def _names() -> list[str]:
    """What tells where a notebook was run."""
    # A short or common name of a host is found in any text.
    host = socket.gethostname()
    return [sys.prefix, *([host] if len(host) > 5 and host != "localhost" else [])]
