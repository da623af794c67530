"""Nothing that arrives is unpickled or run (SPEC 4.21)."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import ROOT, run

ROOMS = ("protocol", "spaces", "client", "server")
MODULES = {
    *("pickle", "_pickle", "cPickle", "pickletools", "marshal", "shelve", "copyreg", "code"),
    *("dill", "cloudpickle", "joblib", "jsonpickle", "yaml", "torch", "runpy", "subprocess"),
}
CALLS = {"eval", "exec", "compile", "__import__"}
#: Of numpy: what reads files that may hold pickles, or takes one itself.
ATTRIBUTES = {"load", "loads", "load_module", "fromfile", "memmap", "lib", "allow_pickle", "system"}


def openings(source: str) -> Iterator[str]:
    """Everything in a module's source that could turn bytes into objects or code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (name for name in names if name.partition(".")[0] in MODULES)
            yield from (a.name for a in node.names if a.name in ATTRIBUTES)
        elif isinstance(node, ast.Name) and node.id in CALLS:
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield node.arg


@pytest.mark.parametrize("room", ROOMS)
def test_what_receives_has_nothing_that_unpickles(room: str) -> None:
    paths = sorted((ROOT / "plugrl_gym" / room).rglob("*.py"))
    assert paths
    found = {
        f"{path.name}: {opening}"
        for path in paths
        for opening in openings(Path(path).read_text(encoding="utf-8"))
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    import marshal",
        "from pickle import loads",
        "from numpy import load",
        "import numpy as np\nnp.load(file)",
        "np.lib.format.read_array(file)",
        "f(file, allow_pickle=True)",
        "eval(text)",
        "__import__('pickle')",
        "torch.load(file)",
    ],
)
def test_every_way_to_unpickle_is_seen(source: str) -> None:
    assert list(openings(source))


def test_no_frame_reaches_a_pickle() -> None:
    finished = run("-m", "tests.support.unpickling")
    assert finished.code == 0, finished.stderr
    *shown, line = finished.stdout.splitlines()
    told = json.loads(line)
    assert told["caught"] == {}
    assert told["frames"] > 4000
    assert told["taken"] > 200  # payloads where any bytes may stand
    assert told["closed"] == told["sent"] > 50
    # The traps do spring: these pickles were opened by the program itself, at the end.
    assert shown == ["a pickle was opened"] * 2
    assert {"pickle.loads", "pickle.find_class", "np.load", "exec"} <= set(told["control"])
