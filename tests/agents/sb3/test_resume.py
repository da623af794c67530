"""A run that stopped goes on as if nothing had happened."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback, EveryNTimesteps
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.runs.logs import learning_time
from plugrl_gym.errors import UsageError
from tests.support.lockstep import assert_different_weights, assert_same_weights, weights_of
from tests.support.resuming import (
    Envs,
    checkpoints,
    killed,
    progress,
    small_agent,
    stopped_run,
)

PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
HALF, WHOLE, ENVS = 2000, 4000, 20
NET: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}}
# A rollout is 240 transitions, so HALF is in the middle of one.
ROLLOUTS: dict[str, Any] = {**NET, "n_steps": 12, "learning_rate": "lin_0.001"}
REPLAY: dict[str, Any] = {
    **NET,
    "learning_rate": "lin_0.001",
    "learning_starts": 400,
    "train_freq": 7,
    "gradient_steps": 2,
    "batch_size": 16,
    "buffer_size": 3000,
}
GREEDY: dict[str, Any] = {**REPLAY, "exploration_fraction": 0.9, "target_update_interval": 200}
RED = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5))

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", CARTPOLE, {**ROLLOUTS, "n_epochs": 2, "batch_size": 120}),
    "ppo-gsde": (
        "ppo",
        PENDULUM,
        {**ROLLOUTS, "n_epochs": 1, "use_sde": True, "sde_sample_freq": 7},
    ),
    "a2c": ("a2c", CARTPOLE, ROLLOUTS),
    "trpo": ("trpo", CARTPOLE, {**ROLLOUTS, "n_critic_updates": 1}),
    "sac": ("sac", PENDULUM, REPLAY),
    "sac-gsde": ("sac", PENDULUM, {**REPLAY, "use_sde": True, "sde_sample_freq": 7}),
    "td3": ("td3", PENDULUM, {**REPLAY, "action_noise": RED}),
    "ddpg": ("ddpg", PENDULUM, REPLAY),
    "dqn": ("dqn", CARTPOLE, GREEDY),
    "tqc": ("tqc", PENDULUM, REPLAY),
    "qrdqn": ("qrdqn", CARTPOLE, GREEDY),
    "crossq": ("crossq", PENDULUM, {**REPLAY, "policy_kwargs": {"net_arch": [8]}}),
}


def agent_of(case: str, run_dir: Path, **settings: Any) -> SB3Agent:
    algorithm, _, hyperparameters = CASES[case]
    return SB3Agent(
        algorithm,
        total_timesteps=WHOLE,
        seed=3,
        preset="none",
        run_dir=run_dir,
        hyperparameters={"device": "cpu", **hyperparameters},
        **settings,
    )


def envs_of(case: str) -> Envs:
    return Envs(CASES[case][1], ENVS)


def uninterrupted(case: str, run_dir: Path, **settings: Any) -> SB3Agent:
    """An agent whose only client reconnects in the middle."""
    agent = agent_of(case, run_dir, **settings)
    with envs_of(case) as envs:
        envs.run(agent, until=HALF)
        envs.run(agent)
    agent.close()
    return agent


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.full] if "-" in case else []) for case in CASES]
)
def test_a_resumed_run_learns_the_weights_of_one_that_never_stopped(
    case: str, tmp_path: Path
) -> None:
    expected = uninterrupted(case, tmp_path / "whole")
    run_dir = tmp_path / "halves"
    with envs_of(case) as envs:
        first = agent_of(case, run_dir)
        envs.run(first, until=HALF)
        first.close()
        halfway = weights_of(first.model)
        second = SB3Agent(resume=run_dir)
        assert (second.timesteps, second.total_timesteps) == (HALF, WHOLE)
        assert_same_weights(weights_of(second.model), halfway)
        envs.run(second)
    second.close()
    assert WHOLE <= second.timesteps == expected.timesteps
    assert_same_weights(weights_of(second.model), weights_of(expected.model))
    assert_different_weights(weights_of(second.model), halfway)
    assert second.counters == expected.counters
    assert progress(run_dir) == progress(tmp_path / "whole")


@pytest.mark.parametrize(
    "case", ["dqn", *(pytest.param(case, marks=pytest.mark.full) for case in ("ppo", "sac"))]
)
def test_a_killed_run_goes_on_from_its_last_checkpoint(case: str, tmp_path: Path) -> None:
    expected = uninterrupted(case, tmp_path / "whole")
    with envs_of(case) as envs, envs_of(case) as others:
        with closing(agent_of(case, tmp_path / "killed", save_every=HALF)) as first:
            envs.run(first, until=HALF)
            others.run(first, until=HALF // 2)  # of this the checkpoint knows nothing
            run_dir = killed(tmp_path / "killed", tmp_path / "left")
        with closing(SB3Agent(resume=run_dir)) as second:
            envs.run(second)
    assert_same_weights(weights_of(second.model), weights_of(expected.model))
    assert second.counters == expected.counters
    assert progress(run_dir) == progress(tmp_path / "whole")


def test_a_client_that_is_connected_when_its_server_is_killed_is_cut_there(tmp_path: Path) -> None:
    with envs_of("ppo") as envs, closing(agent_of("ppo", tmp_path / "whole")) as expected:
        peer = envs.connect(expected)
        envs.step(peer)
        envs.step(peer)
        peer.leave()
        envs.run(expected)
    with envs_of("ppo") as envs, closing(agent_of("ppo", tmp_path / "first", save_every=40)) as one:
        peer = envs.connect(one)
        envs.step(peer)
        envs.step(peer)
        with closing(SB3Agent(resume=killed(tmp_path / "first", tmp_path / "left"))) as second:
            envs.run(second)
    assert_same_weights(weights_of(second.model), weights_of(expected.model))
    assert second.counters == expected.counters


def test_an_update_that_was_due_is_done_before_anybody_acts(tmp_path: Path) -> None:
    """The server was stopped between the feedback that completed a rollout and the update."""
    with Envs("CartPole-v1", 2) as envs, closing(small_agent(tmp_path)) as agent:
        peer = envs.connect(agent, learns=False)
        for _ in range(16):
            envs.step(peer)
        peer.leave()
        assert agent.learning_due
    with closing(SB3Agent(resume=tmp_path)) as resumed:
        assert resumed.counters.updates == 1
        assert not resumed.learning_due


def test_actions_that_nobody_will_answer_are_counted(tmp_path: Path) -> None:
    with Envs("CartPole-v1", 2) as envs, closing(small_agent(tmp_path / "run")) as agent:
        peer = envs.connect(agent)
        envs.step(peer)
        envs.ask(peer)
        agent.save()
        run_dir = killed(tmp_path / "run", tmp_path / "left")
        peer.leave()
    with closing(SB3Agent(resume=run_dir)) as resumed:
        assert resumed.counters.chunks_dropped == agent.counters.chunks_dropped == 2


def test_a_larger_total_goes_on_with_a_run_that_was_over(tmp_path: Path) -> None:
    run_dir = stopped_run(tmp_path / "run", total_timesteps=64, steps=64)
    with (
        closing(SB3Agent(resume=run_dir, total_timesteps=128)) as agent,
        Envs("CartPole-v1", 2) as envs,
    ):
        envs.run(agent)
    assert agent.timesteps == 128
    with closing(SB3Agent(resume=run_dir, total_timesteps=192)) as agent:
        assert agent.total_timesteps == 192


def test_schedules_are_where_a_larger_total_puts_them(tmp_path: Path) -> None:
    rate = {"hyperparameters": {"learning_rate": "lin_1.0", "n_steps": 16, "batch_size": 16}}
    run_dir = stopped_run(tmp_path / "run", total_timesteps=128, steps=64, **rate)
    for total, expected in ((128, 0.25), (384, 0.75)):
        left = killed(run_dir, tmp_path / str(total))
        with closing(SB3Agent(resume=left, total_timesteps=total)) as agent:
            with Envs("CartPole-v1", 2) as envs:
                envs.run(agent, until=32)
            assert agent.model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


def test_callbacks_know_how_often_they_were_called(tmp_path: Path) -> None:
    class Counting(BaseCallback):
        def _on_step(self) -> bool:
            return True

    first, second = Counting(), Counting()
    inner = EveryNTimesteps(40, Counting())
    run_dir = stopped_run(tmp_path / "run", callback=[first, inner])
    assert first.n_calls == 32
    again = EveryNTimesteps(40, Counting())
    with closing(SB3Agent(resume=run_dir, callback=[second, again])) as agent:
        assert (second.n_calls, again.n_calls) == (32, 32)
        assert (again.last_time_trigger, again.callback.n_calls) == (inner.last_time_trigger, 1)
        with Envs("CartPole-v1", 2) as envs:
            envs.run(agent, until=2)
    assert second.n_calls == 33


def test_sb3s_clock_does_not_count_the_pause(tmp_path: Path, monkeypatch: Any) -> None:
    run_dir = stopped_run(tmp_path / "run")
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 3_600_000_000_000)
    with closing(SB3Agent(resume=run_dir)) as agent:
        assert 0 < learning_time(agent.model) < 600_000_000_000


def test_a_normalizer_goes_on(tmp_path: Path) -> None:
    def statistics(agent: SB3Agent) -> Any:
        envs = agent.model.get_vec_normalize_env()
        return [envs.obs_rms.mean, envs.obs_rms.var, envs.obs_rms.count, envs.ret_rms.var]

    with Envs("CartPole-v1", 2) as envs, closing(small_agent(None, normalize=True)) as whole:
        envs.run(whole, until=64)
        envs.run(whole, until=128)
    with Envs("CartPole-v1", 2) as envs:
        with closing(small_agent(tmp_path / "run", normalize=True)) as first:
            envs.run(first, until=64)
        with closing(SB3Agent(resume=tmp_path / "run")) as second:
            envs.run(second, until=128)
    for ours, theirs in zip(statistics(second), statistics(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert_same_weights(weights_of(second.model), weights_of(whole.model))
    assert (tmp_path / "run" / "vecnormalize.pkl").exists()


def test_a_horizon_goes_on(tmp_path: Path) -> None:
    run_dir = stopped_run(tmp_path / "run", horizon=3)
    with closing(SB3Agent(resume=run_dir)) as agent, Envs("CartPole-v1", 2) as envs:
        assert agent.metadata().action_horizon == 3
        assert envs.connect(agent).ask(range(2), np.zeros((2, 4), np.float32)).shape == (3, 2)


@pytest.mark.parametrize("horizon", [1, 2])
def test_another_horizon_is_refused_even_where_it_is_the_default(
    tmp_path: Path, horizon: int
) -> None:
    run_dir = stopped_run(tmp_path / "run", horizon=3)
    with pytest.raises(UsageError) as caught:
        SB3Agent(resume=run_dir, horizon=horizon)
    assert str(caught.value) == (
        f"{run_dir} was started with horizon=3, it cannot go on with horizon={horizon}"
    )


def test_a_run_that_learns_aside_goes_on_doing_so(tmp_path: Path) -> None:
    def run(agent: SB3Agent) -> None:
        with Envs("CartPole-v1", 2) as envs:
            peer = envs.connect(agent)
            for _ in range(20):
                envs.step(peer)
                while agent.learning_wanted:
                    agent.learn()
            peer.leave()

    with closing(small_agent(tmp_path, "dqn", async_learn=True, save_every=30)) as first:
        run(first)
    with closing(SB3Agent(resume=tmp_path)) as second:
        assert second.timesteps == 40
        assert second.counters == first.counters
        assert second.model.replay_buffer.size() == first.model.replay_buffer.size() == 20
        run(second)
        assert second.timesteps == 80
        assert second.counters.updates > first.counters.updates
    assert checkpoints(tmp_path) == [40, 60, 80]


def test_transitions_that_wait_for_the_next_rollout_are_not_lost(tmp_path: Path) -> None:
    # A rollout is 32 transitions, and 20 envs tell 40: 8 are left over when it is learned from.
    first = small_agent(tmp_path, num_envs=2, save_every=1)
    with Envs("CartPole-v1", 20) as envs:
        envs.run(first, until=40)
        left = killed(tmp_path, tmp_path / "left")
        first.close()
        assert (first.counters.updates, first.counters.transitions_stored) == (1, 40)
        with closing(SB3Agent(resume=left)) as second:
            envs.run(second, until=60)  # 28 of 32
            assert second.counters.updates == 1
            envs.run(second, until=80)
            assert (second.counters.updates, second.counters.transitions_stored) == (2, 80)
