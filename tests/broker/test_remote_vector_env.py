"""RemoteVectorEnv: envs elsewhere, stepped together."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeReward, RecordEpisodeStatistics
from websockets.exceptions import InvalidStatus

from plugrl_gym import (
    ConnectTimeout,
    PlugRLVectorEnv,
    RemoteVectorEnv,
    ServerRefused,
    UsageError,
)
from plugrl_gym.protocol import SpaceDeclaration
from plugrl_gym.server import Client, Refusal
from plugrl_gym.spaces import describe_space
from tests.support.commands import command
from tests.support.proxy import Cut, proxy
from tests.support.raw_client import (
    BOX,
    DEADLINE,
    RawClient,
    declare,
    feedback_of,
    infer_of,
    raw_client,
    states,
)
from tests.support.trainers import make_envs, rolling

ACTION = spaces.Discrete(3)
SPACES: dict[str, Any] = {"observation_space": BOX, "action_space": ACTION}


def remote(num_envs: int, **options: Any) -> RemoteVectorEnv:
    return RemoteVectorEnv(
        num_envs, port=0, **{"connect_timeout": DEADLINE, "refill_timeout": 0.0, **options}
    )


class Env:
    """One raw client of some envs, in a thread of its own where it must wait."""

    def __init__(self, client: RawClient, *indices: int) -> None:
        self.client, self.indices = client, indices

    def ask(self, value: float = 0.0, spaces: SpaceDeclaration | None = None) -> Env:
        n = len(self.indices)
        self.client.ask(*self.indices, observation=states(n, value), spaces=spaces)
        return self

    def obey(self, value: float, **fields: Any) -> Any:
        """Take the action, feed back, and ask again showing ``value``."""
        action = self.client.answer()
        n = len(self.indices)
        self.client.feed_back(*self.indices, observation=states(n, value), **fields)
        self.ask(value)
        return action.action[0].tolist()


@contextmanager
def stepping(envs: RemoteVectorEnv, actions: Any) -> Iterator[Callable[[], Any]]:
    """Step in a thread of its own; the function given waits for what came of it."""
    with ThreadPoolExecutor(1) as pool:
        stepped = pool.submit(envs.step, np.asarray(actions))
        yield lambda: stepped.result(DEADLINE)


@pytest.fixture
def two() -> Iterator[tuple[RemoteVectorEnv, RawClient, RawClient]]:
    """Two seats, and two clients of one env each."""
    with (
        remote(2, **SPACES) as envs,
        raw_client(envs.url) as first,
        raw_client(envs.url) as second,
    ):
        Env(first, 0).ask(1.0)
        assert envs.broker._desk.wait(1, DEADLINE)
        Env(second, 0).ask(2.0)
        observation, info = envs.reset()
        assert observation[:, 0].tolist() == [1.0, 2.0]
        assert info == {}
        yield envs, first, second


# -- as a vector env --------------------------------------------------------------------------


def test_steps_are_those_of_the_same_env_here() -> None:
    """The whole trajectory of CartPole over the wire, resets and terminal observations included."""
    local = make_envs("CartPole-v1", 3)
    rng = np.random.default_rng(0)
    expected, _ = local.reset(seed=7)
    with remote(3) as envs, rolling(envs.url, make_envs("CartPole-v1", 3), seed=7):
        observation, _ = envs.reset()
        assert np.array_equal(observation, expected)
        for _ in range(80):
            actions = rng.integers(0, 2, 3)
            ours, theirs = envs.step(actions), local.step(actions)
            for mine, other in zip(ours[:4], theirs[:4], strict=True):
                assert np.array_equal(mine, other)
                assert mine.dtype == other.dtype
            final, there = ours[4].get("final_obs"), theirs[4].get("final_obs")
            assert (final is None) == (there is None)
            if final is not None:
                ended = ours[2] | ours[3]
                assert np.array_equal(ours[4]["_final_obs"], ended)
                assert np.array_equal(np.stack(final[ended]), np.stack(there[ended]))
                assert np.array_equal(ours[4]["_final_info"], ended)
                assert (ours[4]["final_info"]["episode"]["l"][ended] > 7).all()
        envs.close()
    assert (envs.stats.env_steps, envs.stats.disconnected) == (240, 0)
    assert envs.broker.statistics.snapshot().book_errors == ()
    local.close()


def test_spaces_are_those_that_the_clients_declare() -> None:
    with remote(2) as envs, rolling(envs.url, make_envs("Pendulum-v1", 2)):
        assert envs.single_action_space == spaces.Box(-2.0, 2.0, (1,), np.float32)
        assert envs.single_observation_space == gym.make("Pendulum-v1").observation_space
        assert envs.action_space.shape == (2, 1)
        assert envs.observation_space.shape == (2, 3)
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        envs.close()


def test_spaces_are_sampled_and_seeded_as_those_of_any_vector_env() -> None:
    local = make_envs("CartPole-v1", 3)
    single = {
        "observation_space": local.single_observation_space,
        "action_space": local.single_action_space,
    }
    with remote(3, **single) as envs:
        for mine, other in (
            (envs.action_space, local.action_space),
            (envs.observation_space, local.observation_space),
        ):
            mine.seed(5)
            other.seed(5)
        actions = [envs.action_space.sample().tolist() for _ in range(5)]
        assert actions == [local.action_space.sample().tolist() for _ in range(5)]
        assert len(set(map(tuple, actions))) > 1
        assert np.array_equal(envs.observation_space.sample(), local.observation_space.sample())
    local.close()


def test_several_clients_make_up_the_envs_and_may_reset_as_disabled_envs_do() -> None:
    with (
        remote(5) as envs,
        rolling(envs.url, make_envs("CartPole-v1", 2)) as first,
        rolling(envs.url, make_envs("CartPole-v1", 3, AutoresetMode.DISABLED)) as second,
    ):
        envs.reset()
        ends = 0
        for _ in range(40):
            *_, info = envs.step(np.ones(5, np.int64))
            ends += int(info.get("_final_obs", np.zeros(5)).sum())
        envs.close()
        assert first.ended().finished
        assert second.ended().finished
    assert ends >= 5 * 3


def test_gymnasium_s_wrappers_go_on_top() -> None:
    with remote(2) as envs, rolling(envs.url, make_envs("CartPole-v1", 2)):
        wrapped = RecordEpisodeStatistics(NormalizeReward(envs))
        wrapped.reset()
        lengths: list[int] = []
        for _ in range(40):
            *_, info = wrapped.step(np.zeros(2, np.int64))
            if "episode" in info:
                lengths += info["episode"]["l"][info["_episode"]].tolist()
        wrapped.close()
    assert lengths
    assert all(8 <= length <= 12 for length in lengths)


def test_structured_observations_arrive_as_a_vector_env_has_them() -> None:
    space = spaces.Dict(
        {
            "eye": spaces.Box(0, 255, (3, 40, 36), np.uint8),
            "arm": spaces.Tuple([spaces.Box(-1, 1, (2, 2), np.float64), spaces.Discrete(4)]),
            "say": spaces.Text(4, min_length=0),
        }
    )

    class Structured(gym.Env[Any, Any]):
        observation_space, action_space = space, spaces.MultiDiscrete([2, 3])

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            space.seed(seed)
            return space.sample(), {}

        def step(self, action: Any) -> Any:
            return space.sample(), 1.0, False, False, {}

    def make() -> Any:
        return gym.vector.SyncVectorEnv(
            [Structured] * 2, autoreset_mode=AutoresetMode.SAME_STEP, copy=True
        )

    local = make()
    with remote(2) as envs, rolling(envs.url, make(), seed=3) as client:
        observation, _ = envs.reset()
        envs.close()
        client.ended()
    expected, _ = local.reset(seed=3)
    assert observation["eye"].shape == (2, 3, 40, 36)
    assert envs.broker.single_observation_space == space
    assert np.array_equal(observation["eye"], expected["eye"])
    assert np.array_equal(observation["arm"][0], expected["arm"][0])
    assert np.array_equal(observation["arm"][1], expected["arm"][1])
    assert observation["say"] == expected["say"]


def test_a_seed_is_refused_in_words_or_ignored_by_choice() -> None:
    with remote(1, **SPACES) as envs, raw_client(envs.url) as client:
        Env(client, 0).ask(5.0)
        with pytest.raises(UsageError, match="plugrl-gym rollout ENV --seed 0"):
            envs.reset(seed=1)
        with pytest.raises(UsageError, match="options"):
            envs.reset(options={"x": 1})
        envs._ignore_seed = True
        assert envs.reset(seed=1)[0][0, 0] == 5.0


def test_a_later_reset_shows_what_the_envs_show_now(two: Any) -> None:
    envs, first, second = two
    with stepping(envs, [0, 1]) as result:
        Env(first, 0).obey(3.0)
        Env(second, 0).obey(4.0)
        result()
    assert envs.reset()[0][:, 0].tolist() == [3.0, 4.0]


def test_what_was_handed_out_is_the_caller_s(two: Any) -> None:
    envs, *_ = two
    envs.reset()[0][:] = 9.0
    assert envs.reset()[0][:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_envs": 0}, "num_envs: expected at least 1"),
        ({"num_envs": 1, "horizon": 4}, "horizon: a RemoteVectorEnv has none"),
        ({"num_envs": 1, "evaluation": True}, "evaluation: a RemoteVectorEnv has none"),
        ({"num_envs": 3, "max_envs": 2}, "max_envs: expected at least 3, one for each, got 2"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RemoteVectorEnv(port=0, **options)


def test_one_that_was_refused_can_be_closed_as_some_versions_of_gymnasium_do() -> None:
    envs = RemoteVectorEnv.__new__(RemoteVectorEnv)
    with pytest.raises(UsageError):
        envs.__init__(0, port=0)  # type: ignore[misc]
    envs.close()


def test_misuse_moves_no_env(two: Any) -> None:
    envs, first, second = two
    with pytest.raises(UsageError, match=r"expected one for each of 2 envs, got shape \[3\]"):
        envs.step(np.zeros(3, np.int64))
    with pytest.raises(UsageError, match="would get 3, which is not in Discrete"):
        envs.step(np.array([0, 3]))
    with stepping(envs, [2, 1]) as result:
        assert Env(first, 0).obey(3.0) == [2]
        assert Env(second, 0).obey(4.0) == [1]
        assert result()[0][:, 0].tolist() == [3.0, 4.0]
    with remote(1, **SPACES) as fresh, pytest.raises(UsageError, match="call reset"):
        fresh.step(np.zeros(1))


def test_sb3_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plugrl_gym.agents.sb3.vec_env", None)
    with remote(1, **SPACES) as envs, pytest.raises(UsageError, match=r"plugrl-gym\[sb3\]"):
        envs.as_sb3_vec_env()


# -- waiting ----------------------------------------------------------------------------------


def test_envs_that_do_not_come_are_told_with_the_address() -> None:
    with remote(2, connect_timeout=0.1, **SPACES) as envs, raw_client(envs.url) as client:
        Env(client, 0).ask()
        assert envs.broker._desk.wait(1, DEADLINE)
        with pytest.raises(ConnectTimeout, match=f"1 of 2 envs came within 0.1 s.*{envs.url}"):
            envs.reset()
        with raw_client(envs.url) as second:
            Env(second, 0).ask()
            envs._connect_timeout = DEADLINE
            envs.reset()  # it may be tried again


def test_a_wait_says_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugrl_gym.broker.waiting._SLICE", 0.01)
    monkeypatch.setattr("plugrl_gym.broker.waiting.FIRST_NOTICE", 0.02)
    said: list[str] = []
    with remote(2, connect_timeout=0.2, on_wait=lambda _, what: said.append(what)) as envs:
        with pytest.raises(ConnectTimeout):
            _ = envs.single_observation_space
        assert f"2 of 2 envs, whose clients connect to {envs.url}" in said


def test_a_step_that_waits_says_for_whom(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    envs, first, second = two
    monkeypatch.setattr("plugrl_gym.broker.waiting._SLICE", 0.01)
    monkeypatch.setattr("plugrl_gym.broker.waiting.FIRST_NOTICE", 0.02)
    said: list[str] = []
    told = threading.Event()
    envs._on_wait = lambda _, what: (said.append(what), told.set())
    with stepping(envs, [0, 1]) as result:
        Env(first, 0).obey(3.0)
        assert told.wait(DEADLINE)
        Env(second, 0).obey(4.0)
        result()
    assert re.fullmatch(r"the step of [12] envs of (client 1 .*, )?client 2 \(.*\)", said[-1])


def test_an_interrupted_step_is_taken_up_by_reset(
    two: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs, first, second = two

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(envs.broker, "collect_async", interrupt)
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.array([0, 0]))
    with pytest.raises(UsageError, match="the last step was interrupted: call reset"):
        envs.step(np.array([0, 0]))
    Env(first, 0).obey(3.0)
    Env(second, 0).obey(4.0)
    assert envs.reset()[0][:, 0].tolist() == [3.0, 4.0]


# -- lost clients -----------------------------------------------------------------------------


def test_a_lost_env_is_truncated_where_it_was_and_marked(two: Any) -> None:
    envs, first, second = two
    with stepping(envs, [0, 1]) as result:
        Env(first, 0).obey(3.0)
        second.socket.close()
        observation, reward, terminated, truncated, info = result()
    assert observation[:, 0].tolist() == [3.0, 2.0]
    assert reward.tolist() == [1.0, 0.0]
    assert terminated.tolist() == [False, False]
    assert truncated.tolist() == [False, True]
    assert info["disconnected"].tolist() == [False, True]
    assert info["_final_obs"].tolist() == [False, True]
    assert info["final_obs"][1].tolist() == [2.0, 2.0]
    assert (envs.stats.env_steps, envs.stats.disconnected, envs.stats.lost) == (1, 1, 1)


def test_a_vacant_seat_has_such_rows_until_another_env_takes_it(two: Any) -> None:
    envs, first, second = two
    second.socket.close()
    for _ in range(3):
        with stepping(envs, [0, 1]) as result:
            Env(first, 0).obey(3.0)
            _, _, _, truncated, info = result()
        assert truncated.tolist() == info["disconnected"].tolist() == [False, True]
    with raw_client(envs.url) as third:
        Env(third, 0).ask(8.0)
        assert envs.broker._desk.wait(1, DEADLINE)
        with stepping(envs, [0, 1]) as result:
            Env(first, 0).obey(3.0)
            observation, _, _, truncated, info = result()
        assert observation[:, 0].tolist() == [3.0, 8.0]
        assert truncated.tolist() == info["disconnected"].tolist() == [False, True]
        assert info["final_obs"][1].tolist() == [2.0, 2.0]
        with stepping(envs, [0, 2]) as result:
            Env(first, 0).obey(3.0)
            assert Env(third, 0).obey(8.5) == [2]
            _, reward, _, truncated, info = result()
    assert reward.tolist() == [1.0, 1.0]
    assert not truncated.any()
    assert not info["disconnected"].any()
    assert (envs.stats.disconnected, envs.stats.refilled) == (4, 1)


def test_a_step_waits_for_another_env_for_a_while(two: Any) -> None:
    envs, first, second = two
    envs._refill_timeout = DEADLINE
    with stepping(envs, [0, 1]) as result, ExitStack() as stack:
        Env(first, 0).obey(3.0)
        second.socket.close()
        third = stack.enter_context(reconnected(envs.url))
        Env(third, 5).ask(8.0)
        observation, _, _, truncated, info = result()
    assert observation[:, 0].tolist() == [3.0, 8.0]
    assert truncated.tolist() == [False, True]
    assert info["final_obs"][1].tolist() == [2.0, 2.0]


@contextmanager
def reconnected(url: str) -> Iterator[RawClient]:
    """A client that comes again while there is no room, as real ones do."""
    with ExitStack() as stack:
        for _ in range(1000):
            try:
                client = stack.enter_context(raw_client(url))
            except InvalidStatus:
                threading.Event().wait(0.005)
            else:
                yield client
                return
        raise AssertionError("there was never room")


def test_what_a_lost_client_fed_back_last_is_a_real_row_that_is_cut(two: Any) -> None:
    envs, first, second = two
    with stepping(envs, [0, 1]) as result:
        second.answer()
        second.feed_back(0, rewards=[5.0], observation=states(1, 2.5))
        second.socket.close()
        Env(first, 0).obey(3.0)
        observation, reward, terminated, truncated, info = result()
    assert reward.tolist() == [1.0, 5.0]
    assert observation[:, 0].tolist() == [3.0, 2.5]
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
    assert info["final_obs"][1].tolist() == [2.5, 2.5]
    assert not info["disconnected"].any()


def test_a_row_that_was_lost_on_its_way_cuts_the_episode(two: Any) -> None:
    envs, first, second = two
    with stepping(envs, [0, 1]) as result:
        Env(first, 0).obey(3.0)
        Env(second, 0).client.answer()
        second.say(feedback_of(0, rewards=[np.nan]))
        second.say(infer_of(0, observation=states(1, 2.5)))
        observation, reward, _, truncated, info = result()
    assert observation[:, 0].tolist() == [3.0, 2.5]
    assert reward.tolist() == [1.0, 0.0]
    assert truncated.tolist() == info["disconnected"].tolist() == [False, True]
    assert info["final_obs"][1].tolist() == [2.0, 2.0]


def test_where_all_are_lost_the_step_says_so(two: Any) -> None:
    envs, first, second = two
    envs._connect_timeout = 0.1
    first.socket.close()
    second.socket.close()
    with pytest.raises(ConnectTimeout, match=f"all 2 envs are lost, and none came to {envs.url}"):
        envs.step(np.array([0, 0]))


def test_spares_wait_connected_and_step_in_at_once() -> None:
    with (
        remote(1, max_envs=2, **SPACES) as envs,
        raw_client(envs.url) as first,
        raw_client(envs.url) as second,
    ):
        Env(first, 0).ask(1.0)
        assert envs.broker._desk.wait(1, DEADLINE)
        Env(second, 0).ask(2.0)
        assert envs.broker._desk.wait(2, DEADLINE)
        assert envs.reset()[0][0, 0] == 1.0
        first.socket.close()
        observation, *_, info = envs.step(np.array([0]))
    assert observation[0, 0] == 2.0
    assert info["disconnected"].all()


def test_client_with_more_envs_than_seats_is_refused_and_one_too_many_waits() -> None:
    with remote(2) as envs, raw_client(envs.url) as large, raw_client(envs.url) as fits:
        three = SpaceDeclaration(
            None, 3, "same-step", describe_space(BOX), describe_space(ACTION), "train"
        )
        large.ask(0, 1, 2, spaces=three)
        assert large.closed() == (1008, "this server takes at most 2 envs, client has 3")
        Env(fits, 0).ask(1.0, spaces=declare(ACTION))
        with raw_client(envs.url) as late:
            late.ask(0, 1, spaces=SpaceDeclaration(**{**as_dict(three), "num_envs": 2}))
            assert late.closed()[0] == 1013


def as_dict(declaration: SpaceDeclaration) -> dict[str, Any]:
    return {name: getattr(declaration, name) for name in declaration.__slots__}


# -- those that cannot be stepped together ----------------------------------------------------


def test_client_that_declares_next_step_resets_is_refused_with_the_cure() -> None:
    with remote(2) as envs:
        client = PlugRLVectorEnv(make_envs("CartPole-v1", 2, AutoresetMode.NEXT_STEP), envs.url)
        client.reset()
        with pytest.raises(ServerRefused, match="make them with autoreset same-step"):
            client.step()
        client.close()


def test_trainer_may_turn_others_away_besides() -> None:
    def admit(client: Client) -> None:
        raise Refusal("not today")

    with remote(1, admit=admit) as envs:
        for autoreset, words in (
            ("next-step", "make them with autoreset same-step"),
            ("same-step", "not today"),
        ):
            declared = {**as_dict(declare(ACTION)), "autoreset": autoreset}
            with raw_client(envs.url) as client:
                client.ask(0, spaces=SpaceDeclaration(**declared))
                code, reason = client.closed()
                assert code == 1008
                assert words in reason


def test_undeclared_client_that_asks_for_some_envs_first_is_told_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As one with NEXT_STEP resets does after the end of an episode."""
    with remote(2, **SPACES) as envs, raw_client(envs.url) as client:
        Env(client, 0, 1).ask(1.0)
        envs.reset()
        envs._connect_timeout = 0.0
        with stepping(envs, [0, 1]) as result, caplog.at_level(logging.WARNING):
            client.answer()
            client.feed_back(0, rewards=[1.0], observation=states(1, 3.0))
            client.ask(0)
            assert client.closed() == (1001, "plugrl-server-resync")
            with pytest.raises(ConnectTimeout):
                result()
    assert "these wait for each other: use autoreset same-step" in caplog.text


@pytest.fixture
def impatient(two: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As ``two``, with envs that soon lose a client that has fed back and does not ask."""
    monkeypatch.setattr("plugrl_gym.broker.waiting._SLICE", 0.02)
    two[0]._stall_timeout = 2.0
    return two


def test_client_that_stops_asking_counts_as_lost_and_may_come_back(
    impatient: Any, caplog: pytest.LogCaptureFixture
) -> None:
    envs, first, second = impatient
    with stepping(envs, [0, 1]) as result:
        Env(first, 0).obey(3.0)
        second.answer()
        second.feed_back(0, rewards=[5.0], observation=states(1, 2.5))
        _, reward, _, truncated, info = result()
    assert (reward.tolist(), truncated.tolist()) == ([1.0, 5.0], [False, True])
    assert not info["disconnected"].any()
    assert "client 2" in caplog.text
    assert "has not asked for an action for 2 s" in caplog.text
    Env(second, 0).ask(6.0)
    assert envs.broker._desk.wait(1, DEADLINE)
    with stepping(envs, [0, 1]) as result:
        Env(first, 0).obey(3.0)
        observation, _, _, truncated, info = result()
    assert observation[:, 0].tolist() == [3.0, 6.0]
    assert info["disconnected"].tolist() == [False, True]


def test_client_that_has_fed_back_some_of_its_envs_and_does_not_ask_is_lost_with_all_of_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could tell of the others only after it has asked (SPEC 5): no step would end."""
    monkeypatch.setattr("plugrl_gym.broker.waiting._SLICE", 0.02)
    with (
        remote(3, stall_timeout=2.0, **SPACES) as envs,
        raw_client(envs.url) as mute,
        raw_client(envs.url) as well,
    ):
        Env(mute, 0, 1).ask(1.0)
        assert envs.broker._desk.wait(2, DEADLINE)
        Env(well, 0).ask(2.0)
        envs.reset()
        with stepping(envs, [0, 1, 2]) as result:
            mute.answer()
            mute.feed_back(0, rewards=[5.0], observation=states(1, 2.5))
            Env(well, 0).obey(3.0)
            observation, reward, _, truncated, info = result()
    assert caplog.text.count("has not asked for an action for 2 s") == 1
    assert observation[:, 0].tolist() == [2.5, 1.0, 3.0]
    assert reward.tolist() == [5.0, 0.0, 1.0]
    assert truncated.tolist() == [True, True, False]
    assert info["disconnected"].tolist() == [False, True, False]


@pytest.mark.parametrize("stale", [False, True])
def test_client_whose_feedback_was_dropped_whole_and_does_not_ask_is_lost(
    stale: bool, impatient: Any, caplog: pytest.LogCaptureFixture
) -> None:
    envs, first, second = impatient
    with stepping(envs, [0, 1]) as result:
        Env(first, 0).obey(3.0)
        second.answer()
        second.say(feedback_of(7) if stale else feedback_of(0, rewards=[np.nan]))
        _, reward, _, truncated, info = result()
    assert (reward.tolist(), truncated.tolist()) == ([1.0, 0.0], [False, True])
    assert info["disconnected"].tolist() == [False, True]
    assert "has not asked for an action for 2 s" in caplog.text


# -- a trainer goes on ------------------------------------------------------------------------


def test_one_of_three_clients_dies_and_a_new_one_takes_its_place() -> None:
    """The trainer goes on; its transitions are those of the envs, and the books balance."""
    with remote(3, refill_timeout=DEADLINE) as envs, ExitStack() as stack:
        network = stack.enter_context(proxy(envs.broker.port))
        for url in (envs.url, envs.url, network.url):
            stack.enter_context(rolling(url, make_envs("CartPole-v1", 1)))
        envs.reset()
        rows = disconnected = 0
        for step in range(120):
            if step in (30, 60):
                assert network.cut(Cut.NOW)  # its client comes back by itself
            *_, info = envs.step(np.array([step % 2] * 3))
            rows += 3
            disconnected += int(info["disconnected"].sum())
        envs.close()
    snapshot = envs.broker.statistics.snapshot()
    assert snapshot.book_errors == ()
    assert envs.stats.refilled == 2
    assert envs.stats.disconnected == disconnected
    assert snapshot.books.rows_stored == envs.stats.env_steps == rows - disconnected
    assert 0 < disconnected <= 4


@pytest.mark.parametrize("finished", [True, False])
def test_close_says_whether_the_run_is_over(finished: bool) -> None:
    envs = remote(1, **SPACES)
    with raw_client(envs.url) as client:
        Env(client, 0).ask()
        envs.reset()
        with ThreadPoolExecutor(1) as pool:
            closed = pool.submit(client.closed)
            envs.close(finished=finished)
            reason = "plugrl-server-stop" if finished else "Server shutdown"
            assert closed.result(DEADLINE) == (1001, reason)
    assert envs.closed
    envs.close()
    for call in (envs.reset, lambda: envs.step(np.array([0]))):
        with pytest.raises(UsageError, match="this RemoteVectorEnv is closed"):
            call()


def test_trainer_that_ends_without_a_word_shuts_down() -> None:
    program = (
        "from plugrl_gym import RemoteVectorEnv\n"
        "envs = RemoteVectorEnv(1, port=0)\n"
        "print(envs.url, flush=True)\n"
        "envs.reset()\n"
    )
    with command("-c", program) as trainer, raw_client(trainer.url()) as client:
        client.ask(0, spaces=declare(ACTION))
        assert client.closed() == (1001, "Server shutdown")
        ended = trainer.finish()
    assert (ended.code, ended.stderr) == (0, "")
