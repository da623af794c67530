"""EnvBroker: whatever has arrived, and answers in any order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from websockets.exceptions import InvalidStatus

from plugrl_gym import EnvBroker, PlugRLVectorEnv, ServerRefused, UsageError
from plugrl_gym.broker import Batch
from plugrl_gym.protocol import ChunkSteps, ExecutedActions, Feedback, Observation
from plugrl_gym.server import Client, Refusal
from tests.support.raw_client import (
    BOX,
    DEADLINE,
    declare,
    feedback_of,
    infer_of,
    raw_client,
    states,
)
from tests.support.trainers import Rolling, make_envs, rolling, training

ACTION = spaces.Box(-1.0, 1.0, (3,), np.float32)
DECLARED = declare(ACTION)
SPACES: dict[str, Any] = {"observation_space": BOX, "action_space": ACTION}


@pytest.fixture
def broker() -> Iterator[EnvBroker]:
    with EnvBroker(observation_space=BOX, action_space=ACTION) as running:
        yield running


def collect(broker: EnvBroker, min_envs: int = 1) -> Batch:
    batch = broker.collect_async(min_envs, DEADLINE)
    assert len(batch) >= min_envs or batch.left
    return batch


def act(broker: EnvBroker, slots: Any, value: float = 0.0) -> Any:
    return broker.step_async(slots, np.full((len(slots), 3), value))


def arrived(broker: EnvBroker) -> bool:
    """Wait until a row could be collected, and leave it."""
    return broker._desk.wait(1, DEADLINE)


# -- collecting and answering -----------------------------------------------------------------


def test_first_row_of_each_env_has_its_observation_and_no_reward(broker: EnvBroker) -> None:
    with raw_client(broker.url) as client:
        client.ask(4, 2, observation=states(2, 0.5), spaces=DECLARED)
        batch = broker.reset(DEADLINE)
    assert batch.slots.tolist() == [0, 1]
    assert batch.observation.dtype == np.float32
    assert batch.observation.tolist() == [[0.5, 0.5]] * 2
    assert (batch.reward.dtype, batch.reward.tolist()) == (np.float64, [0.0, 0.0])
    assert batch.first.all()
    assert batch.waiting.all()
    assert not (batch.terminated | batch.truncated | batch.evaluation).any()
    assert [(e.kind, e.slot, e.env, e.client.number) for e in batch.events] == [
        ("joined", 0, 4, 1),
        ("joined", 1, 2, 1),
    ]


def test_rows_carry_what_came_of_the_action_before(broker: EnvBroker) -> None:
    with raw_client(broker.url) as client:
        client.ask(0, 1)
        act(broker, collect(broker).slots)
        client.answer()
        client.feed_back(
            0, 1, rewards=[1.5, -2.0], terminated=[False, True], observation=states(2, 7.0)
        )
        assert len(broker.collect_async(1, 0.05)) == 0  # nobody asks yet
        client.ask(0, 1, observation=Observation(states={"obs": SEEN}, text=["", ""]))
        batch = collect(broker, 2)
    assert batch.reward.tolist() == [1.5, -2.0]
    assert batch.terminated.tolist() == [False, True]
    assert not batch.truncated.any()
    assert not batch.first.any()
    assert batch.observation.tolist() == SEEN.tolist()
    assert batch.info["_final_obs"].tolist() == [False, True]
    assert batch.info["final_obs"][1].tolist() == [7.0, 7.0]


SEEN = np.array([[7.0, 7.0], [0.0, 1.0]], np.float32)


def test_each_slot_gets_its_own_answer_in_the_order_of_its_client(broker: EnvBroker) -> None:
    with raw_client(broker.url) as client:
        client.ask(5, 9)
        slots = collect(broker, 2).slots
        act(broker, slots[1:], 0.9)
        act(broker, slots[:1], 0.5)
        action = client.answer()
    assert action.env_ids is not None
    assert action.env_ids.tolist() == [5, 9]
    assert action.action.dtype == np.float32
    assert action.action[0, :, 0].tolist() == [np.float32(0.5), np.float32(0.9)]


def test_two_clients_are_answered_in_any_order(broker: EnvBroker) -> None:
    with raw_client(broker.url) as first, raw_client(broker.url) as second:
        first.ask(0)
        collect(broker)
        second.ask(0)
        collect(broker)
        act(broker, [1], 0.25)
        assert second.answer().action.max() == 0.25
        second.feed_back(0)
        second.ask(0)
        assert collect(broker).slots.tolist() == [1]
        act(broker, [0], 0.75)
        assert first.answer().action.max() == 0.75


def test_batch_takes_all_that_has_arrived(broker: EnvBroker) -> None:
    with raw_client(broker.url) as first, raw_client(broker.url) as second:
        first.ask(0, 1)
        second.ask(0)
        assert len(collect(broker, 3)) == 3
    assert len(broker.collect_async(0)) == 0


def test_an_answer_waits_as_long_as_the_trainer_takes() -> None:
    """The time is the server's own: no feedback is due."""
    with (
        EnvBroker(observation_space=BOX, action_space=ACTION, feedback_timeout=0.1) as broker,
        raw_client(broker.url) as client,
    ):
        client.ask(0)
        collect(broker)
        pinged = client.socket.ping()
        assert pinged.wait(DEADLINE)
        assert not broker.collect_async(1, 0.5).left
        act(broker, [0])
        client.answer()


def test_feedback_that_does_not_come_ends_its_client() -> None:
    with (
        EnvBroker(observation_space=BOX, action_space=ACTION, feedback_timeout=0.1) as broker,
        raw_client(broker.url) as client,
    ):
        client.ask(0)
        collect(broker)
        act(broker, [0])
        assert client.closed() == (1001, "Feedback timeout")
        assert collect(broker).left == (0,)


def test_timeout_gives_an_empty_batch_of_the_right_form(broker: EnvBroker) -> None:
    batch = broker.collect_async(timeout=0.0)
    assert len(batch) == 0
    assert batch.observation.shape == (0, 2)
    assert (batch.info, batch.events) == ({}, ())


def test_batch_has_no_observation_before_any_space_is_known() -> None:
    with EnvBroker() as broker:
        assert broker.collect_async(timeout=0.0).observation is None
        assert broker.single_observation_space is broker.single_action_space is None
        with pytest.raises(UsageError, match="no env is there; none has come"):
            broker.step_async([0], [0])


def test_an_answer_to_a_wrong_slot_is_refused_and_loses_nothing(broker: EnvBroker) -> None:
    with raw_client(broker.url) as client:
        client.ask(0)
        collect(broker)
        with pytest.raises(UsageError, match="slot 3: no env is there"):
            act(broker, [0, 3])
        with pytest.raises(UsageError, match="slot 0 would get nan"):
            act(broker, [0], np.nan)
        act(broker, [0], 0.5)
        assert client.answer().action.max() == 0.5
        with pytest.raises(UsageError, match="slot 0 does not wait for an action"):
            act(broker, [0])


def test_reset_shows_again_what_waits(broker: EnvBroker) -> None:
    with raw_client(broker.url) as first, raw_client(broker.url) as second:
        first.ask(0, observation=states(1, 3.0))
        broker.reset(DEADLINE)
        second.ask(0, observation=states(1, 4.0))
        assert arrived(broker)
        batch = broker.reset(DEADLINE)
        assert batch.slots.tolist() == [0, 1]
        assert batch.observation[:, 0].tolist() == [3.0, 4.0]
        act(broker, [1, 0])
        first.answer()
        second.answer()


# -- chunks -----------------------------------------------------------------------------------


def test_chunks_go_out_whole_and_their_steps_come_back() -> None:
    discrete = spaces.Discrete(5)
    with (
        EnvBroker(horizon=3, observation_space=BOX, action_space=discrete) as broker,
        raw_client(broker.url) as client,
    ):
        client.ask(0, 1)
        collect(broker)
        broker.step_async([1, 0], [[1, 4], [2, 3], [3, 2]])
        assert client.answer().action.tolist() == [[4, 1], [3, 2], [2, 3]]
        assert client.metadata.action_horizon == 3
        rewards = np.array([[1, 2], [3, 0]], np.float32)
        message = feedback_of(0, 1, rewards=[4.0, 2.0])
        client.say(with_chunks(message, ChunkSteps(np.array([2, 1]), rewards)))
        client.say(infer_of(0, 1))
        batch = collect(broker, 2)
    assert batch.reward.tolist() == [4.0, 2.0]
    assert batch.info["chunk_steps"].tolist() == [2, 1]
    assert batch.info["step_rewards"].tolist() == [[1, 3, 0], [2, 0, 0]]
    with pytest.raises(UsageError, match="horizon: expected at least 1"):
        EnvBroker(horizon=0)


def with_chunks(message: Feedback, steps: ChunkSteps) -> Feedback:
    return Feedback(
        message.env_indices, message.step_ids, message.observation, message.rewards,
        message.terminated, message.truncated, chunk_steps=steps,
    )  # fmt: skip


def test_a_row_says_which_action_ran_where_it_was_another(broker: EnvBroker) -> None:
    with raw_client(broker.url) as client:
        client.ask(0, 1)
        act(broker, collect(broker).slots)
        client.answer()
        ran = np.array([[[0, 0, 0], [0.5, 0.25, 0]]], np.float32)
        told = feedback_of(0, 1)
        client.say(
            Feedback(
                told.env_indices, told.step_ids, told.observation, told.rewards,
                told.terminated, told.truncated,
                executed=ExecutedActions(ran, np.array([False, True])),
            )
        )  # fmt: skip
        client.say(infer_of(0, 1))
        info = collect(broker, 2).info
    assert info["overridden"].tolist() == [False, True]
    assert info["executed"][1].tolist() == [0.5, 0.25, 0.0]


def test_what_a_client_forwards_and_its_episodes_reach_the_trainer(broker: EnvBroker) -> None:
    with raw_client(broker.url) as client:
        client.ask(0, 1)
        act(broker, collect(broker).slots)
        client.answer()
        ended = np.array([True, False])
        episode = {"r": np.array([9.0, 0]), "l": np.array([5, 0]), "mask": ended}
        client.feed_back(
            0,
            1,
            truncated=ended.tolist(),
            info={"episode": episode, "x": np.array([1, 2]), "final_obs": np.array([1, 2])},
        )
        client.ask(0, 1)
        batch = collect(broker, 2)
    assert batch.truncated.tolist() == [True, False]
    assert batch.info["x"].tolist() == [1, 2]
    assert batch.info["final_obs"][0].tolist() == [0.0, 0.0]  # whatever the client calls so
    assert batch.info["episode"]["r"].tolist() == [9.0, 0.0]
    assert batch.info["_episode"].tolist() == [True, False]


# -- who comes and goes -----------------------------------------------------------------------


def test_a_client_that_leaves_is_noticed_at_once_whatever_is_waited_for(broker: EnvBroker) -> None:
    with raw_client(broker.url) as client:
        client.ask(0, 1)
        collect(broker)
    batch = broker.collect_async(8, DEADLINE)
    assert (len(batch), batch.left) == (0, (0, 1))
    assert act_after_leave(broker)


def act_after_leave(broker: EnvBroker) -> bool:
    """Once the leave was read, the slot is unknown."""
    with pytest.raises(UsageError, match="slot 0: no env is there"):
        act(broker, [0])
    return True


def test_what_was_fed_back_last_is_a_row_that_awaits_no_answer(broker: EnvBroker) -> None:
    with raw_client(broker.url) as client:
        client.ask(0, 1)
        act(broker, collect(broker).slots)
        client.answer()
        client.feed_back(
            0, 1, rewards=[3.0, 4.0], terminated=[True, False], observation=states(2, 8.0)
        )
    batch = collect(broker, 2)
    assert batch.reward.tolist() == [3.0, 4.0]
    assert batch.terminated.tolist() == [True, False]
    assert not batch.truncated.any()  # a lost connection is no end of an episode (SPEC 8.16)
    assert not batch.waiting.any()
    assert batch.observation.tolist() == [[8.0, 8.0]] * 2
    assert batch.left == (0, 1)


def test_a_row_with_a_nan_is_left_out_and_the_next_one_is_a_first(broker: EnvBroker) -> None:
    with raw_client(broker.url) as client:
        client.ask(0)
        act(broker, collect(broker).slots)
        client.answer()
        client.say(feedback_of(0, rewards=[np.nan]))
        client.say(infer_of(0))
        batch = collect(broker)
    assert (batch.first.tolist(), batch.reward.tolist()) == ([True], [0.0])
    assert batch.joined == ()


def test_client_with_other_spaces_is_refused_in_a_sentence_that_names_both() -> None:
    with EnvBroker() as broker, raw_client(broker.url) as first, raw_client(broker.url) as second:
        first.ask(0, spaces=DECLARED)
        collect(broker)
        assert broker.single_action_space == ACTION
        assert broker.single_observation_space == BOX
        second.ask(0, spaces=declare(spaces.Discrete(4)))
        assert second.closed() == (1008, "this trainer has actions Box(3,), env has Discrete(4)")
        act(broker, [0])
        first.answer()


def test_client_that_declares_nothing_needs_spaces_that_are_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EnvBroker() as broker:
        with raw_client(broker.url) as client:
            client.ask(0)
            assert client.closed() == (1001, "plugrl-server-resync")
        assert "give the broker observation_space= and action_space=" in caplog.text
        with raw_client(broker.url) as declares, raw_client(broker.url) as client:
            declares.ask(0, spaces=DECLARED)
            collect(broker)
            client.ask(0)
            assert len(collect(broker)) == 1


def test_observation_that_does_not_fit_closes_its_client_only(broker: EnvBroker) -> None:
    with raw_client(broker.url) as good, raw_client(broker.url) as bad:
        good.ask(0)
        collect(broker)
        wrong = Observation(states={"obs": np.zeros((1, 9))}, text=[""])
        bad.ask(0, observation=wrong)
        assert bad.closed() == (1001, "plugrl-server-resync")
        act(broker, [0])
        good.answer()


def test_index_that_is_none_closes_its_client_and_reaches_no_trainer() -> None:
    """A network that looks it up would fail, and all clients with it."""
    places = spaces.Discrete(3)
    with EnvBroker(observation_space=places, action_space=ACTION) as broker:
        for place in (3, -1):
            with raw_client(broker.url) as client:
                seen = Observation(states={"obs": np.array([[place]])}, text=[""])
                client.ask(0, observation=seen)
                assert client.closed() == (1001, "plugrl-server-resync")
        assert len(broker.collect_async(1, 0.0)) == 0


def test_client_that_evaluates_is_served_only_where_the_trainer_says_so(broker: EnvBroker) -> None:
    judged = declare(ACTION, mode="eval")
    with raw_client(broker.url) as client:
        client.ask(0, spaces=judged)
        code, reason = client.closed()
        assert (code, "evaluates nobody" in reason) == (1008, True)
    with EnvBroker(evaluation=True) as judge, raw_client(judge.url) as client:
        client.ask(0, spaces=judged)
        assert collect(judge).evaluation.tolist() == [True]


def test_client_can_be_turned_away_and_dismissed_in_a_sentence() -> None:
    def admit(client: Client) -> None:
        if client.declaration is None:
            raise Refusal("only those that declare")

    options: dict[str, Any] = {"observation_space": BOX, "action_space": ACTION}
    with (
        EnvBroker(admit=admit, **options) as broker,
        raw_client(broker.url) as first,
        raw_client(broker.url) as second,
    ):
        first.ask(0)
        assert first.closed()[0] == 1001
        second.ask(0, spaces=DECLARED)
        broker.dismiss(collect(broker).slots, "enough of you")
        assert second.closed() == (1008, "enough of you")
        assert collect(broker).left == (0,)


def test_max_envs_bounds_what_comes_in() -> None:
    with EnvBroker(max_envs=2, observation_space=BOX, action_space=ACTION) as broker:
        with raw_client(broker.url) as client:
            client.ask(0, 1, 2)
            assert client.closed()[0] == 1001
        collect_gone(broker)
        with raw_client(broker.url) as client:
            client.ask(0, 1)
            collect(broker, 2)
            with pytest.raises(InvalidStatus) as refused, raw_client(broker.url):
                pass
    assert refused.value.response.status_code == 503


def collect_gone(broker: EnvBroker) -> None:
    """Until no connection is open."""
    for _ in range(1000):
        if not broker.statistics.snapshot().clients:
            return
        broker.collect_async(1, 0.005)
    raise AssertionError("a client is still there")


# -- from asyncio -----------------------------------------------------------------------------


def test_coroutines_collect_and_answer() -> None:
    async def train() -> Any:
        rows = 0
        async with EnvBroker() as broker:
            client = await asyncio.to_thread(
                lambda: Rolling(PlugRLVectorEnv(make_envs("CartPole-v1", 2), broker.url), seed=0)
            )
            while rows < 20:
                batch = await broker.collect(timeout=DEADLINE)
                rows += len(batch)
                broker.step_async(batch.slots, np.zeros(len(batch), np.int64))
        return await asyncio.to_thread(client.ended)

    summary = asyncio.run(train())
    assert summary.finished
    assert summary.env_steps >= 18


def test_coroutine_that_is_cancelled_loses_no_row(broker: EnvBroker) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(broker.collect(2), 0.05)
        batch = await broker.collect(2, timeout=0.05)
        assert len(batch) == 1

    with raw_client(broker.url) as client:
        client.ask(0)
        assert arrived(broker)
        asyncio.run(give_up())


# -- the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finished", "reason"), [(True, "plugrl-server-stop"), (False, "Server shutdown")]
)
def test_close_ends_the_run_or_only_the_server(finished: bool, reason: str) -> None:
    broker = EnvBroker(observation_space=BOX, action_space=ACTION)
    with raw_client(broker.url) as asking, raw_client(broker.url) as idle:
        asking.ask(0)
        collect(broker)
        closing = threading.Thread(target=broker.close, args=(finished,))
        closing.start()
        assert asking.closed() == (1001, reason)
        assert idle.closed() == (1001, reason)
        closing.join(DEADLINE)
    with pytest.raises(UsageError, match="the broker is closed"):
        broker.collect_async()
    with pytest.raises(UsageError, match="the broker is closed"):
        act(broker, [0])
    broker.close()


def test_block_that_fails_shuts_down_so_that_clients_come_back() -> None:
    with contextlib.ExitStack() as stack:
        broker = EnvBroker()
        client = stack.enter_context(raw_client(broker.url))
        closed = stack.enter_context(ThreadPoolExecutor(1)).submit(client.closed)
        with pytest.raises(KeyError), broker:
            raise KeyError
        assert closed.result(DEADLINE)[1] == "Server shutdown"


def test_broker_that_nobody_holds_any_more_closes(broker: EnvBroker) -> None:
    forgotten = EnvBroker()
    gone = weakref.ref(forgotten)
    port, serving = forgotten.port, forgotten._serving
    del forgotten
    gc.collect()
    assert gone() is None
    assert not serving._thread.is_alive()
    with pytest.raises(OSError), raw_client(f"ws://127.0.0.1:{port}"):
        pass


def test_broker_that_its_own_thread_is_the_last_to_hold_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Garbage of a cycle is collected in whichever thread happens to allocate."""
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    held: list[EnvBroker] = []
    held.append(EnvBroker(**SPACES, admit=lambda client: held.clear()))
    thread, url = held[0]._serving._thread, held[0].url
    with raw_client(url) as client:
        client.ask(0)
        assert client.closed() == (1001, "Server shutdown")
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert raised == []


def test_failure_of_the_server_is_raised_in_the_trainer(broker: EnvBroker) -> None:
    def explode(*arguments: Any) -> None:
        raise ZeroDivisionError("in the server's thread")

    broker._desk.tell = explode  # type: ignore[method-assign]
    with raw_client(broker.url) as client:
        client.ask(0)
        act(broker, collect(broker).slots)
        client.answer()
        client.feed_back(0)
        assert client.closed() == (1011, "Internal server error.")
        with pytest.raises(ZeroDivisionError, match="in the server's thread"):
            collect_until_it_fails(broker)


def test_failure_of_the_trainer_s_own_callback_is_raised_in_the_trainer() -> None:
    def admit(client: Client) -> None:
        raise ZeroDivisionError("in admit")

    with EnvBroker(**SPACES, admit=admit) as broker, raw_client(broker.url) as client:
        client.ask(0)
        assert client.closed() == (1011, "Internal server error.")
        with pytest.raises(ZeroDivisionError, match="in admit"):
            broker.collect_async(1, DEADLINE)


def collect_until_it_fails(broker: EnvBroker) -> None:
    """The leave of the client may be collected before the server has ended."""
    for _ in range(2):
        broker.collect_async(5, DEADLINE)


def test_port_that_is_taken_is_refused_in_a_sentence(broker: EnvBroker) -> None:
    with pytest.raises(UsageError, match=f"port {broker.port} of 127.0.0.1 is in use"):
        EnvBroker(port=broker.port)


def test_addresses_say_where_clients_go(broker: EnvBroker) -> None:
    assert broker.url == f"ws://127.0.0.1:{broker.port}" == f"ws://{broker.address}"
    assert broker.urls == [broker.url]


def test_key_is_asked_for() -> None:
    with EnvBroker(api_key="secret") as broker:
        envs = PlugRLVectorEnv(make_envs("CartPole-v1", 1), broker.url, api_key="wrong")
        with pytest.raises(ServerRefused), envs:
            envs.reset()


# -- the books --------------------------------------------------------------------------------


def test_books_say_what_was_collected_and_what_was_not() -> None:
    with (
        EnvBroker(observation_space=BOX, action_space=ACTION) as broker,
        raw_client(broker.url) as first,
        raw_client(broker.url) as second,
    ):
        for client in (first, second):
            client.ask(0)
            act(broker, collect(broker).slots)
            client.answer()
        first.feed_back(0)
        first.ask(0)
        collect(broker)
        second.feed_back(0)
        second.ask(0)
        assert arrived(broker)
    snapshot = broker.statistics.snapshot()
    assert snapshot.book_errors == ()
    assert (snapshot.books.rows_received, snapshot.books.rows_stored) == (2, 1)
    assert snapshot.books.rows_discarded == {"not collected": 1}


def test_envs_of_every_reset_mode_are_served_side_by_side() -> None:
    """A broker needs no whole vector step, so a client may hold rows back."""
    from gymnasium.vector import AutoresetMode

    rng = np.random.default_rng(0)
    with EnvBroker() as broker:
        urls = broker.url
        with (
            training(broker, lambda b: rng.integers(0, 2, int(b.waiting.sum()))) as trainer,
            rolling(urls, make_envs("CartPole-v1", 2, AutoresetMode.NEXT_STEP)) as first,
            rolling(urls, make_envs("CartPole-v1", 2, AutoresetMode.DISABLED)) as second,
        ):
            ends = time.monotonic() + DEADLINE
            while sum(int(b.terminated.sum()) for b in list(trainer.batches)) < 8:
                assert time.monotonic() < ends
                trainer._stopping.wait(0.01)
            trainer.stop()
            broker.close()
    snapshot = broker.statistics.snapshot()
    assert snapshot.book_errors == ()
    assert first.outcome.finished
    assert second.outcome.finished
    rewards = sum(float(batch.reward.sum()) for batch in trainer.batches)
    assert rewards == snapshot.books.rows_stored


def test_infer_of_an_env_that_holds_an_action_begins_anew(broker: EnvBroker) -> None:
    """A re-plan: the chunk before is given up, and nothing is known of its end."""
    with raw_client(broker.url) as client:
        client.ask(0, 1)
        act(broker, collect(broker).slots)
        client.answer()
        client.feed_back(1)
        client.say(infer_of(0))
        batch = collect(broker)
        assert (batch.slots.tolist(), batch.first.tolist()) == ([0], [True])


def test_what_is_told_of_an_env_that_was_given_up_is_discarded_and_counted() -> None:
    with EnvBroker(**SPACES) as broker, raw_client(broker.url) as client:
        client.ask(0, 1)
        act(broker, collect(broker, 2).slots)
        client.answer()
        client.feed_back(0)
        client.ask(0)
        act(broker, collect(broker).slots)
        client.answer()
        assert broker.give_up([1], 0.0) == []  # it is not its client's turn to ask
        client.feed_back(0)
        ends = time.monotonic() + DEADLINE
        while broker.give_up([1], 0.0) != [1]:
            assert time.monotonic() < ends
            threading.Event().wait(0.005)
        assert collect(broker).left == (1,)
        client.ask(0)
        act(broker, collect(broker).slots)
        client.answer()
        client.feed_back(0, 1)
        client.ask(0)
        assert collect(broker).slots.tolist() == [0]
    snapshot = broker.statistics.snapshot()
    assert snapshot.books.rows_discarded == {"given up": 1}
    assert snapshot.book_errors == ()


def test_slow_client_holds_no_other_up(broker: EnvBroker) -> None:
    with raw_client(broker.url) as slow, raw_client(broker.url) as fast:
        slow.ask(0)
        act(broker, collect(broker).slots)
        slow.answer()  # and it runs its step for as long as this test lasts
        fast.ask(0)
        for step in range(20):
            batch = collect(broker)
            assert batch.slots.tolist() == [1]
            act(broker, batch.slots, step / 20)
            assert fast.answer().action.max() == np.float32(step / 20)
            fast.feed_back(0)
            fast.ask(0)
