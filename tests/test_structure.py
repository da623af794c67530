"""The house: who may import whom, what stays out, and the names that are public."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import plugrl_gym
from tests.support.commands import ROOT, environment

PACKAGE = ROOT / "plugrl_gym"

# A room -> the parts of plugrl_gym that its modules may import.
RULES: dict[str, set[str]] = {
    "errors": set(),
    "ledger": set(),
    "latency": set(),
    "notices": set(),
    "trust": {"errors"},
    "tls_socket": set(),
    "durations": {"errors"},
    "display": {"display"},
    "protocol": {"protocol", "errors"},
    "spaces": {"spaces", "protocol", "errors"},
    "client": {
        *("client", "spaces", "protocol", "ledger", "latency", "notices", "trust", "tls_socket"),
        *("durations", "display", "errors"),
    },
    "server": {"server", "spaces", "protocol", "ledger", "latency", "durations", "errors"},
    "agents": {"agents", "server", "spaces", "protocol", "errors"},
    "broker": {
        *("broker", "agents", "server", "spaces", "protocol", "notices", "durations", "errors")
    },
    "conformance": {"conformance", "protocol", "trust", "tls_socket", "durations", "errors"},
    "plotting": {"plotting", "errors"},
    "commands": {"commands", "client", "server", "agents", "conformance", "display", "errors"},
    "serve": {"commands", "server", "display", "errors"},
    "rollout": {"commands", "client", "display", "errors"},
    "train": {"commands", "agents", "plotting", "display", "errors"},
    "plot": {"commands", "plotting", "errors"},
    "__main__": {"commands", "__version__"},
    "local": {"commands", "serve", "server", "durations", "errors"},
    "__init__": {"broker", "client", "local", "errors"},
}

# Somebody else's package -> the rooms that must do without it; "but" names exceptions.
SANS_IO = {"socket", "ssl", "select", "selectors", "asyncio", "threading", "time", "websockets"}
FORBIDDEN = {
    "protocol": {*SANS_IO, "gymnasium", "torch", "stable_baselines3", "subprocess", "random"},
    "spaces": {*SANS_IO, "torch", "stable_baselines3"},
    "client": {"asyncio", "torch", "stable_baselines3"},
    "server": {"gymnasium", "torch", "stable_baselines3"},
    "conformance": {"gymnasium", "torch", "stable_baselines3"},
    "plotting": {*SANS_IO, "gymnasium", "torch", "stable_baselines3"},
    "commands": {"torch", "stable_baselines3"},
    "agents": {*SANS_IO, "torch", "stable_baselines3"},
    "broker": {"torch", "stable_baselines3", "websockets"},
}
EXCEPTIONS = {
    "conformance/probe_env.py": {"gymnasium"},
    "agents/sb3": {"torch", "stable_baselines3"},
    "agents/sb3/runs/logs.py": {"time", "threading"},  # SB3's log tells of it, in any thread
}


def modules() -> Iterator[tuple[str, str, Path]]:
    """Every module: its room, its path within the package, the file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        inner = path.relative_to(PACKAGE)
        yield inner.parts[0].removesuffix(".py"), inner.as_posix(), path


def imported(path: Path, source: str | None = None) -> Iterator[str]:
    """The dotted name of everything that a module imports, also in functions and for types."""
    package = ".".join(path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(source or path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", sorted({room for room, _, _ in modules()}))
def test_a_room_imports_only_what_it_may_know(room):
    assert room in RULES, f"say in RULES what {room} may import"
    found = {
        f"{inner} imports {name}"
        for its_room, inner, path in modules()
        if its_room == room
        for name in imported(path)
        if name.partition(".")[0] == "plugrl_gym" and name.split(".")[1] not in RULES[room]
    }
    assert not found


@pytest.mark.parametrize("room", sorted(FORBIDDEN))
def test_a_room_does_without_what_is_not_its_business(room):
    found = set()
    for its_room, inner, path in modules():
        if its_room == room:
            allowed = set().union(*(v for k, v in EXCEPTIONS.items() if inner.startswith(k)))
            tops = {name.partition(".")[0] for name in imported(path)}
            found |= {f"{inner} imports {top}" for top in tops & FORBIDDEN[room] - allowed}
    assert not found


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import a.b", "a.b"),
        ("from a import b", "a.b"),
        ("def f():\n    import torch", "torch"),
        ("from . import rows", "plugrl_gym.client.rows"),
        ("from ..server import app", "plugrl_gym.server.app"),
    ],
)
def test_the_rules_see_every_way_to_import(source, name):
    assert list(imported(PACKAGE / "client" / "imagined.py", source)) == [name]


def test_the_reference_server_imports_nothing_of_the_package():
    path = ROOT / "servers" / "reference_server.py"
    assert "plugrl_gym" not in {name.partition(".")[0] for name in imported(path)}


def test_the_smallest_sb3_server_is_small_and_uses_the_public_api_only():
    path = ROOT / "servers" / "sb3_server.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 100
    ours = {name.rpartition(".")[0] for name in imported(path) if name.startswith("plugrl_gym")}
    assert ours <= {"plugrl_gym", "plugrl_gym.server", "plugrl_gym.agents.sb3"}


def test_the_trainer_to_copy_uses_the_public_api_only():
    path = ROOT / "servers" / "ppo_trainer.py"
    ours = {name for name in imported(path) if name.startswith("plugrl_gym")}
    assert ours == {"plugrl_gym.RemoteVectorEnv"}


def test_an_import_of_the_package_or_its_commands_loads_no_torch():
    program = (
        "import sys, plugrl_gym, plugrl_gym.__main__\n"
        "import plugrl_gym.serve, plugrl_gym.rollout, plugrl_gym.train, plugrl_gym.plot\n"
        "print(sorted({'torch', 'stable_baselines3', 'matplotlib', 'pygame'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_nothing_named_servers_or_tests_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["plugrl_gym"]}
    assert not (PACKAGE / "servers").exists()
    assert not (PACKAGE / "tests").exists()


def test_the_public_names_are_these():
    assert plugrl_gym.__all__ == [
        "ClientStatistics",
        "ConnectTimeout",
        "ConnectionFailed",
        "ConnectionLost",
        "EnvBroker",
        "LocalProtocolError",
        "PlugRLError",
        "PlugRLVectorEnv",
        "ProtocolError",
        "RemoteProtocolError",
        "RemoteVectorEnv",
        "ReplyTimeout",
        "RunFailed",
        "RunFinished",
        "RunSummary",
        "ServerRefused",
        "UnsupportedSpace",
        "UsageError",
        "__version__",
        "local_server",
    ]
    assert all(hasattr(plugrl_gym, name) for name in plugrl_gym.__all__)


def test_the_version_is_told_in_one_voice():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == plugrl_gym.__version__
    assert f"## {plugrl_gym.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_modules_are_readable_in_one_sitting():
    sizes = {inner: len(path.read_text("utf-8").splitlines()) for _, inner, path in modules()}
    assert not {inner: size for inner, size in sizes.items() if size > 500}
