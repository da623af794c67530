"""The reference that ``make docs`` makes of docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import plugrl_gym
from tests.support.commands import ROOT, run

# Rooms with names for the rest of the package alone.
INTERNAL = {"display"}


def public_rooms() -> Iterator[str]:
    """The packages right below plugrl_gym that say what is public in them."""
    for path in (ROOT / "plugrl_gym").glob("*/__init__.py"):
        if "__all__" in path.read_text(encoding="utf-8") and path.parent.name not in INTERNAL:
            yield path.parent.name


def test_the_reference_is_made_of_public_modules_without_a_warning(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    command = "-W error .ci/docs.py --out build/docs"
    assert f"$(BIN)/python {command}\n" in makefile
    finished = run(*command.split()[:-1], tmp_path, seconds=240)
    assert (finished.code, finished.stderr) == (0, "")
    assert finished.stdout == f"{tmp_path / 'index.html'}\n"
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    rooms = {page.removeprefix("plugrl_gym/").removesuffix(".html") for page in pages}
    others = {"index", "plugrl_gym", "errors", "agents/random_agent", "agents/sb3"}
    assert rooms == others | set(public_rooms())
    front = (tmp_path / "plugrl_gym.html").read_text(encoding="utf-8")
    assert not {name for name in plugrl_gym.__all__ if f'id="{name}"' not in front}
    text = "".join((tmp_path / page).read_text(encoding="utf-8") for page in pages)
    assert not re.findall(r":(?:class|meth|func|data|attr|mod|exc):", text)
    assert 'href="client.html' in text or 'href="#PlugRLVectorEnv' in text
