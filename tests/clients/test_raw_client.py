"""The two probe clients keep SPEC.md, and each bug of the raw client is noticed.

Every scenario is a scripted server (grader.py). Without a bug the clients pass all that they can
run; each bug fails the scenario named for it in NOTICED_BY.
"""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.clients.grader import BAD_ANSWERS, RESYNC, STOP, End, Grader, Script, grading
from tests.support.programs import ROOT, program, reference_server

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import raw_client  # noqa: E402
import raw_client_bugs  # noqa: E402

ALL = raw_client.FEATURES
OTHER_CLOSES = {
    "timeout": (1001, "Feedback timeout"),
    "shutdown": (1001, "Server shutdown"),
    "crash": (1011, "Internal server error."),
    "other": (4000, "what else"),
}


@dataclass
class Scenario:
    """A script, the client's options for it, and how the client must end."""

    script: Script
    options: dict[str, Any] = field(default_factory=dict)
    code: int = 0
    says: str = ""
    connections: int | None = None  # None: one for each end of the script


def bad_metadata(**data: Any) -> Scenario:
    frame = {"message_type": "metadata", "data": data}
    return Scenario(Script([End([frame], at="greeting")]), code=1)


def no_metadata(frame: Any, says: str = "") -> Scenario:
    return Scenario(Script([End([frame], at="greeting")]), code=1, says=says)


def reconnecting(how: Any) -> Scenario:
    """Closes in every state, and then once more after a while; H = 1 shows lost steps."""
    ends = [End(how, exchange, at) for at in ("infer", "action") for exchange in (1, 2, 3, 6)]
    return Scenario(Script([*ends, End(how, 4, "action"), End()], horizon=1), {"num_envs": 5})


SCENARIOS: dict[str, Scenario] = {
    "basic": Scenario(Script([End(exchange=40)]), {"num_envs": 5}),
    "one env": Scenario(Script([End(exchange=20)]), {"num_envs": 1}),
    "many envs": Scenario(Script([End(exchange=40)], horizon=4), {"num_envs": 20}),
    "horizon 1": Scenario(Script([End(exchange=40)], horizon=1), {"num_envs": 5}),
    "horizon 20": Scenario(Script([End(exchange=40)], horizon=20), {"num_envs": 5}),
    "pings": Scenario(Script([End(exchange=3)], pings=True)),
    "pings while stepping slowly": Scenario(
        Script([End(exchange=3)], pings=True), {"slow_step": 0.2}),
    "stop after an action": Scenario(Script([End(exchange=5, at="action")])),
    "no known metadata": Scenario(Script([End(exchange=9)], metadata=dict.fromkeys(
        ("protocol_version", "action_horizon", "action_dim", "features"), ...))),
    "no env_ids": Scenario(Script([End(exchange=9)], env_ids=False), {"num_envs": 5}),
    **{f"{dtype} actions": Scenario(Script([End(exchange=9)], dtype=dtype), {"num_envs": 5})
       for dtype in ("<f4", ">f4", ">f8", "<i4", ">i8", "<u2", ">u4")},
    "float16 actions": Scenario(Script([End(exchange=9)], dtype="<f2", horizon=1)),
    "int8 actions": Scenario(Script([End(exchange=9)], dtype="|i1", horizon=1)),
    "discrete actions": Scenario(Script([End(exchange=9)], shape=(), dtype="<i8"), {"num_envs": 4}),
    "matrix actions": Scenario(Script([End(exchange=9)], shape=(2, 3)), {"num_envs": 4}),
    "features": Scenario(
        Script([End(exchange=40)], features=ALL), {"num_envs": 5, "features": ALL}),
    "features without a dimension": Scenario(
        Script([End(exchange=9)], features=ALL, metadata={"action_dim": ...}), {"features": ALL}),
    "features offered": Scenario(Script([End(exchange=9)], features=ALL)),
    "features not offered": Scenario(Script([End(exchange=9)]), {"features": ALL}),
    **{feature: Scenario(
        Script([End(exchange=40)], features=(feature,)), {"num_envs": 5, "features": ALL})
        for feature in ALL},
    "features and resync": Scenario(
        Script([End(RESYNC, 7, "action"), End(RESYNC, 6), End(exchange=9)], features=ALL),
        {"num_envs": 5, "features": ALL}),
    "resync": Scenario(
        Script([End(RESYNC, 7, "action"), End(RESYNC, 9), End()]), {"num_envs": 5}),
    "resync everywhere": reconnecting(RESYNC),
    "loss everywhere": reconnecting("drop"),
    **{name: Scenario(Script([End(how, 4, "action"), End()], horizon=1))
       for name, how in OTHER_CLOSES.items()},
    "prefix": Scenario(Script([End(exchange=40)], horizon=4, run=2), {"num_envs": 5, "run": 2}),
    "done": Scenario(Script([End(exchange=10**6)], leaves=True), {"max_steps": 60}),
    "text": Scenario(Script([End(["boom"], 5)]), code=1, says="text frame"),
    "text for metadata": no_metadata("boom", "text frame"),
    "openpi": no_metadata({"action_horizon": 3}, "openpi"),
    "an action for metadata": no_metadata({"message_type": "action", "data": {}}),
    "undecodable metadata": no_metadata(b"\xc1"),
    "version 2": bad_metadata(protocol_version=2),
    "metadata of another type": bad_metadata(action_dim="3"),
    "features of another type": bad_metadata(features="gym-spaces"),
    "nil metadata": bad_metadata(server=None),
    "refusal": Scenario(Script([End((1008, "dqn needs Discrete actions, env has Box(2,)"), 1)]),
                        code=1, says="dqn needs Discrete actions, env has Box(2,)"),
    "401": Scenario(Script([], status=HTTPStatus.UNAUTHORIZED), code=1, says="401", connections=1),
    "404": Scenario(Script([], status=HTTPStatus.NOT_FOUND), code=1, says="404", connections=1),
    **{f"bad answer: {name}": Scenario(
        Script([End(frames, 1)], metadata={"action_horizon": ..., "action_dim": ...}),
        {"num_envs": 1}, code=1)
       for name, frames in BAD_ANSWERS.items()},
}  # fmt: skip
SCENARIOS["float16 actions"].options = SCENARIOS["int8 actions"].options = {"num_envs": 3}


def judge(grader: Grader, scenario: Scenario, code: int, output: str) -> None:
    """Everything that can go wrong in a scenario."""
    grader.settle()
    assert not grader.violations, grader.violations
    assert code == scenario.code, output
    assert scenario.says in output
    assert "Traceback" not in output
    wanted = scenario.connections
    assert grader.connections == (len(scenario.script.ends) if wanted is None else wanted)


def run_raw_client(name: str, bug: str | None = None) -> None:
    """The raw client in a thread of this process, against one scenario."""
    scenario, said, codes = SCENARIOS[name], [], []
    script = scenario.script
    if bug:  # many of them are noticed by silence; without a bug no wait is ever so long
        script = replace(script, patience=2.0, quiet=3.0 if bug == "speaks-first" else 0.1)
    with grading(script) as grader:
        options = {"host": "127.0.0.1", "port": grader.port, "num_envs": 3, "features": ()}
        options |= {"run": None, "max_steps": math.inf, "slow_step": 0, "reconnects": 20}
        options |= {"timeout": 5, "action_dim": 0} | scenario.options
        overrides = raw_client_bugs.DEVIATIONS[bug][1] if bug else {}
        overrides = {"say": lambda _, sentence: said.append(sentence), **overrides}
        client = type("ThisClient", (raw_client.Client,), overrides)
        thread = threading.Thread(
            target=lambda: codes.append(client(argparse.Namespace(**options)).run()), daemon=True
        )
        thread.start()
        thread.join(6 if bug else 30)
        assert not thread.is_alive(), "the client goes on"
        assert codes, "the client raised"
        judge(grader, scenario, codes[0], "\n".join(said))


@pytest.mark.parametrize("name", SCENARIOS)
def test_raw_client_keeps_the_rules(name: str) -> None:
    run_raw_client(name)


# ------------------------------------------------------------------------------------- bugs


def named(bugs: Iterable[str], *scenarios: str) -> dict[str, list[str]]:
    """Bugs that the same scenarios notice."""
    return {bug: list(scenarios) for bug in bugs}


NOTICED_BY: dict[str, list[str]] = {
    **named(raw_client_bugs.MESSAGES, "basic"),
    **named(raw_client_bugs.OBSERVATION, "basic"),
    **named(raw_client_bugs.FEEDBACK, "basic"),
    **named(raw_client_bugs.FEATURE_USE, "features"),
    **named(("offers-compression", "caps-size", "speaks-first", "text-frames", "trailing-bytes",
             "bin-keys", "refuses-unknown-metadata"), "basic"),
    "no-pong": ["pings while stepping slowly"],
    "needs-metadata": ["no known metadata"],
    "any-metadata": ["version 2", "metadata of another type"],
    "leave-code": ["done"],
    "dies-on-resync": ["resync"],
    "dies-on-timeout": ["timeout"],
    "dies-on-shutdown": ["shutdown"],
    "dies-on-1011": ["crash"],
    "dies-on-loss": ["loss everywhere"],
    **named(("returns-after-stop", "stop-exit-code", "lingers-after-stop"), "basic"),
    **named(("returns-after-refusal", "refusal-exit-code", "refusal-unsaid"), "refusal"),
    **named(("ignores-text", "answers-text", "returns-after-text", "text-exit-code"), "text"),
    **named(("returns-after-error", "error-exit-code", "error-close-code"), "bad answer: nan"),
    "keeps-feedback": ["resync"],
    "keeps-chunks": ["resync"],
    "keeps-ended-episodes": ["resync everywhere"],
    "resets-on-close": ["resync everywhere"],
    "reads-float32": [">f4 actions", "basic", "<i4 actions"],
    "reads-little-endian": [">f4 actions"],
    "refuses-integers": ["<i4 actions"],
    "needs-env-ids": ["no env_ids"],
    "ignores-env-ids": ["bad answer: wrong ids"],
    "accepts-nan": ["bad answer: nan"],
    "accepts-other-shapes": ["bad answer: two columns"],
    **named(("fixed-order", "env-major", "backwards", "repeats-first", "skips-first",
             "runs-past-horizon", "runs-past-end"), "basic"),
    **named(("reuse-unoffered", "spaces-unoffered", "chunk-steps-unoffered",
             "executed-unoffered"), "basic"),
    "reuse-across-connections": ["features and resync"],
}  # fmt: skip


@pytest.mark.parametrize("bug", NOTICED_BY)
def test_bug_is_noticed(bug: str) -> None:
    for scenario in NOTICED_BY[bug]:
        with pytest.raises(AssertionError):
            run_raw_client(scenario, bug)


def test_every_bug_has_a_test() -> None:
    assert raw_client_bugs.BUGS.keys() - NOTICED_BY.keys() == {"leaves-abruptly", "retries-at-once"}


def test_client_that_leaves_abruptly_is_noticed() -> None:
    with grading(SCENARIOS["done"].script) as grader:
        options = ["--max-steps", "30", "--bug", "leaves-abruptly"]
        with program(
            str(HERE / "raw_client.py"), "127.0.0.1", str(grader.port), *options
        ) as client:
            assert client.wait() == 0
            grader.settle()
            assert grader.violations == ["left with None"]


def test_client_waits_longer_before_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(raw_client.time, "sleep", waits.append)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = argparse.Namespace(host="127.0.0.1", port=port, num_envs=1, reconnects=5, timeout=1)
    client = raw_client.Client(options)
    assert client.run() == 1
    assert waits == sorted(waits)
    assert waits[-1] > waits[0] > 0
    waits.clear()
    overrides = raw_client_bugs.DEVIATIONS["retries-at-once"][1]
    type("ThisClient", (raw_client.Client,), overrides)(options).run()
    assert waits == []


# --------------------------------------------------------------------------------- programs


@pytest.fixture(scope="session")
def probe_client(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The C++ client, built."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    built = tmp_path_factory.mktemp("probe") / "probe_client"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [compiler, *flags, "-o", built, HERE / "probe_client.cpp"], check=True, timeout=100
    )
    return str(built)


BASE_ONLY = [name for name, s in SCENARIOS.items() if s.options.keys() <= {"num_envs", "max_steps"}]


@pytest.mark.parametrize("name", BASE_ONLY)
def test_probe_client_keeps_the_rules(name: str, probe_client: str) -> None:
    scenario = SCENARIOS[name]
    with grading(scenario.script) as grader:
        options = {"num_envs": 3} | scenario.options
        flags = [flag for k, v in options.items() for flag in (f"--{k}".replace("_", "-"), str(v))]
        with program(probe_client, "127.0.0.1", str(grader.port), *flags) as client:
            judge(grader, scenario, client.wait(20), client.output)


CLIENTS = {
    "raw": [str(HERE / "raw_client.py")],
    "raw with features": [str(HERE / "raw_client.py"), "--features=all"],
    "c++": [],
}


@pytest.mark.parametrize("horizon", ["1", "4"])
@pytest.mark.parametrize("name", CLIENTS)
def test_client_runs_to_the_stop_of_the_reference_server(
    name: str, horizon: str, request: pytest.FixtureRequest
) -> None:
    command = CLIENTS[name] or [request.getfixturevalue("probe_client")]
    with reference_server("--horizon", horizon, "--steps", "100") as (server, port):
        with program(command[0], "127.0.0.1", str(port), "--num-envs", "5", *command[1:]) as client:
            assert client.wait() == 0, client.output
            assert "the server ended the run" in client.output
        assert server.wait() == 0
        assert "resync" not in server.output


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_client_comes_back_to_a_server_that_was_ended(
    name: str, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    command = CLIENTS[name] or [request.getfixturevalue("probe_client")]
    with (
        reference_server("--steps", "100000000") as (server, port),
        program(command[0], "127.0.0.1", str(port), *command[1:]) as client,
    ):
        client.wait_for_line("connected")
        server.process.send_signal(number)
        server.wait()
        client.wait_for_line("broke" if number == signal.SIGKILL else "Server shutdown")
        with reference_server("--steps", "60", port=port) as (second, _):
            assert client.wait() == 0, client.output
            assert second.wait() == 0


@pytest.mark.parametrize("options", [
    ["127.0.0.1", "99999"], ["127.0.0.1", "1", "--num-envs", "0"],
    ["127.0.0.1", "1", "--features", "magic"], ["127.0.0.1", "1", "--bug", "x"],
])  # fmt: skip
def test_bad_option_is_exit_2(options: list[str]) -> None:
    with program(str(HERE / "raw_client.py"), *options) as client:
        assert client.wait() == 2
        assert "error:" in client.lines[-1]


def test_raw_client_imports_neither_numpy_nor_plugrl_gym() -> None:
    code = "import sys, raw_client_bugs; print({'numpy', 'plugrl_gym'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "set()", done.stderr
    assert ROOT in HERE.parents


def test_silent_server_is_given_up_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        options = ["--timeout", "0.2", "--reconnects", "1"]
        with program(str(HERE / "raw_client.py"), "127.0.0.1", port, *options) as client:
            assert client.wait() == 1
            assert "gave up" in client.lines[-1]
            assert "Traceback" not in client.output


def test_scenarios_end_with_a_stop_or_a_failure() -> None:
    for scenario in SCENARIOS.values():
        last = scenario.script.ends[-1].how if scenario.script.ends else None
        assert scenario.code == 1 or last == STOP
