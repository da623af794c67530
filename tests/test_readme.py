"""The commands, links and snippets of the documents, as far as they can be taken at their word."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from plugrl_gym import plot, rollout, serve, train
from plugrl_gym.conformance import cli

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "SPEC.md", "notebooks/README.md"]
PARSERS = {
    "serve": serve._parser,
    "rollout": rollout._parser,
    "train": train._parser,
    "plot": plot._parser,
    "conformance": cli._parser,
}
_BLOCK = re.compile(r"```(sh|console)\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def commands() -> list[list[str]]:
    """Every command line, without what the shell does with it; ``...`` stands for what was said."""
    found = []
    for document in DOCUMENTS:
        for kind, block in _BLOCK.findall((ROOT / document).read_text(encoding="utf-8")):
            lines = block.replace("\\\n", " ").splitlines()
            if kind == "console":
                lines = [line[2:] for line in lines if line.startswith("$ ")]
            found += [shlex.split(line, comments=True) for line in lines]
    return [line for line in found if line]


def ours() -> list[tuple[str, list[str]]]:
    """Name and arguments of those that are this project's."""
    found = []
    for line in commands():
        words = [*line, ""]
        if words[:2] == ["python", "-m"] and words[2].startswith("plugrl_gym."):
            found.append((words[2].removeprefix("plugrl_gym."), line[3:]))
        elif words[0] == "plugrl-gym":
            found.append((words[1], line[2:]))
    return found


@pytest.mark.parametrize(("name", "arguments"), ours(), ids=lambda value: str(value)[:60])
def test_a_command_is_one_that_the_program_understands(name: str, arguments: list[str]) -> None:
    PARSERS[name]().parse_args(arguments)


def test_there_are_commands_of_every_kind() -> None:
    assert {name for name, _ in ours()} == set(PARSERS)


def test_each_make_target_that_is_named_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {line[1] for line in commands() if line[0] == "make"}
    assert {"demo", "test"} <= targets
    for target in targets:
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_link_leads_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for link in _LINK.findall(text):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), link
        if heading:
            lines = target.read_text(encoding="utf-8").splitlines()
            names = [line.lstrip("# ").lower() for line in lines if line.startswith("#")]
            assert heading in [re.sub(r"[^\w -]", "", name).replace(" ", "-") for name in names]
