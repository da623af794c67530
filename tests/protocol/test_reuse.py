"""``reuse-feedback-obs``: the server fills in what the client left out (SPEC 9.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from plugrl_gym.errors import RemoteProtocolError
from plugrl_gym.protocol import ClientProtocol, Infer, Observation, ServerProtocol, encode
from tests.support.messages import acting, connect, feedback, infer, observation


def row(env: int, kind: str = "kept") -> list[float]:
    """What env ``env`` shows: a number that nobody else has."""
    return [100.0 * env, 1.0 if kind == "kept" else 2.0]


def shows(*rows: list[float], text: Sequence[str] | None = None) -> Observation:
    array = np.array(rows, dtype=np.float64).reshape(len(rows), 2)
    return Observation(states={"obs": array}, text=[""] * len(rows) if text is None else text)


def fed_back(
    envs: Sequence[int] = (0, 1, 2), ended: Sequence[bool] | None = None
) -> tuple[ClientProtocol, ServerProtocol]:
    """Both ends after a feedback of all ``envs``."""
    client, server = acting(envs)
    server.receive(
        client.send_feedback(
            feedback(envs, observation=shows(*[row(env) for env in envs]), ended=ended)
        )
    )
    return client, server


def ask(server: ServerProtocol, envs: Sequence[int], reuse: Sequence[bool], sent: Any) -> Infer:
    request = infer(envs, observation=sent, reuse=np.array(reuse, dtype=np.bool_))
    read = server.receive(encode(request.to_wire()))
    assert isinstance(read, Infer)
    assert read.reuse is None
    assert read.observation.rows == len(envs)
    return read


def seen(read: Infer) -> list[list[float]]:
    rows: list[list[float]] = read.observation.states["obs"].tolist()
    return rows


@pytest.mark.parametrize(
    "nothing",
    [
        Observation(),
        Observation(states={"obs": np.zeros((0, 2))}),
        Observation(states={"obs": np.zeros((0, 9), np.uint8)}),
        Observation(images={"cam": np.zeros((0, 4, 4, 3), np.uint8)}),
    ],
)
def test_server_fills_in_all_rows(nothing: Observation) -> None:
    _, server = fed_back()
    read = ask(server, [0, 1, 2], [True] * 3, nothing)
    assert seen(read) == [row(0), row(1), row(2)]
    assert list(read.observation.text) == ["", "", ""]


def test_server_fills_in_rows_in_the_order_of_the_infer() -> None:
    _, server = fed_back()
    assert seen(ask(server, [2, 0, 1], [True] * 3, Observation())) == [row(2), row(0), row(1)]


def test_server_fills_in_some_envs_of_the_feedback() -> None:
    _, server = fed_back()
    assert seen(ask(server, [1], [True], Observation())) == [row(1)]


def test_server_merges_sent_and_reused_rows() -> None:
    _, server = fed_back(ended=[False, True, False])
    sent = shows(row(1, "new"), row(7, "new"))
    read = ask(server, [1, 2, 7, 0], [False, True, False, True], sent)
    assert seen(read) == [row(1, "new"), row(2), row(7, "new"), row(0)]


def test_server_takes_all_rows_as_sent_where_none_is_reused() -> None:
    _, server = fed_back()
    read = ask(server, [1, 0], [False, False], shows(row(1, "new"), row(0, "new")))
    assert seen(read) == [row(1, "new"), row(0, "new")]


def test_server_takes_first_infer_that_reuses_nothing() -> None:
    _, server = connect()
    assert seen(ask(server, [4], [False], shows(row(4)))) == [row(4)]


def test_server_remembers_the_last_feedback_of_each_env() -> None:
    client, server = acting([0, 1])
    server.receive(client.send_feedback(feedback([0], observation=shows([1, 1]))))
    server.receive(client.send_infer(infer([5], observation=shows([5, 5]))))
    client.receive_action(server.send_action(np.zeros((1, 1))))
    server.receive(client.send_feedback(feedback([5, 1], observation=shows([5, 6], [3, 3]))))
    assert seen(ask(server, [1, 0, 5], [True] * 3, Observation())) == [[3, 3], [1, 1], [5, 6]]


def test_server_remembers_newer_feedback_over_older() -> None:
    client, server = fed_back([0])
    ask(server, [0], [True], Observation())
    server.send_action(np.zeros((1, 1)))
    server.receive(encode(feedback([0], observation=shows([8, 8])).to_wire()))
    assert seen(ask(server, [0], [True], Observation())) == [[8, 8]]
    del client


@pytest.mark.parametrize(
    ("envs", "reuse", "text"),
    [
        ([0, 9], [True, True], "env 9 has had no feedback on this connection"),
        ([9], [True], "env 9 has had no feedback"),
        ([1], [True], "the last feedback of env 1 ended its episode"),
        ([0, 1], [True, True], "the last feedback of env 1 ended its episode"),
    ],
)
def test_server_resyncs_for_row_that_it_does_not_hold(
    envs: list[int], reuse: list[bool], text: str
) -> None:
    _, server = fed_back(ended=[False, True, False])
    with pytest.raises(RemoteProtocolError, match=f"infer.reuse: {text}"):
        ask(server, envs, reuse, Observation())


def test_server_resyncs_for_truncated_episode_too() -> None:
    client, server = acting([0])
    server.receive(client.send_feedback(feedback([0], truncated=np.array([True]))))
    with pytest.raises(RemoteProtocolError, match="ended its episode"):
        ask(server, [0], [True], Observation())


def test_server_holds_nothing_on_a_new_connection() -> None:
    fed_back()
    _, server = connect()
    with pytest.raises(RemoteProtocolError, match="no feedback on this connection"):
        ask(server, [0], [True], Observation())


def test_server_lets_an_episode_begin_again_after_its_first_feedback() -> None:
    _, server = fed_back([0], ended=[True])
    ask(server, [0], [False], shows([0, 0]))
    server.send_action(np.zeros((1, 1)))
    server.receive(encode(feedback([0], observation=shows([4, 4])).to_wire()))
    assert seen(ask(server, [0], [True], Observation())) == [[4, 4]]


CAM = np.zeros((1, 2, 2, 3), np.uint8)
OTHER: list[tuple[str, Observation]] = [
    ("width", observation(1, obs=np.zeros((1, 3)))),
    ("dtype", observation(1, obs=np.zeros((1, 2), np.float32))),
    ("name", observation(1, state=np.zeros((1, 2)))),
    ("more", observation(1, obs=np.zeros((1, 2)), more=np.zeros((1, 1)))),
    ("nothing", Observation(text=[""])),
    ("image", Observation({"i": CAM}, {"obs": np.zeros((1, 2))}, [""])),
    ("long name", observation(1, **{"x" * 5000: np.zeros((1, 2))})),
]  # fmt: skip


@pytest.mark.parametrize(("what", "sent"), OTHER)
def test_server_resyncs_for_rows_of_different_layout(what: str, sent: Observation) -> None:
    for envs, reuse in (([0, 7], [True, False]), ([7, 0], [False, True])):
        _, server = fed_back()
        with pytest.raises(RemoteProtocolError, match="reused and sent rows differ") as caught:
            ask(server, envs, reuse, sent)
        assert len(str(caught.value)) < 400, what


def test_server_resyncs_for_two_feedbacks_of_different_layout() -> None:
    client, server = acting([0, 1])
    server.receive(client.send_feedback(feedback([0], observation=shows([1, 1]))))
    server.receive(client.send_infer(infer([5], observation=shows([5, 5]))))
    client.receive_action(server.send_action(np.zeros((1, 1))))
    wider = observation(1, obs=np.zeros((1, 3)))
    server.receive(client.send_feedback(feedback([1], observation=wider)))
    with pytest.raises(RemoteProtocolError, match="differ in their keys, dtypes or shapes"):
        ask(server, [0, 1], [True, True], Observation())


def test_server_merges_texts_of_both_forms_and_any_width() -> None:
    client, server = acting([0, 1])
    server.receive(
        client.send_feedback(
            feedback([0, 1], observation=shows([0, 0], [1, 1], text=["short", "much longer"]))
        )
    )
    wire = infer([7, 1, 0], observation=shows([7, 7], text=["x"])).to_wire()
    wire["data"]["text"] = ["as a list\0"]
    wire["reuse"] = np.array([False, True, True])
    read = server.receive(encode(wire))
    assert isinstance(read, Infer)
    assert list(read.observation.text) == ["as a list\0", "much longer", "short"]


def test_server_merges_images() -> None:
    client, server = acting([0, 1])
    cams = np.arange(2 * 12, dtype=np.uint8).reshape(2, 2, 2, 3)
    held = Observation(images={"cam": cams}, text=["", ""])
    server.receive(client.send_feedback(feedback([0, 1], observation=held)))
    sent = Observation(images={"cam": np.full((1, 2, 2, 3), 99, np.uint8)}, text=[""])
    read = ask(server, [9, 1], [False, True], sent)
    assert (read.observation.images["cam"][0] == 99).all()
    assert np.array_equal(read.observation.images["cam"][1], cams[1])


def test_client_and_server_agree_on_reuse_over_many_rounds() -> None:
    """Against a model that remembers what the client last fed back for each env."""
    rng = np.random.default_rng(0)
    client, server = acting(range(6))
    held: dict[int, list[float]] = {}
    for _ in range(200):
        running = sorted(client.holding)
        envs = rng.permutation(running)[: rng.integers(1, len(running) + 1)].tolist()
        rows = [rng.integers(0, 1000, 2).astype(float).tolist() for _ in envs]
        ended = (rng.random(len(envs)) < 0.3).tolist()
        server.receive(client.send_feedback(feedback(envs, observation=shows(*rows), ended=ended)))
        for env, values, over in zip(envs, rows, ended, strict=True):
            held.pop(env, None)
            if not over:
                held[env] = values
        again = rng.permutation(sorted(set(range(6)) - client.holding)).tolist()
        reuse = [env in held and rng.random() < 0.7 for env in again]
        new = [[float(env), -1.0] for env, old in zip(again, reuse, strict=True) if not old]
        sent = shows(*new) if new else Observation()
        request = infer(again, observation=sent, reuse=np.array(reuse, dtype=np.bool_))
        read = server.receive(client.send_infer(request))
        assert isinstance(read, Infer)
        assert seen(read) == [
            held[env] if old else [float(env), -1.0] for env, old in zip(again, reuse, strict=True)
        ]
        client.receive_action(server.send_action(np.zeros((1, len(again)))))
