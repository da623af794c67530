"""A number that is not finite ends the run; what was saved before it stays good."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.learners.health import Health, NotFinite
from tests.support.agent_peer import AgentPeer
from tests.support.resuming import Envs, checkpoints, small_agent

NAN, INF = float("nan"), float("inf")


def spoil(model: BaseAlgorithm, name: str, value: float) -> None:
    """Put a value into one parameter."""
    with torch.no_grad():
        dict(model.policy.named_parameters())[name].view(-1)[0] = value


@pytest.fixture
def bad_update(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Any], int, str, float], None]:
    """Let the ``number``-th training of any model of a class leave a value in a parameter."""

    def install(algorithm: type[Any], number: int, name: str, value: float) -> None:
        train, calls = algorithm.train, []

        def bad(self: Any, **arguments: Any) -> None:
            train(self, **arguments)
            calls.append(None)
            if len(calls) == number:
                spoil(self, name, value)

        monkeypatch.setattr(algorithm, "train", bad)

    return install


def failure(agent: SB3Agent) -> str:
    with Envs("CartPole-v1", 2) as envs, pytest.raises(NotFinite) as caught:
        envs.run(agent)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("value", [NAN, -INF])
@pytest.mark.parametrize(
    ("algorithm", "name", "number", "step", "last"),
    [
        (PPO, "action_net.weight", 2, 64, 60),
        (DQN, "q_net.q_net.0.bias", 3, 32, 20),
    ],
)
def test_an_update_that_makes_a_bad_number_ends_the_run_and_is_named(
    algorithm: type[Any],
    name: str,
    number: int,
    step: int,
    last: int,
    value: float,
    tmp_path: Path,
    bad_update: Any,
) -> None:
    bad_update(algorithm, number, name, value)
    with closing(small_agent(tmp_path, algorithm.__name__.lower(), save_every=20)) as agent:
        said = failure(agent)
    numel = dict(agent.model.policy.named_parameters())[name].numel()
    assert said == (
        f"update {number}, at env step {step}, made 1 of {numel} numbers in policy.{name} not "
        f"finite ({value}); the last good checkpoint is {tmp_path / 'checkpoints' / str(last)}"
    )
    assert max(checkpoints(tmp_path)) == last
    saved = algorithm.load(tmp_path / "model.zip", device="cpu")
    assert saved.num_timesteps == last
    assert all(torch.isfinite(p).all() for p in saved.policy.parameters())
    with closing(SB3Agent(resume=tmp_path)) as resumed:
        assert resumed.timesteps == last


def test_the_very_first_update_has_a_good_checkpoint_before_it(
    tmp_path: Path, bad_update: Any
) -> None:
    bad_update(PPO, 1, "value_net.bias", NAN)
    with closing(small_agent(tmp_path)) as agent:
        said = failure(agent)
    assert said.endswith(f"; the last good checkpoint is {tmp_path / 'checkpoints' / '0'}")
    with closing(SB3Agent(resume=tmp_path)) as resumed:
        assert resumed.timesteps == 0


def test_a_bad_number_is_named_where_the_update_itself_stumbles_over_it(tmp_path: Path) -> None:
    """Diverging for real: after the first minibatches torch's distributions refuse the NaN."""
    settings = {"n_steps": 16, "batch_size": 4, "learning_rate": 1e30, "max_grad_norm": 1e30}
    with closing(small_agent(tmp_path, hyperparameters=settings)) as agent:
        said = failure(agent)
    assert said.startswith("update 1, at env step 32, made ")
    assert " not finite (nan); the last good checkpoint is " in said


def test_without_files_the_sentence_says_so(bad_update: Any) -> None:
    bad_update(PPO, 1, "value_net.bias", NAN)
    with closing(small_agent(None)) as agent:
        assert failure(agent).endswith("not finite (nan); no checkpoint was saved")


def test_an_error_in_the_middle_of_an_update_saves_nothing_half_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: Any) -> None:
        spoil(self, "value_net.bias", 7.0)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(PPO, "train", crash)
    with (
        closing(small_agent(tmp_path)) as agent,
        Envs("CartPole-v1", 2) as envs,
        pytest.raises(RuntimeError, match="out of memory"),
    ):
        envs.run(agent)
    assert checkpoints(tmp_path) == [0]
    assert PPO.load(tmp_path / "model.zip").num_timesteps == 0


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])
def test_a_forward_pass_that_gives_a_bad_number_ends_the_run(
    space: spaces.Space[Any], tmp_path: Path
) -> None:
    observed = spaces.Box(-np.inf, np.inf, (1,))
    with closing(small_agent(tmp_path, save_every=0)) as agent:
        peer = AgentPeer(agent, observed, space)
        observation = np.ones((1, 1), np.float32)
        peer.ask([0], observation)
        peer.tell([0], observation, 0.0)
        spoil(agent.model, "action_net.bias", NAN)
        with pytest.raises(NotFinite) as caught:
            peer.ask([0], observation)
    assert str(caught.value).startswith("the policy's forward pass at env step 1 ")
    assert "not finite (" in str(caught.value)
    assert not (tmp_path / "model.zip").exists()


def test_an_action_that_is_not_finite_never_goes_out() -> None:
    """A policy without a distribution does not notice by itself."""
    observed, action = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,))
    agent = SB3Agent("td3", preset="none", learning_starts=0, policy_kwargs={"net_arch": [4]})
    peer = AgentPeer(agent, observed, action)
    observation = np.zeros((1, 1), np.float32)
    peer.ask([0], observation)
    peer.tell([0], observation, 0.0)
    spoil(agent.model, "actor.mu.2.bias", NAN)
    with pytest.raises(NotFinite, match="gave an action that is not finite"):
        peer.ask([0], observation)


def test_a_number_whose_square_is_too_large_is_no_bad_number() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", device="cpu")
    spoil(model, "value_net.bias", 1e30)
    with Health(model).watch(1):
        pass


def test_optimizers_are_looked_at_before_a_checkpoint_is_written(tmp_path: Path) -> None:
    with closing(small_agent(tmp_path, save_every=0)) as agent, Envs("CartPole-v1", 2) as envs:
        envs.run(agent, until=32)
        next(iter(agent.model.policy.optimizer.state.values()))["exp_avg_sq"].fill_(INF)
        with pytest.raises(NotFinite, match=r"optimizer\S* is not finite after env step 32"):
            agent.save()
    assert not (tmp_path / "model.zip").exists()


def test_the_entropy_coefficient_is_watched_too() -> None:
    agent = SB3Agent("sac", preset="none", buffer_size=10)
    space = spaces.Box(-1, 1, (1,))
    AgentPeer(agent, space, space).ask([0], np.zeros((1, 1), np.float32))
    with pytest.raises(NotFinite, match="in log_ent_coef not finite"), Health(agent.model).watch(1):
        agent.model.log_ent_coef.data.fill_(NAN)
