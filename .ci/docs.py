"""The reference of the public modules, by pdoc: ``python -W error .ci/docs.py --out DIR``."""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path

import pdoc
from jinja2 import pass_context
from jinja2.runtime import Context
from stable_baselines3.common.callbacks import BaseCallback

from plugrl_gym.agents.sb3 import agent

MODULES = (
    "plugrl_gym",
    "plugrl_gym.client",
    "plugrl_gym.server",
    "plugrl_gym.broker",
    "plugrl_gym.agents.random_agent",
    "plugrl_gym.agents.sb3",
    "plugrl_gym.plotting",
    "plugrl_gym.conformance",
    "plugrl_gym.protocol",
    "plugrl_gym.spaces",
    "plugrl_gym.errors",
)

# :class:`~plugrl_gym.client.loop.RunSummary` -> `RunSummary`, which pdoc makes a link.
ROLE = re.compile(r":[a-z]+:`~?(?:[\w.]+\.)?(\w+)`")

_to_markdown = pdoc.render.env.filters["to_markdown"]


@pass_context
def to_markdown(context: Context, docstring: str) -> str:
    """A docstring as Markdown, which knows no roles."""
    return str(_to_markdown(context, ROLE.sub(r"`\1`", docstring)))


def resolve(module_name: str) -> None:
    """Load what a module imports late; pdoc looks only at what is there."""
    module = import_module(module_name)
    for name in module.__all__:
        setattr(module, name, getattr(module, name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    out: Path = parser.parse_args().out
    for name in MODULES:
        resolve(name)
    # Stable-Baselines3's MaybeCallback names the class, but not where it is.
    vars(agent)["BaseCallback"] = BaseCallback
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.render.env.filters["to_markdown"] = to_markdown
    pdoc.pdoc(*MODULES, output_directory=out)
    print(f"{out / 'index.html'}")


if __name__ == "__main__":
    main()
