"""The reference server keeps SPEC.md, and each of its bugs is noticed by the check meant for it.

Without a bug every check passes; under each bug the checks in NOTICED_BY fail.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.servers.checks import CHECKS, RESYNC, STOP, Running, reference_bugs, running
from tests.servers.messages import HUGE_U0, array_with, infer, spaces, spoiled
from tests.support.programs import program, reference_server


def named(bugs: Iterable[str], *checks: str) -> dict[str, list[str]]:
    """Bugs that the same checks notice."""
    return {bug: list(checks) for bug in bugs}


ANSWERS = "server_answers_the_envs_asked_for"
GREETS = "server_speaks_first_and_once"
NOTICED_BY: dict[str, list[str]] = {
    **named(
        ["no-metadata", "metadata-twice", "text-metadata", "metadata-list", "bad-features",
         "nil-metadata", "bad-utf8", "sends-extension", "sends-bin-key"], GREETS,
    ),
    "compression": ["server_declines_compression"],
    "refuses-keys": ["server_accepts_a_key"],
    **named([*reference_bugs.ACTION], ANSWERS),
    "action-twice": ["server_answers_once_and_feedback_never"],
    "replies-to-feedback": ["server_answers_once_and_feedback_never"],
    "eval-random": ["server_gives_an_evaluator_the_same_action_twice"],
    "max-size": ["server_takes_large_frames"],
    "needs-array-order": ["server_accepts_array_keys_in_any_order"],
    "needs-little-endian": ["server_accepts_big_endian"],
    "needs-no-order": ["server_accepts_any_order_of_bytes"],
    "needs-info-array": ["server_accepts_info_without_arrays"],
    "refuses-more-spaces": ["server_accepts_more_keys_in_spaces"],
    "needs-reused-names": ["server_accepts_reuse_of_all_with_empty_maps"],
    "needs-dimensions": ["server_accepts_any_info_of_one_row"],
    "needs-elements": ["server_accepts_empty_arrays_in_info"],
    "needs-characters": ["server_accepts_u0_text"],
    "needs-key-order": ["server_accepts_message_keys_in_any_order"],
    "refuses-unknown-keys": ["server_accepts_unknown_top_level_keys"],
    "needs-same-keys": ["server_accepts_new_state_keys", "server_accepts_lost_state_keys"],
    "dies-on-new-key": ["server_accepts_new_state_keys"],
    "needs-same-count": ["server_accepts_other_counts"],
    "needs-known-envs": ["server_accepts_new_envs"],
    "needs-sorted-envs": ["server_accepts_unsorted_envs"],
    "needs-dense-envs": ["server_accepts_gaps"],
    "needs-state": ["server_accepts_no_states"],
    "needs-float64": ["server_accepts_other_dtypes"],
    "needs-text-array": ["server_accepts_text_as_list"],
    "needs-int64": ["server_accepts_narrow_indices"],
    "reads-step-ids": ["server_accepts_any_step_ids"],
    "needs-lockstep": ["server_accepts_drifting_sets"],
    "needs-float32": ["server_accepts_float64_rewards"],
    "refuses-info": ["server_accepts_splittable_info"],
    "requires-info": ["server_accepts_empty_info"],
    "closes-on-nan": ["server_accepts_nan_in_feedback"],
    "closes-on-stale": ["server_accepts_stale_feedback"],
    "shared-indices": ["server_serves_two_clients_with_the_same_indices"],
    **named(["requires-spaces", "no-reply"], ANSWERS),
    "requires-reuse": ["server_accepts_drifting_sets"],
    "requires-chunk-steps": ["server_accepts_empty_info"],
    "requires-executed-actions": ["server_accepts_empty_info"],
    "refuses-spaces": ["server_accepts_spaces"],
    "refuses-reuse": ["server_accepts_reuse", "server_accepts_reuse_of_all"],
    "refuses-chunk-steps": ["server_accepts_chunk_steps"],
    "refuses-executed-actions": ["server_accepts_executed_actions"],
    "refuses-two-features": ["server_accepts_two_features"],
    "shared-reuse": ["server_forgets_a_connection"],
    "lenient-reuse": ["server_refuses_reuse-after-end", "server_refuses_reuse-mismatch"],
    **named(
        ["accepts-misfit", "refusal-code", "refusal-silent", "refusal-one-sided"],
        "server_refuses_a_misfit_with_both_sides",
    ),
    "lenient": ["server_refuses_undecodable", "server_refuses_negative-index"],
    "crash-on-info": ["server_refuses_unsplittable-info"],
    **named(
        ["resync-code", "resync-reason", "resync-as-stop", "resync-as-refusal", "resync-abrupt",
         "complains-first", "closes-others", "stops-on-error"], "server_refuses_text",
    ),
    "stalls-on-silent": ["server_serves_one_client_while_another_is_silent"],
    "ignores-pings": ["server_answers_pings"],
    **named(
        ["no-feedback-timeout", "timeout-reason", "idle-timeout"],
        "server_closes_on_the_feedback_timeout",
    ),
    **named(
        ["plain-stop", "stop-code", "plain-stop-once", "never-stops", "exit-code"],
        "server_stops_after_its_steps",
    ),
    "plain-shutdown": ["server_gives_its_reason_when_stopped"],
    **{f"accepts-{kind}": [f"server_refuses_{kind}"] for kind in reference_bugs.MALFORMED},
}  # fmt: skip


async def run_check(name: str, bug: str | None) -> None:
    async with running(bug) as server:
        await asyncio.wait_for(CHECKS[name](server), 60)


@pytest.mark.parametrize("name", CHECKS)
def test_reference_server_keeps_the_rule(name: str) -> None:
    asyncio.run(run_check(name, None))


# The bugs of encoding_bugs.py and conduct_bugs.py are the conformance suite's to notice.
@pytest.mark.parametrize("bug", NOTICED_BY)
def test_bug_is_noticed(bug: str) -> None:
    for name in NOTICED_BY[bug]:
        with pytest.raises((AssertionError, ConnectionClosed)):
            asyncio.run(run_check(name, bug))


def test_seed_bugs_keep_their_names() -> None:
    assert reference_bugs.BUGS.keys() >= {
        "no-metadata", "env-major", "no-env-ids", "wrong-horizon", "lenient", "crash-on-info",
        "plain-stop", "lenient-reuse",
    }  # fmt: skip
    assert all(len(what) < 80 and "\n" not in what for what in reference_bugs.BUGS.values())


# ------------------------------------------------------------------------------- the program


async def exchange(port: int, turns: int) -> tuple[int, str]:
    peers = Running(argparse.Namespace(options=argparse.Namespace(port=port)))
    async with peers.peer() as peer:
        for _ in range(turns):
            await peer.turn(0, 1)
        return await peer.closed()


def test_program_stops_after_its_steps_and_exits_0() -> None:
    with reference_server("--horizon", "2", "--action-dim", "3", "--steps", "6") as (server, port):
        assert asyncio.run(exchange(port, 3)) == STOP
        assert server.wait() == 0
        assert "stopped after 6 feedback rows" in server.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_program_that_is_stopped_says_so_and_exits_0(number: signal.Signals) -> None:
    async def wait_for_the_end(port: int, server: Any) -> tuple[int, str]:
        peers = Running(argparse.Namespace(options=argparse.Namespace(port=port)))
        async with peers.peer() as peer:
            await peer.turn()
            server.process.send_signal(number)
            return await peer.closed()

    with reference_server("--horizon", "2") as (server, port):
        assert asyncio.run(wait_for_the_end(port, server)) == (1001, "Server shutdown")
        assert server.wait() == 0


def test_program_with_a_bug_exits_with_its_code() -> None:
    with reference_server("--horizon", "2", "--steps", "2", "--bug", "exit-code") as (server, port):
        assert asyncio.run(exchange(port, 1)) == STOP
        assert server.wait() == 3


def test_port_in_use_is_one_sentence_and_exit_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with program("servers/reference_server.py", "--port", str(port)) as server:
            assert server.wait() == 2
            assert len(server.lines) == 1
            assert str(port) in server.output


@pytest.mark.parametrize("options", [["--bug", "nope"], ["--port", "99999"], ["--horizon", "0"]])
def test_bad_option_is_named_with_exit_2(options: list[str]) -> None:
    with program("servers/reference_server.py", *options) as server:
        assert server.wait() == 2
        assert options[1] in server.lines[-1]


def test_probes_of_the_port_leave_no_traceback() -> None:
    with reference_server("--horizon", "2", "--steps", "2") as (server, port):
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        assert answer.value.code == 426
        answer.value.close()
        assert asyncio.run(exchange(port, 1)) == STOP
        assert server.wait() == 0
        assert "Traceback" not in server.output


def test_small_frames_cause_no_large_allocation() -> None:
    def peak(server: Any) -> int:
        with open(f"/proc/{server.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

    async def attack(port: int) -> None:
        peers = Running(argparse.Namespace(options=argparse.Namespace(port=port)))
        nested = b"\xdd\x00\x10\x00\x00" * 900 + b"\xc0" * (1 << 20)
        paths = {"type": "Dict", "spaces": {"k" * 10**5: {"type": "Dict", "spaces": {
            str(i): {"type": "MultiBinary", "shape": [1]} for i in range(10**4)}}}}  # fmt: skip
        for bad in (
            nested,
            b"\xdd\xff\xff\xff\xff" * 100,
            spoiled(infer(), "env_indices", to=array_with(shape=[10**9])),
            spoiled(infer(), "data", "text", to=HUGE_U0),
            infer(spaces=spaces(observation=paths)),
        ):
            async with peers.peer() as peer:
                await peer.send(bad)
                assert await peer.closed() == RESYNC

    with reference_server("--horizon", "2") as (server, port):
        try:
            before = peak(server)
        except OSError:
            pytest.skip("needs /proc")
        asyncio.run(attack(port))
        assert peak(server) - before < 100_000  # KiB
