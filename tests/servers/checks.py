"""What a PlugRL server must do, as coroutines that talk to one and assert a rule each."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.servers.messages import (
    ACTIONS,
    BOX,
    DA,
    FEEDBACKS,
    INFERS,
    MIXED,
    MIXED_OBSERVATION,
    REUSE_ALL,
    STEPS,
    TWO,
    H,
    feedback,
    infer,
    observation,
    spaces,
)
from tests.servers.wire import array_map, decode, encode
from tests.support.programs import ROOT

sys.path.insert(0, str(ROOT / "servers"))

import reference_bugs
import reference_server as reference

RESYNC = (1001, "plugrl-server-resync")
STOP = (1001, "plugrl-server-stop")
PATIENCE = 4.0  # seconds for an answer that a working server gives at once


class Peer:
    """One raw connection whose metadata has been read."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self.metadata: dict[str, Any] = {}

    async def send(self, message: Any) -> None:
        frame = message if isinstance(message, str | bytes) else encode(message)
        with contextlib.suppress(ConnectionClosed):  # how it closed is read later
            await self.websocket.send(frame)

    async def receive(self) -> Any:
        try:
            frame = await asyncio.wait_for(self.websocket.recv(), PATIENCE)
        except TimeoutError:
            raise AssertionError("no answer") from None
        except ConnectionClosed as closed:
            raise AssertionError(f"closed: {closed}") from None
        return decode(frame)

    async def ask(self, message: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        """Send an infer; its checked action."""
        message = message or infer(**changes)
        await self.send(message)
        answer = await self.receive()
        assert answer["message_type"] == "action"
        assert answer["data"].keys() == {"env_ids", "action"}
        ids, action = answer["data"]["env_ids"], answer["data"]["action"]
        assert isinstance(ids, np.ndarray)
        assert isinstance(action, np.ndarray)
        assert ids.dtype == np.int64
        wanted = message["env_indices"]
        if isinstance(wanted, np.ndarray):
            assert ids.tolist() == wanted.tolist()
        assert action.shape == (H, len(ids), DA)
        assert action.dtype.kind == "f"
        assert np.isfinite(action).all()
        return answer["data"]

    async def feed(self, message: dict[str, Any] | None = None, **changes: Any) -> None:
        await self.send(message or feedback(**changes))

    async def turn(self, *envs: int) -> None:
        """One whole exchange, and the proof that the server went on after it."""
        envs = envs or (0,)
        await self.ask(envs=envs)
        await self.feed(envs=envs)

    async def closed(self) -> tuple[int, str]:
        """Code and reason of a close that must come without another message."""
        try:
            frame = await asyncio.wait_for(self.websocket.recv(), PATIENCE)
        except TimeoutError:
            raise AssertionError("not closed") from None
        except ConnectionClosed as closed:
            if closed.rcvd is None:
                raise AssertionError("dropped without a close frame") from None
            return closed.rcvd.code, closed.rcvd.reason
        raise AssertionError(f"a message instead of a close: {frame!r:.80}")

    async def quiet(self) -> None:
        """Nothing has come: a pong overtakes no message, so one round trip settles it."""
        pong = await self.websocket.ping()
        await asyncio.wait_for(pong, PATIENCE)
        with contextlib.suppress(TimeoutError):
            frame = await asyncio.wait_for(self.websocket.recv(), 0.02)
            raise AssertionError(f"a message that nobody asked for: {frame!r:.80}")


class Running:
    """A server in this event loop."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.url = f"ws://127.0.0.1:{server.options.port}"

    @contextlib.asynccontextmanager
    async def peer(self, **settings: Any) -> AsyncIterator[Peer]:
        settings = {"compression": None, "max_size": None, "proxy": None, **settings}
        async with connect(self.url, ping_interval=None, close_timeout=1, **settings) as websocket:
            peer = Peer(websocket)
            peer.metadata = await peer.receive()
            yield peer


@contextlib.asynccontextmanager
async def running(bug: str | None, **changes: Any) -> AsyncIterator[Running]:
    options = {"host": "127.0.0.1", "port": 0, "horizon": H, "action_dim": DA, "steps": 10**9}
    deviation = bug and reference_bugs.DEVIATIONS[bug]
    options |= {"api_key": None, "feedback_timeout": 30.0, "bug": deviation, **changes}
    server = reference.ReferenceServer(argparse.Namespace(**options))
    task = asyncio.create_task(server.run())
    await asyncio.wait_for(server.listening.wait(), 10)
    try:
        yield Running(server)
    finally:
        server.shut_down()
        await asyncio.wait_for(task, 10)


# ------------------------------------------------------------------------------------ checks

Check = Callable[[Running], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


@check
async def server_speaks_first_and_once(running: Running) -> None:
    async with running.peer() as peer:
        assert peer.metadata["message_type"] == "metadata"
        await peer.quiet()
        data = peer.metadata["data"]
        assert isinstance(data, dict)
        assert data["action_horizon"] == H
        assert data["action_dim"] == DA
        assert isinstance(data["features"], list)
        assert None not in data.values()


@check
async def server_answers_the_envs_asked_for(running: Running) -> None:
    async with running.peer() as peer:
        for envs in ((4, 1, 7), (1,), (2**40, 0)):
            await peer.turn(*envs)


@check
async def server_answers_once_and_feedback_never(running: Running) -> None:
    async with running.peer() as peer:
        await peer.ask()
        await peer.quiet()
        await peer.feed()
        await peer.quiet()


@check
async def server_declines_compression(running: Running) -> None:
    async with running.peer(compression="deflate") as peer:
        assert peer.websocket.response is not None
        assert "permessage-deflate" not in str(peer.websocket.response.headers)


@check
async def server_accepts_a_key(running: Running) -> None:
    try:
        async with running.peer(additional_headers={"Authorization": "Api-Key k"}) as peer:
            await peer.turn()
    except InvalidStatus as error:
        raise AssertionError(str(error)) from None


@check
async def server_takes_large_frames(running: Running) -> None:
    async with running.peer() as peer:
        large = observation(1) | {"images": {"camera": np.zeros((1, 1200, 1000, 3), np.uint8)}}
        await peer.ask(data=large)


@check
async def server_answers_pings(running: Running) -> None:
    async with running.peer() as peer:
        for step in (peer.ask, peer.feed):
            pong = await peer.websocket.ping()
            try:
                await asyncio.wait_for(pong, PATIENCE)
            except TimeoutError:
                raise AssertionError("no pong") from None
            await step()


def accepts(name: str, *messages: dict[str, Any]) -> None:
    """A check: the server serves a client that sends these, infer and feedback in turn."""

    async def checks(running: Running) -> None:
        async with running.peer() as peer:
            for message in copy.deepcopy(messages):
                if message["message_type"] == "infer":
                    await peer.ask(message)
                else:
                    await peer.feed(message)
            if messages[-1]["message_type"] == "feedback":
                await peer.ask()

    CHECKS[f"server_accepts_{name}"] = checks


def backwards(value: dict[Any, Any]) -> dict[Any, Any]:
    return dict(reversed(value.items()))


accepts("array_keys_in_any_order", infer(env_indices=backwards(array_map([0], "<i8"))))
accepts("message_keys_in_any_order", backwards(infer()), backwards(feedback()))
accepts("unknown_top_level_keys", infer(novelty=1), feedback(novelty={"x": 1}))
accepts("big_endian", infer(step_ids=array_map([0], ">i8"), env_indices=array_map([0], ">u2")))
accepts("any_order_of_bytes", infer(), feedback(terminated=array_map([False]) | {b"dtype": "<b1"}))
accepts("info_without_arrays", infer(), feedback(info={"note": "x", "nested": {"y": 1}}))
accepts("u0_text", infer(data=observation(1) | {"text": np.zeros(1, "<U0")[:0].reshape(0)} | {
    "text": {b"__ndarray__": True, b"data": b"", b"dtype": "<U0", b"shape": [1]}
}))  # fmt: skip
accepts("text_as_list", infer(data=observation(1) | {"text": ["pick"]}))
accepts("no_states", infer(data=observation(1) | {"states": {}}))
accepts("other_dtypes", infer(data=observation(1) | {"states": {
    "a": np.zeros((1, 2), np.float32), "b": np.ones((1, 1), bool),
    "c": array_map([[1]], ">u4")}}))  # fmt: skip
accepts("new_state_keys", infer(), feedback(), infer(data=observation(1) | {
    "states": {"s": np.zeros((1, 2)), "new": np.zeros((1, 1))}}))  # fmt: skip
accepts("lost_state_keys", infer(data=observation(1) | {
    "states": {"s": np.zeros((1, 2)), "old": np.zeros((1, 1))}}), feedback(), infer())  # fmt: skip
accepts("other_counts", infer((0, 1)), TWO, infer((1,)), feedback((1,)), infer((0, 1)))
accepts("new_envs", infer((0,)), feedback((0,)), infer((5,)))
accepts("unsorted_envs", infer((3, 0, 1)))
accepts("gaps", infer((3, 9)), feedback((9, 3)))
accepts("narrow_indices", infer(env_indices=np.array([7], np.uint8)))
accepts(
    "any_step_ids", infer(step_ids=np.array([-5], np.int16)), feedback(step_ids=np.array([2**33]))
)
accepts("drifting_sets", infer((0, 1, 2)), feedback((2, 0)), infer((0,)), feedback((1,)))
accepts("float64_rewards", infer(), feedback(rewards=np.ones(1)))
accepts("empty_info", infer(), feedback(info={}))
accepts("any_info_of_one_row", infer(), feedback(info={"a": "b", "nested": {"c": np.zeros(())}}))
accepts("splittable_info", infer((0, 1)), feedback((0, 1), info={
    "note": "x", "episode": {"r": np.zeros(2), "l": np.zeros(2, int)},
    "other": np.zeros(5)}))  # fmt: skip
accepts("empty_arrays_in_info", infer(), feedback(info={"none": np.zeros((0, 7))}))
accepts("scalars_in_info", infer(), feedback(info={
    "x": {b"__npgeneric__": True, b"data": 0.5, b"dtype": "<f4"},
    "y": {b"__npgeneric__": True, b"data": True, b"dtype": "|b1"}}))  # fmt: skip
accepts("nan_in_feedback", infer(), feedback(rewards=np.array([np.nan], np.float32)))
accepts("stale_feedback", infer(), feedback((0, 8)), infer(), feedback((8,)))
accepts("repeated_infer_of_a_held_env", infer((0, 1)), feedback((0,)), infer((0, 1)))

accepts("reuse", infer((0, 1)), feedback((0, 1)), infer((1, 2, 0), data=observation(1),
        reuse=np.array([True, False, True])))  # fmt: skip
accepts("reuse_of_all", infer((0, 1)), feedback((0, 1)),
        infer((1, 0), data=REUSE_ALL, reuse=np.array([True, True])))  # fmt: skip
accepts("reuse_of_all_with_empty_maps", infer(), feedback(),
        infer(data={"images": {}, "states": {}, "text": []}, reuse=np.array([True])))  # fmt: skip
accepts("chunk_steps", infer((0, 1)), TWO | STEPS)
accepts("executed_actions", infer((0, 1)), TWO | ACTIONS)
accepts("two_features", infer((0, 1)), TWO | STEPS | ACTIONS)
accepts("spaces", infer(spaces=spaces()), feedback())
accepts("more_keys_in_spaces", infer(spaces=spaces(env_id="E-v1", mode="eval", more=1)))
accepts("reuse_after_spaces", infer(spaces=spaces()), feedback(),
        infer(data=REUSE_ALL, reuse=np.array([True])))  # fmt: skip
accepts("every_kind_of_space", infer(spaces=spaces(observation=MIXED), data=MIXED_OBSERVATION))


def refuses(kind: str) -> None:
    """A check: every malformed message of a kind closes its connection, and harms no other."""

    async def after_infer(running: Running, bystander: Peer, bad: Any) -> None:
        async with running.peer() as peer:
            await peer.ask(envs=(0, 1))
            await peer.send(bad)
            assert await peer.closed() == RESYNC, f"{bad!r:.300}"
            await bystander.turn()

    async def at_first(running: Running, bystander: Peer, bad: Any) -> None:
        async with running.peer() as peer:
            await peer.send(bad)
            assert await peer.closed() == RESYNC, f"{bad!r:.300}"
            await bystander.turn()

    async def checks(running: Running) -> None:
        async with running.peer() as bystander:
            for bad in INFERS.get(kind, []):
                await at_first(running, bystander, bad)
            for bad in FEEDBACKS.get(kind, []):
                await after_infer(running, bystander, bad)

    CHECKS[f"server_refuses_{kind}"] = checks


for kind in reference_bugs.MALFORMED:
    refuses(kind)


def refuses_last(kind: str, *messages: dict[str, Any]) -> None:
    """A check: the last of a series of messages is one too many."""

    async def checks(running: Running) -> None:
        async with running.peer() as peer:
            for message in messages[:-1]:
                await (peer.ask if message["message_type"] == "infer" else peer.feed)(message)
            await peer.send(messages[-1])
            assert await peer.closed() == RESYNC

    CHECKS[f"server_refuses_{kind}"] = checks


WIDE = observation(1) | {"states": {"s": np.zeros((1, 3))}}
refuses_last("two-feedbacks-in-a-row", infer(), feedback(), feedback())
refuses_last("reuse-without-feedback", infer(), feedback(),
             infer((1,), data=REUSE_ALL, reuse=np.array([True])))  # fmt: skip
refuses_last("reuse-after-end", infer(), feedback(ended=True),
             infer(data=REUSE_ALL, reuse=np.array([True])))  # fmt: skip
refuses_last("reuse-mismatch", infer((0, 1)), feedback((0, 1)),
             infer((0, 1), data=WIDE, reuse=np.array([True, False])))  # fmt: skip
refuses_last("reuse-of-a-nan", infer(),
             feedback(obs=observation(1) | {"states": {"s": np.full((1, 2), np.nan)}}),
             infer(data=REUSE_ALL, reuse=np.array([True])))  # fmt: skip
refuses_last("late-spaces", infer(), feedback(), infer(spaces=spaces()))
refuses_last("other-layout", infer(spaces=spaces()), feedback(obs=WIDE))


@check
async def server_forgets_a_connection(running: Running) -> None:
    async with running.peer() as peer:
        await peer.turn()
        await peer.ask()
        await peer.quiet()
    async with running.peer() as peer:
        await peer.send(infer(data=REUSE_ALL, reuse=np.array([True])))
        assert await peer.closed() == RESYNC


@check
async def server_serves_two_clients_with_the_same_indices(running: Running) -> None:
    async with running.peer() as one, running.peer() as two:
        for peer in (one, two, one, two):
            await peer.turn(0, 1)


@check
async def server_serves_one_client_while_another_is_silent(running: Running) -> None:
    async with running.peer(), running.peer() as peer:
        await peer.turn()


@check
async def server_closes_on_the_feedback_timeout(running: Running) -> None:
    running.server.options.feedback_timeout = 0.1
    async with running.peer() as idle, running.peer() as peer:
        await peer.ask()
        assert await peer.closed() == (1001, "Feedback timeout")
        await idle.ask()


@check
async def server_stops_after_its_steps(running: Running) -> None:
    running.server.options.steps = 3
    async with running.peer() as idle, running.peer() as peer:
        await peer.turn(0, 1)
        await peer.ask()
        await peer.feed()
        assert await peer.closed() == STOP
        assert await idle.closed() == STOP
    await asyncio.wait_for(running.server.done.wait(), 5)
    assert running.server.status == 0


@check
async def server_counts_neither_stale_nor_eval_nor_nan_rows(running: Running) -> None:
    running.server.options.steps = 1
    async with running.peer() as peer, running.peer() as judge:
        await judge.ask(spaces=spaces(mode="eval"))
        await judge.feed()
        await peer.ask()
        await peer.feed(envs=(5,))
        await peer.ask()
        await peer.feed(rewards=np.array([np.inf]))
        await peer.ask()
        assert running.server.rows == 0


@check
async def server_gives_its_reason_when_stopped(running: Running) -> None:
    async with running.peer() as peer:
        await peer.ask()
        running.server.shut_down()
        assert await peer.closed() == (1001, "Server shutdown")


@check
async def server_refuses_a_misfit_with_both_sides(running: Running) -> None:
    discrete = {"type": "Discrete", "n": 2, "start": 0, "dtype": "<i8"}
    wide = BOX | {"shape": [2, 2], "low": np.zeros((2, 2), "<f4"), "high": np.ones((2, 2), "<f4")}
    for action, name in ((discrete, "Discrete"), (wide, "Box(2, 2)")):
        async with running.peer() as peer:
            await peer.send(infer(spaces=spaces(action=action)))
            sentence = f"reference server sends Box(3,) actions, env has {name}"
            assert await peer.closed() == (1008, sentence)
            assert len(sentence.encode()) <= 123


@check
async def server_gives_an_evaluator_the_same_action_twice(running: Running) -> None:
    async with running.peer() as peer:
        first = await peer.ask(spaces=spaces(mode="eval"))
        await peer.feed()
        second = await peer.ask()
        assert (first["action"] == second["action"]).all()
