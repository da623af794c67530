"""Minari datasets of episodes, loaded by Minari, with handwritten values in every reset mode."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from plugrl_gym import UsageError
from plugrl_gym.client import MinariRecorder, minari_dataset
from plugrl_gym.protocol import EXECUTED_ACTIONS, Metadata
from tests.client.conftest import sync
from tests.support.memory import MemoryServer
from tests.support.tracing import CountingEnv

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
NAME = "counting/test-v0"
# What the two envs do in steps 1 to 8.
ACTIONS = [[0, 1], [1, 1], [0, 0], [1, 1], [1, 0], [0, 1], [1, 1], [1, 0]]


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def played(envs: Any, mode: AutoresetMode) -> None:
    """Reset and take the steps of ACTIONS, as a caller of that mode does."""
    envs.reset(seed=3)
    for actions in ACTIONS:
        _, _, terminated, truncated, _ = envs.step(np.array(actions))
        ended = terminated | truncated
        if mode is DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})
    envs.close()


def episodes(name: str = NAME) -> list[tuple[list[float], list[int], list[float], str]]:
    """(observations, actions, rewards, how it ended) of every episode of a dataset."""
    found = []
    for episode in minari.load_dataset(name):
        assert not episode.terminations[:-1].any()
        assert not episode.truncations[:-1].any()
        ends = {"terminated": episode.terminations[-1], "truncated": episode.truncations[-1]}
        (how,) = (name for name, ended in ends.items() if ended)
        observations = episode.observations[:, 0].tolist()
        found.append((observations, episode.actions.tolist(), episode.rewards.tolist(), how))
    return found


def test_next_step_keeps_no_ignored_step() -> None:
    played(MinariRecorder(sync(CountingEnv(3), CountingEnv(5), mode=NEXT), NAME), NEXT)
    assert episodes() == [
        ([0, 1, 2, 3], [0, 1, 0], [1, 1, 1], "terminated"),
        ([0, 1, 2, 3, 4, 5], [1, 1, 0, 1, 0], [1, 1, 1, 1, 1], "terminated"),
        ([100, 101, 102, 103], [1, 0, 1], [1, 1, 1], "terminated"),
        ([100, 101, 102], [1, 0], [1, 1], "truncated"),
    ]


@pytest.mark.parametrize("mode", [SAME, DISABLED], ids=lambda m: m.name)
def test_same_step_and_disabled_keep_every_step(mode: AutoresetMode) -> None:
    played(MinariRecorder(sync(CountingEnv(3), CountingEnv(5), mode=mode), NAME), mode)
    assert episodes() == [
        ([0, 1, 2, 3], [0, 1, 0], [1, 1, 1], "terminated"),
        ([0, 1, 2, 3, 4, 5], [1, 1, 0, 1, 0], [1, 1, 1, 1, 1], "terminated"),
        ([100, 101, 102, 103], [1, 1, 0], [1, 1, 1], "terminated"),
        ([200, 201, 202], [1, 1], [1, 1], "truncated"),
        ([100, 101, 102, 103], [1, 1, 0], [1, 1, 1], "truncated"),
    ]


@pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED], ids=lambda m: m.name)
def test_a_truncation_is_no_termination(mode: AutoresetMode) -> None:
    played(
        MinariRecorder(sync(CountingEnv(1, truncates=True), CountingEnv(9), mode=mode), NAME), mode
    )
    assert episodes()[0] == ([0, 1], [0], [1], "truncated")


@pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED], ids=lambda m: m.name)
def test_it_keeps_what_was_executed_and_what_the_server_was_told(
    wrap: Any, mode: AutoresetMode
) -> None:
    server = MemoryServer(lambda envs: np.zeros((5, len(envs)), np.int64))
    server.metadata = Metadata(features=(EXECUTED_ACTIONS,))
    recorder = MinariRecorder(sync(CountingEnv(3), CountingEnv(100), mode=mode), NAME)
    envs = wrap(recorder, server)
    envs.reset()
    for step in range(6):
        planned = envs.infer()
        envs.step(np.ones_like(planned) if step == 1 else None)
    envs.close()
    own, other = episodes()[0], episodes()[-1]
    assert own == ([0, 1, 2, 3], [0, 1, 0], [1, 1, 1], "terminated")
    assert other == ([0, 1, 2, 3, 4, 5, 6], [0, 1, 0, 0, 0, 0], [1] * 6, "truncated")
    (told,) = (row for row in server.rows if row.env == 0 and row.terminated and row.first[0] == 0)
    assert (told.last[0], told.executed.tolist()) == (own[0][-1], own[1])


class Awkward(VectorEnv):
    """Two envs in one batch that is written over in each step; env 0 ends after 2 steps.

    Args:
        final: Whether it reports ``final_obs``, as one dense batch without a mask.
        busy: After how many further steps a finished env has really been reset.
    """

    metadata = {"autoreset_mode": SAME}  # noqa: RUF012

    def __init__(self, final: bool = True, busy: int = 0) -> None:
        self.num_envs = 2
        self.single_observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
        self.single_action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Box(0, 255, (2, 40, 40, 3), np.uint8)
        self.action_space = spaces.Box(-1, 1, (2, 2), np.float32)
        self.final, self.busy = final, busy
        self._batch = np.zeros((2, 40, 40, 3), np.uint8)
        self._time = self._left = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._batch[:] = 10
        self._time = 0
        return self._batch, {}

    def step(self, actions: Any) -> Any:
        ended = np.zeros(2, dtype=np.bool_)
        info: dict[str, Any] = {}
        self._batch[1] += 1
        if self._left:
            self._left -= 1
            self._batch[0] = 99 if self._left else 10
        else:
            self._time += 1
            self._batch[0] += 1
            ended[0] = self._time == 2
        if ended[0]:
            if self.final:
                info["final_obs"] = self._batch.copy()
            self._time, self._left = 0, self.busy
            self._batch[0] = 99 if self.busy else 10
        if self.busy:
            info["masked"] = np.array([self._left > 0, False])
        actions *= 0  # an env may do that
        return self._batch, np.ones(2), ended, np.zeros(2, dtype=np.bool_), info


def images(envs: Awkward, steps: int) -> list[list[int]]:
    """The first pixel of each observation of each recorded episode."""
    recorder = MinariRecorder(envs, NAME)
    recorder.reset()
    for _ in range(steps):
        recorder.step(np.full((2, 2), 0.5, np.float32))
    recorder.close()
    found = list(minari.load_dataset(NAME))
    assert all((episode.actions == np.float32(0.5)).all() for episode in found)
    assert all(
        (episode.observations == episode.observations[:, :1, :1, :1]).all() for episode in found
    )
    return [episode.observations[:, 0, 0, 0].tolist() for episode in found]


def test_a_batch_that_is_written_over_is_copied_and_no_pixel_changes() -> None:
    assert images(Awkward(), 3) == [[10, 11, 12], [10, 11], [10, 11, 12, 13]]


def test_an_env_that_says_it_is_still_resetting_is_in_no_episode() -> None:
    assert images(Awkward(busy=2), 5) == [[10, 11, 12], [10, 11], [10, 11, 12, 13, 14, 15]]


def test_the_first_observation_of_the_next_episode_is_never_taken_for_the_last() -> None:
    with pytest.raises(UsageError, match="no 'final_obs'"):
        images(Awkward(final=False), 2)


def test_an_episode_that_a_reset_cuts_is_truncated_there() -> None:
    recorder = MinariRecorder(sync(CountingEnv(9), CountingEnv(9)), NAME)
    recorder.reset()
    recorder.step(np.array([0, 1]))
    recorder.reset(options={"reset_mask": np.array([True, False])})
    recorder.step(np.array([1, 1]))
    recorder.close()
    assert episodes() == [
        ([0, 1], [0], [1], "truncated"),
        ([100, 101], [1], [1], "truncated"),
        ([0, 1, 2], [1, 1], [1, 1], "truncated"),
    ]


class Mixed(gym.Env[Any, Any]):
    """Everything that Minari has a place for, in one observation."""

    observation_space = spaces.Dict(
        box=spaces.Box(-1, 1, (2, 3), np.float64),
        inner=spaces.Tuple([spaces.Discrete(9), spaces.Text(8)]),
        flags=spaces.MultiBinary(3),
    )
    action_space = spaces.MultiDiscrete([3, 4])

    def _observe(self, time: int) -> Any:
        flags = np.array([time & 1, 0, 1], np.int8)
        return {"box": np.full((2, 3), time / 9), "inner": (time, "abc"[:time]), "flags": flags}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._time = 0
        return self._observe(0), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        return self._observe(self._time), 0.5, self._time == 2, False, {}


def test_nested_observations_come_back_as_they_were() -> None:
    recorder = MinariRecorder(sync(Mixed()), NAME)
    recorder.reset()
    for _ in range(2):
        recorder.step(np.array([[2, 3]]))
    recorder.close()
    dataset = minari.load_dataset(NAME)
    assert dataset.observation_space == Mixed.observation_space
    assert dataset.action_space == Mixed.action_space
    (episode,) = dataset
    assert episode.observations["box"][:, 1, 2].tolist() == [0, 1 / 9, 2 / 9]
    assert episode.observations["inner"][0].tolist() == [0, 1, 2]
    assert list(episode.observations["inner"][1]) == ["", "a", "ab"]
    assert episode.observations["flags"][:, 0].tolist() == [0, 1, 0]
    assert episode.actions.tolist() == [[2, 3], [2, 3]]
    assert episode.rewards.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_env_can_be_made_again_from_the_dataset(kind: str) -> None:
    envs = gym.make_vec(
        "Pendulum-v1", num_envs=2, vectorization_mode=kind, g=5.0, render_mode="rgb_array"
    )
    recorder = MinariRecorder(envs, NAME, algorithm_name="random")
    recorder.reset(seed=1)
    recorder.step(recorder.action_space.sample())
    recorder.close()
    dataset = minari.load_dataset(NAME)
    assert dataset.storage.metadata["algorithm_name"] == "random"
    with dataset.recover_environment() as env:
        assert (env.spec.id, env.unwrapped.g, env.render_mode) == ("Pendulum-v1", 5.0, None)


def test_what_waits_is_written_at_the_end_of_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minari_dataset, "_MOST_BYTES", 2000)
    recorder = MinariRecorder(sync(CountingEnv(3)), NAME)
    recorder.reset()
    written = []
    for _ in range(12):
        recorder.step(np.zeros(1, np.int64))
        written.append(recorder.dataset.steps)
    recorder.close()
    assert written == [0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6, 12]
    assert [observations[0] for observations, *_ in episodes()] == [0, 100, 200, 300]
    assert (recorder.dataset.episodes, recorder.dataset.steps) == (4, 12)


def test_nothing_recorded_leaves_no_dataset(datasets: Path) -> None:
    recorder = MinariRecorder(sync(CountingEnv(3)), NAME)
    recorder.reset()
    recorder.close()
    recorder.close()
    assert not recorder.dataset.path.exists()
    assert recorder.dataset.path == datasets / "counting" / "test-v0"


def test_a_dataset_is_never_overwritten() -> None:
    played(MinariRecorder(sync(CountingEnv(3), CountingEnv(5)), NAME), SAME)
    before = episodes()
    with pytest.raises(UsageError, match=r"there is a Minari dataset 'counting/test-v0' already"):
        MinariRecorder(sync(CountingEnv(3)), NAME)
    rival, late = (MinariRecorder(sync(CountingEnv(1)), "late-v0") for _ in range(2))
    for recorder in (rival, late):
        recorder.reset()
        recorder.step(np.zeros(1, np.int64))
    rival.close()
    with pytest.raises(UsageError, match="already"):
        late.close()
    assert episodes() == before
    assert len(episodes("late-v0")) == 1


@pytest.mark.parametrize("name", ["mine", "", "../mine-v0", "/mine-v0", "a b-v0", "mine-v0/"])
def test_a_malformed_name_is_refused(name: str, datasets: Path) -> None:
    with pytest.raises(UsageError, match="expected a name as mine-v0 or cartpole/mine-v0"):
        MinariRecorder(sync(CountingEnv(3)), name)
    assert not datasets.exists()


class Keyed(Mixed):
    observation_space = spaces.Dict({"a/b": spaces.Discrete(2)})


class Sequences(Mixed):
    observation_space = spaces.Sequence(spaces.Discrete(2))


@pytest.mark.parametrize(("env", "said"), [(Keyed, "the key 'a/b'"), (Sequences, "a Sequence")])
def test_what_minari_has_no_place_for_is_refused(env: type[gym.Env], said: str) -> None:
    with pytest.raises(UsageError, match=f"Minari has no place for {said}"):
        MinariRecorder(sync(env()), NAME)


def test_a_plain_env_is_refused() -> None:
    with pytest.raises(UsageError, match="single env"):
        MinariRecorder(CountingEnv(3), NAME)


@pytest.mark.parametrize("package", ["minari", "h5py"])
def test_a_missing_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r'pip install "plugrl-gym\[minari\]"'):
        MinariRecorder(sync(CountingEnv(3)), NAME)
