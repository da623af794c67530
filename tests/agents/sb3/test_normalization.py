"""Running statistics of observations and rewards: SB3's own, fed by clients."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.model import SpacesOnlyVecEnv
from plugrl_gym.agents.sb3.normalization import (
    Normalizer,
    normalize_arguments,
    normalized_envs,
)
from plugrl_gym.errors import UsageError
from tests.support.agent_peer import AgentPeer
from tests.support.lockstep import (
    Weights,
    assert_different_weights,
    assert_same_weights,
    drive,
    logless,
    make_envs,
    weights_of,
)
from tests.support.rollouts import (
    GAMMA,
    NUMBER,
    RaggedClient,
    column,
    connect,
    make_agent,
    play_at_random,
)

REWARDS_ALONE = {"norm_obs": False}


def statistics(agent: SB3Agent) -> VecNormalize:
    envs = agent.model.get_vec_normalize_env()
    assert envs is not None
    return envs


def as_bytes(running: RunningMeanStd) -> list[bytes]:
    return [np.float64(part).tobytes() for part in (running.mean, running.var, running.count)]


# -- beside SB3's own -----------------------------------------------------------------------------


class Snapshots(BaseCallback):
    """Copies of the observations' statistics after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[RunningMeanStd] = []

    def _on_step(self) -> bool:
        envs = self.model.get_vec_normalize_env()
        if envs.norm_obs:
            self.taken.append(copy.deepcopy(envs.obs_rms))
        return True


def local(
    env_id: str,
    n_envs: int,
    steps: int,
    normalize: dict[str, Any],
    algorithm: type[Any] = PPO,
    **settings: Any,
) -> tuple[Weights, VecNormalize, Snapshots]:
    """SB3's own learning with its own VecNormalize, in one process."""
    envs = make_vec_env(env_id, n_envs=n_envs, seed=0)
    envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99), **normalize)
    model = algorithm("MlpPolicy", envs, seed=0, device="cpu", **settings)
    snapshots = Snapshots()
    logless(model).learn(steps * n_envs, callback=snapshots)
    envs.close()
    return weights_of(model), envs, snapshots


def remote(
    env_id: str,
    n_envs: int,
    steps: int,
    normalize: Any,
    algorithm: Any = PPO,
    **settings: Any,
) -> tuple[Weights, SB3Agent]:
    """The same over the protocol."""
    agent = SB3Agent(
        algorithm,
        total_timesteps=steps * n_envs,
        seed=0,
        preset="none",
        normalize=normalize,
        hyperparameters={"device": "cpu", **settings},
    )
    drive(agent, make_envs(env_id, n_envs), env_id=env_id, seed=0)
    return weights_of(agent.model), agent


SMALL = {"n_steps": 64, "batch_size": 64, "n_epochs": 2}


def test_normalized_learning_is_sb3s_own_where_no_episode_ends_with_a_rollout() -> None:
    expected, envs, snapshots = local("CartPole-v1", 4, 192, {}, gamma=0.98, **SMALL)
    learned, agent = remote("CartPole-v1", 4, 192, True, gamma=0.98, **SMALL)
    assert_same_weights(learned, expected)
    assert statistics(agent).gamma == 0.98
    # SB3 has also counted the observation after the last step, on which nothing acts.
    assert as_bytes(statistics(agent).obs_rms) == as_bytes(snapshots.taken[-2])
    assert as_bytes(statistics(agent).ret_rms) == as_bytes(envs.ret_rms)


def test_without_normalizing_other_weights_are_learned() -> None:
    plain, agent = remote("CartPole-v1", 4, 64, None, **SMALL)
    assert agent.model.get_vec_normalize_env() is None
    assert_different_weights(plain, remote("CartPole-v1", 4, 64, True, **SMALL)[0])


def test_normalized_rewards_alone_are_sb3s_own_with_truncations_too() -> None:
    settings = {**SMALL, "n_steps": 250, "batch_size": 100}
    expected, envs, _ = local("Pendulum-v1", 2, 500, REWARDS_ALONE, **settings)
    learned, agent = remote("Pendulum-v1", 2, 500, REWARDS_ALONE, **settings)
    assert_same_weights(learned, expected)
    assert as_bytes(statistics(agent).ret_rms) == as_bytes(envs.ret_rms)


def test_statistics_stay_sb3s_own_whatever_ends_when() -> None:
    """The policy is the same all the time; 200 is where Pendulum-v1 ends, and a rollout here."""
    settings = {**SMALL, "n_steps": 100, "batch_size": 100, "learning_rate": 0.0}
    _, envs, snapshots = local("Pendulum-v1", 3, 400, {}, **settings)
    _, agent = remote("Pendulum-v1", 3, 400, True, **settings)
    assert as_bytes(statistics(agent).obs_rms) == as_bytes(snapshots.taken[-2])
    assert as_bytes(statistics(agent).ret_rms) == as_bytes(envs.ret_rms)


OFF_POLICY = {"learning_starts": 20, "buffer_size": 1000, "batch_size": 16, "train_freq": 8}


def test_an_off_policy_algorithm_learns_from_normalized_rewards_as_sb3_does() -> None:
    expected, envs, _ = local("Pendulum-v1", 2, 220, REWARDS_ALONE, SAC, **OFF_POLICY)
    learned, agent = remote("Pendulum-v1", 2, 220, REWARDS_ALONE, SAC, **OFF_POLICY)
    assert_same_weights(learned, expected)
    assert as_bytes(statistics(agent).ret_rms) == as_bytes(envs.ret_rms)


def test_a_replay_buffer_holds_originals_and_normalizes_what_it_samples() -> None:
    _, agent = remote("Pendulum-v1", 1, 40, True, SAC, **OFF_POLICY)
    buffer, envs = agent.model.replay_buffer, statistics(agent)
    held, rewards = buffer.observations[:40, 0], buffer.rewards[:40, 0]
    np.testing.assert_allclose(np.linalg.norm(held[:, :2], axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(envs.obs_rms.mean, running(held).mean, rtol=1e-3)
    sampled = buffer._get_samples(np.arange(40), env=envs)
    np.testing.assert_allclose(sampled.observations, envs.normalize_obs(held), rtol=1e-5)
    np.testing.assert_allclose(
        sampled.rewards[:, 0], rewards / np.sqrt(envs.ret_rms.var + 1e-8), rtol=1e-5
    )


# -- what is counted ------------------------------------------------------------------------------


def normalizing(
    num_envs: int = 2, n_steps: int = 4, normalize: Any = True, **settings: Any
) -> tuple[SB3Agent, Any]:
    return make_agent(num_envs, n_steps, normalize=normalize, **settings)


def running(*batches: Any) -> RunningMeanStd:
    """SB3's statistics of these batches, in this order."""
    of = RunningMeanStd(shape=np.shape(batches[0])[1:])
    for batch in batches:
        of.update(np.asarray(batch, np.float64))
    return of


def test_each_observation_that_the_policy_acts_on_counts_once() -> None:
    agent, _ = normalizing()
    peer = connect(agent, 2)
    peer.ask([0, 1], column(1, 2))
    peer.tell([0, 1], column(3, 400), 0.0, terminated=[False, True])
    peer.ask([0], column(3))
    peer.tell([0], column(6), 0.0)
    peer.ask([1, 0], column(5, 6))
    expected = running(column(1, 2), column(3), column(5, 6))
    assert as_bytes(statistics(agent).obs_rms) == as_bytes(expected)


def test_observations_of_several_clients_make_one_batch() -> None:
    agent, _ = normalizing()
    left, right = connect(agent, 1), connect(agent, 2)
    requests = [left.request([0], column(1)), right.request([0, 1], column(2, 3))]
    agent.act(requests)
    assert as_bytes(statistics(agent).obs_rms) == as_bytes(running(column(1, 2, 3)))


def test_ragged_clients_give_the_statistics_of_what_their_envs_showed() -> None:
    agent, _ = normalizing(num_envs=3, n_steps=5)
    left, right = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 1)
    play_at_random([left, right], np.random.default_rng(0), messages=60)
    lanes = left.lanes + right.lanes
    seen = [row["obs"] for lane in lanes for row in lane.rows]
    seen += [lane.observation for lane in lanes if lane.action is not None]
    counted = statistics(agent).obs_rms
    assert round(counted.count) == len(seen)
    np.testing.assert_allclose(counted.mean, np.mean(seen), rtol=1e-5)
    np.testing.assert_allclose(counted.var, np.var(seen), rtol=1e-4)


def test_the_policy_sees_and_stores_what_is_normalized_after_counting() -> None:
    agent, kept = normalizing(num_envs=1, n_steps=2)
    peer = connect(agent, 1)
    expected, so_far = [], []
    for observation in (3.0, 7.0):
        so_far.append(column(observation))
        peer.ask([0], so_far[-1])
        of = running(*so_far)
        expected.append(((observation - of.mean) / np.sqrt(of.var + 1e-8)).item())
        peer.tell([0], column(observation + 1), 1.0)
    (rollout,) = kept.rollouts
    np.testing.assert_allclose(rollout["observations"][:, 0, 0], expected, rtol=1e-6)


def test_returns_are_those_of_each_env_and_start_anew_with_an_episode() -> None:
    agent, kept = normalizing(normalize={"norm_obs": False, "clip_reward": 1e9})
    peer = connect(agent, 2)
    rewards = [[1.0, 10.0], [2.0, 20.0], [4.0, 40.0], [0.0, 0.0]]
    for step, pair in enumerate(rewards):
        peer.ask([0, 1], column(0, 0))
        peer.tell([0, 1], column(0, 0), pair, terminated=[step == 1, False])
    returns = [
        [1.0, 10.0],
        [2 + GAMMA, 20 + 10 * GAMMA],
        [4.0, 40 + 20 * GAMMA + 10 * GAMMA**2],
        [4 * GAMMA, 40 * GAMMA + 20 * GAMMA**2 + 10 * GAMMA**3],
    ]
    expected = running(*returns)
    np.testing.assert_allclose(statistics(agent).ret_rms.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(statistics(agent).ret_rms.var, expected.var, rtol=1e-12)
    (rollout,) = kept.rollouts
    stored = [
        np.array(pair) / np.sqrt(running(*returns[: step + 1]).var + 1e-8)
        for step, pair in enumerate(rewards)
    ]
    np.testing.assert_allclose(rollout["rewards"], stored, rtol=1e-5)


def test_a_chunk_counts_once_with_its_own_reward_and_discount() -> None:
    agent, _ = normalizing(num_envs=1, normalize=REWARDS_ALONE, horizon=4)
    peer = connect(agent, 1)
    for paid in ([1.0, 1.0, 1.0], [5.0]):
        peer.ask([0], column(0))
        peer.tell([0], column(0), sum(paid), step_rewards=[paid])
    first = 1 + GAMMA + GAMMA**2
    expected = running([first], [first * GAMMA + 5.0])
    np.testing.assert_allclose(statistics(agent).ret_rms.mean, expected.mean, rtol=1e-7)


def test_what_follows_is_normalized_as_if_it_had_been_counted_and_is_not() -> None:
    agent, kept = normalizing(num_envs=2, n_steps=1, normalize={"norm_reward": False})
    agent.model.policy.predict_values = lambda obs: obs.float()
    peer = connect(agent, 2)
    peer.ask([0, 1], column(0, 4))
    peer.tell([0, 1], column(2, 100), 1.0, truncated=[False, True])
    of = running(column(0, 4), column(2))  # what comes after 100 is not known yet

    def value(observation: float) -> float:
        return float((observation - of.mean).item() / np.sqrt(of.var + 1e-8).item())

    (rollout,) = kept.rollouts
    assert value(100) > 10, "and clipped"
    np.testing.assert_allclose(rollout["rewards"][0], [1.0, 1.0 + GAMMA * 10], rtol=1e-6)
    np.testing.assert_allclose(rollout["returns"][0, 0], 1.0 + GAMMA * value(2), rtol=1e-6)
    assert as_bytes(statistics(agent).obs_rms) == as_bytes(running(column(0, 4)))


def test_an_evaluating_client_uses_the_statistics_and_adds_nothing() -> None:
    agent, _ = normalizing()
    peer = connect(agent, 2)
    for _ in range(3):
        peer.ask([0, 1], column(5, 9))
        peer.tell([0, 1], column(5, 9), [1.0, 2.0])
    before = as_bytes(statistics(agent).obs_rms) + as_bytes(statistics(agent).ret_rms)
    watcher = AgentPeer(agent, NUMBER, spaces.Discrete(7), num_envs=3, mode="eval")
    seen = column(-40, 7, 40)
    for _ in range(2):
        chosen = watcher.ask(range(3), seen)[0]
        watcher.tell(range(3), seen, 100.0, terminated=True)
    expected, _ = agent.model.predict(statistics(agent).normalize_obs(seen), deterministic=True)
    np.testing.assert_array_equal(chosen, expected)
    assert as_bytes(statistics(agent).obs_rms) + as_bytes(statistics(agent).ret_rms) == before


def test_a_number_that_is_not_finite_does_not_reach_the_statistics() -> None:
    agent, _ = normalizing(num_envs=1)
    peer = connect(agent, 1, foreign=True)
    for reward, following in ((1.0, 1.0), (np.nan, 2.0), (np.inf, 3.0), (1.0, np.nan), (1.0, 4.0)):
        peer.ask([0], column(0))
        peer.tell([0], column(following), reward)
    envs = statistics(agent)
    assert np.isfinite([envs.ret_rms.mean, envs.ret_rms.var]).all()
    assert round(envs.ret_rms.count) == 2
    assert np.isfinite(envs.obs_rms.mean).all()


# -- which observations ---------------------------------------------------------------------------

MIXED = spaces.Dict(
    place=spaces.Box(-1e3, 1e3, (2,), np.float32),
    room=spaces.Discrete(3),
    view=spaces.Box(0, 255, (40, 40, 3), np.uint8),
)


def mixed(place: float) -> dict[str, np.ndarray]:
    return {
        "place": np.full((1, 2), place, np.float32),
        "room": np.array([1]),
        "view": np.full((1, 40, 40, 3), 200, np.uint8),
    }


def test_of_a_dict_the_numbers_are_normalized_and_nothing_else() -> None:
    agent, kept = normalizing(1, 2, observation_space=MIXED)
    peer = connect(agent, 1)
    for place in (1.0, 3.0):
        peer.ask([0], mixed(place))
        peer.tell([0], mixed(place), 1.0)
    (rollout,) = kept.rollouts
    of = running([[1.0, 1.0]], [[3.0, 3.0]])
    np.testing.assert_allclose(
        rollout["observations.place"][1, 0], (3.0 - of.mean) / np.sqrt(of.var + 1e-8), rtol=1e-6
    )
    assert (rollout["observations.view"] == 200).all()
    assert rollout["observations.room"].tolist() == [[[1]], [[1]]]
    assert list(statistics(agent).obs_rms) == ["place"]


def test_a_caller_may_name_the_keys() -> None:
    space = spaces.Dict(a=NUMBER, b=NUMBER)
    agent, _ = normalizing(1, 2, {"norm_obs_keys": ["b"]}, observation_space=space)
    assert list(statistics(agent).obs_rms) == ["b"]


def test_whole_numbers_are_stored_as_the_fractions_that_they_become() -> None:
    space = spaces.Box(0, 100, (1,), np.int64)
    agent, kept = normalizing(1, 2, observation_space=space)
    peer = connect(agent, 1)
    for observation in (1, 4):
        peer.ask([0], np.array([[observation]]))
        peer.tell([0], np.array([[observation]]), 1.0)
    (rollout,) = kept.rollouts
    of = running([[1.0]], [[4.0]])
    expected = (4.0 - of.mean) / np.sqrt(of.var + 1e-8)
    np.testing.assert_allclose(rollout["observations"][1, 0], expected, rtol=1e-6)
    assert agent.model.observation_space == space


@pytest.mark.parametrize(
    "space", [spaces.Discrete(4), spaces.Box(0, 255, (40, 40, 3), np.uint8)], ids=str
)
def test_what_is_no_number_is_left_alone_and_rewards_are_not(space: spaces.Space[Any]) -> None:
    agent, _ = normalizing(1, 2, observation_space=space)
    assert not statistics(agent).norm_obs
    assert statistics(agent).norm_reward


# -- what a user may say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        (None, None),
        (False, False),
        ("false", False),
        (True, {}),
        ("True", {}),
        ({"clip_obs": 5}, {"clip_obs": 5}),
        ("dict(norm_obs=True, norm_reward=False)", {"norm_obs": True, "norm_reward": False}),
        ("{'gamma': 0.9, 'norm_obs_keys': ['a']}", {"gamma": 0.9, "norm_obs_keys": ["a"]}),
    ],
)
def test_normalizing_is_asked_for_as_the_zoo_does(given: Any, arguments: Any) -> None:
    assert normalize_arguments(given) == arguments


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, "normalize: expected true, false or arguments of VecNormalize, got 3"),
        ("yes", "normalize: expected true, false or arguments of VecNormalize, got 'yes'"),
        ("dict(", "normalize: 'dict(' is no Python literal"),
        ({"norm_ob": True}, "has no setting 'norm_ob' here; did you mean 'norm_obs'?"),
        ({"training": False}, "has no setting 'training' here"),
        ({"venv": None}, "has no setting 'venv' here"),
        ({"norm_obs": 1}, "normalize: norm_obs: expected bool, got 1"),
        ({"clip_obs": -1.0}, "normalize: clip_obs: -1.0 is less than 0"),
        ({"gamma": float("nan")}, "normalize: gamma: nan is not a finite number"),
        ({"norm_obs_keys": [1]}, "normalize: norm_obs_keys: expected list"),
    ],
)
def test_what_normalizing_does_not_take_is_refused(given: Any, text: str) -> None:
    with pytest.raises(UsageError) as raised:
        SB3Agent("ppo", normalize=given)
    assert text in str(raised.value)


def test_keys_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="'view' is not among the numbers that the policy sees"):
        normalizing(1, 2, {"norm_obs_keys": ["view"]}, observation_space=MIXED)
    with pytest.raises(UsageError, match="norm_obs_keys"):
        normalizing(1, 2, {"norm_obs_keys": ["view"]})


@pytest.mark.parametrize(("given", "normalizes"), [(None, True), (False, False)])
def test_a_file_of_settings_normalizes_unless_the_caller_does_not(
    given: Any, normalizes: bool, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yml"
    file.write_text("normalize: dict(norm_obs=True, norm_reward=False)\nn_steps: 8\n")
    agent = SB3Agent(
        "ppo",
        hyperparameter_file=file,
        normalize=given,
        observation_space=NUMBER,
        action_space=spaces.Discrete(2),
        num_envs=2,
        preset="none",
        device="cpu",
    )
    envs = agent.model.get_vec_normalize_env()
    assert (envs is not None) == normalizes
    assert envs is None or not envs.norm_reward


# -- files ----------------------------------------------------------------------------------------


def test_a_run_leaves_a_model_and_statistics_that_plain_sb3_evaluates(tmp_path: Path) -> None:
    agent = SB3Agent(
        "ppo",
        total_timesteps=256,
        seed=0,
        preset="none",
        normalize=True,
        run_dir=tmp_path,
        hyperparameters={"device": "cpu", **SMALL},
    )
    drive(agent, make_envs("CartPole-v1", 4), env_id="CartPole-v1", seed=0)
    agent.close()
    model = PPO.load(tmp_path / "model.zip", device="cpu")
    envs = VecNormalize.load(
        str(tmp_path / "vecnormalize.pkl"), DummyVecEnv([lambda: gym.make("CartPole-v1")])
    )
    assert envs.training, "as SB3 itself leaves it"
    envs.training = False
    envs.seed(3)
    normalized = envs.reset()
    original = envs.get_original_obs()
    expected, _ = model.predict(normalized, deterministic=True)
    watcher = AgentPeer(agent, envs.observation_space, envs.action_space, mode="eval")
    np.testing.assert_array_equal(watcher.ask([0], original)[0], expected)
    np.testing.assert_array_equal(normalized, statistics(agent).normalize_obs(original))
    envs.close()


def stand_in(space: spaces.Space[Any] = NUMBER, **arguments: Any) -> VecNormalize:
    return normalized_envs(SpacesOnlyVecEnv(2, space, spaces.Discrete(2)), arguments)


def test_what_was_saved_is_gone_on_with(tmp_path: Path) -> None:
    saved = stand_in(clip_obs=3.0, norm_reward=False)
    first = Normalizer(saved)
    first.see(column(1, 5))
    first.rewards(np.float32([2.0]), np.array([2.0]))
    first.save(tmp_path / "vecnormalize.pkl")
    loaded = stand_in()
    second = Normalizer(loaded)
    second.load(tmp_path / "vecnormalize.pkl")
    assert (loaded.clip_obs, loaded.norm_reward) == (3.0, False)
    assert [path.name for path in tmp_path.iterdir()] == ["vecnormalize.pkl"]
    for normalizer in (first, second):
        normalizer.see(column(9, 9))
    assert as_bytes(loaded.obs_rms) == as_bytes(saved.obs_rms)
    assert as_bytes(loaded.ret_rms) == as_bytes(saved.ret_rms)
    assert not loaded.training


def test_a_file_of_plain_sb3_is_gone_on_with(tmp_path: Path) -> None:
    envs = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    envs.reset()
    envs.save(str(tmp_path / "vecnormalize.pkl"))
    loaded = stand_in(envs.observation_space)
    Normalizer(loaded).load(tmp_path / "vecnormalize.pkl")
    assert as_bytes(loaded.obs_rms) == as_bytes(envs.obs_rms)
    envs.close()


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vecnormalize.pkl"
    normalizer = Normalizer(stand_in())
    with pytest.raises(UsageError, match=r"vecnormalize.pkl cannot be read: FileNotFoundError"):
        normalizer.load(path)
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(UsageError, match="cannot be read: "):
        normalizer.load(path)
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(UsageError, match="holds a list, not a VecNormalize"):
        normalizer.load(path)
    Normalizer(stand_in(spaces.Box(-1.0, 1.0, (3,)))).save(path)
    with pytest.raises(UsageError, match=r"has observations \(3,\), this run has \(1,\)"):
        normalizer.load(path)


def test_a_copy_stays_as_it_is_and_can_be_saved(tmp_path: Path) -> None:
    normalizer = Normalizer(stand_in())
    normalizer.see(column(1, 5))
    twin = copy.deepcopy(normalizer)
    before = twin.normalize(column(2))
    normalizer.see(column(100, 200))
    np.testing.assert_array_equal(twin.normalize(column(2)), before)
    twin.save(tmp_path / "best.pkl")
    normalizer.load(tmp_path / "best.pkl")
    np.testing.assert_array_equal(normalizer.normalize(column(2)), before)
