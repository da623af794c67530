"""``python -m tests.notebooks``: run notebooks in full, and write their outputs in place."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import nbformat

from tests.notebooks.checks import faults
from tests.notebooks.execution import NOTEBOOKS, execute

__all__ = ["main"]


def main() -> int:
    """Run the notebooks; 1 where the outputs of one are not fit to be committed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="as 01_quickstart (default: all)")
    names = parser.parse_args().names or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    found = False
    for name in names:
        path = NOTEBOOKS / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            execute(notebook, Path(directory))
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)
        print(f"{name}: {time.monotonic() - began:.0f} s, {path.stat().st_size / 1e6:.2f} MB")
        for fault in faults(notebook):
            found = True
            print(f"  {fault}")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
