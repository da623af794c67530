"""Which transitions a rollout holds, whose they are, and what is estimated from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from plugrl_gym.agents.sb3 import SB3Agent
from tests.support.agent_peer import AgentPeer

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float64)
GAMMA, LAMBDA = 0.99, 0.9


@dataclass
class Kept:
    """The rollouts that an agent would have trained on, newest last."""

    rollouts: list[dict[str, np.ndarray]] = field(default_factory=list)


def make_agent(
    num_envs: int, n_steps: int, action_space: Any = None, **settings: Any
) -> tuple[SB3Agent, Kept]:
    """An agent whose updates only copy the rollout buffer, so that its policy stays the same."""
    agent = SB3Agent(
        "ppo",
        total_timesteps=10**9,
        num_envs=num_envs,
        seed=3,
        observation_space=NUMBER,
        action_space=action_space or spaces.Discrete(7),
        n_steps=n_steps,
        batch_size=num_envs * n_steps,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        device="cpu",
        **settings,
    )
    kept, model = Kept(), agent.model
    assert model is not None

    def keep() -> None:
        buffer = model.rollout_buffer
        names = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs")
        arrays = {name: getattr(buffer, name).copy() for name in (*names, "advantages", "returns")}
        kept.rollouts.append(arrays)

    model.train = keep  # type: ignore[method-assign]
    return agent, kept


def connect(agent: SB3Agent, num_envs: int, **options: Any) -> AgentPeer:
    return AgentPeer(
        agent, NUMBER, agent.model.action_space, num_envs=num_envs, declares=False, **options
    )


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


# -- D01 ----------------------------------------------------------------------------------------


def critic_that_reads_the_observation(agent: SB3Agent) -> None:
    """V(o) = o, so that 2 and 50 show which observation was used."""
    agent.model.policy.predict_values = lambda obs: obs.float()


def test_only_a_truncation_that_is_no_termination_is_bootstrapped() -> None:
    agent, kept = make_agent(num_envs=4, n_steps=2)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 4)
    peer.ask(range(4), column(0, 0, 0, 0))
    # truncated alone, terminated alone, both, neither; the last goes on from observation 2
    terminated, truncated = [False, True, True, False], [True, False, True, False]
    peer.tell(range(4), column(2, 2, 2, 2), 1.0, terminated, truncated)
    peer.ask(range(4), column(50, 50, 50, 2))
    peer.tell(range(4), column(51, 51, 51, 3), 1.0)
    (rollout,) = kept.rollouts
    assert rollout["rewards"].shape == (2, 4)
    np.testing.assert_allclose(rollout["rewards"][0], [2.98, 1.0, 1.0, 1.0], rtol=1e-6)
    assert 50.5 not in rollout["rewards"]  # 1 + gamma * V(reset)
    np.testing.assert_array_equal(rollout["episode_starts"], [[1, 1, 1, 1], [1, 1, 1, 0]])
    np.testing.assert_array_equal(rollout["rewards"][1], 1.0)


def test_a_rollout_that_ends_in_mid_episode_is_bootstrapped_and_a_finished_one_is_not() -> None:
    agent, kept = make_agent(num_envs=2, n_steps=1)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 2)
    peer.ask(range(2), column(0, 0))
    peer.tell(range(2), column(10, 10), 1.0, terminated=[True, False])
    (rollout,) = kept.rollouts
    np.testing.assert_allclose(rollout["returns"][0], [1.0, 1.0 + GAMMA * 10], rtol=1e-6)


# -- ragged feedback, several clients -------------------------------------------------------------


@dataclass
class Lane:
    """One env: observations 1000 * number + t, t never repeated; what it did, in order."""

    number: int
    t: int = 0
    action: int | None = None
    done: list[bool] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def observation(self) -> float:
        return 1000.0 * self.number + self.t


class RaggedClient:
    """Asks and answers in whatever groups a test wants, and writes down the truth."""

    def __init__(self, agent: SB3Agent, first: int, num_envs: int) -> None:
        self.peer = connect(agent, num_envs)
        self.lanes = [Lane(first + k) for k in range(num_envs)]

    def ask(self, *envs: int) -> None:
        chunk = self.peer.ask(envs, column(*(self.lanes[env].observation for env in envs)))
        for env, action in zip(envs, chunk[0].tolist(), strict=True):
            self.lanes[env].action = action

    def tell(self, *envs: int, terminated: bool = False, truncated: bool = False) -> None:
        done, rewards, seen = terminated or truncated, [], []
        for env in envs:
            lane = self.lanes[env]
            row = {"obs": lane.observation, "action": lane.action, "done": done}
            lane.t += 1
            row |= {"next": lane.observation, "reward": 0.001 * lane.observation}
            row |= {"truncated": truncated and not terminated, "start": _starts(lane)}
            rewards.append(row["reward"])
            seen.append(row["next"])
            lane.rows.append(row)
            lane.action = None
            lane.t += 10 * done  # the next episode begins elsewhere
        self.peer.tell(envs, column(*seen), rewards, terminated, truncated)


def _starts(lane: Lane) -> bool:
    return not lane.rows or bool(lane.rows[-1]["done"])


def value_at(agent: SB3Agent, observation: float) -> float:
    with torch.no_grad():
        return float(agent.model.policy.predict_values(torch.tensor([[observation]]))[0, 0])


def check_against_truth(agent: SB3Agent, kept: Kept, lanes: list[Lane], size: int) -> int:
    """Every stored row is some lane's next row, whole; advantages follow from the rows alone."""
    following = {lane.number: 0 for lane in lanes}
    by_number = {lane.number: lane for lane in lanes}
    for rollout in kept.rollouts:
        flat = {
            name: array.swapaxes(0, 1).reshape(size, *array.shape[2:])
            for name, array in rollout.items()
        }
        numbers = (flat["observations"][:, 0] // 1000).astype(int)
        for number in dict.fromkeys(numbers.tolist()):
            (rows,) = np.nonzero(numbers == number)
            assert (np.diff(rows) == 1).all(), "the rows of one env lie together"
            begin = following[number]
            following[number] += len(rows)
            truth = by_number[number].rows[begin : following[number]]
            check_segment(agent, {name: array[rows] for name, array in flat.items()}, truth)
    return sum(following.values())


def check_segment(agent: SB3Agent, stored: dict[str, np.ndarray], truth: list[Any]) -> None:
    assert stored["observations"][:, 0].tolist() == [row["obs"] for row in truth]
    assert stored["actions"][:, 0].tolist() == [row["action"] for row in truth]
    assert stored["episode_starts"].tolist() == [row["start"] for row in truth]
    rewards = [
        row["reward"] + (GAMMA * value_at(agent, row["next"]) if row["truncated"] else 0.0)
        for row in truth
    ]
    np.testing.assert_allclose(stored["rewards"], rewards, rtol=1e-5)
    np.testing.assert_allclose(
        stored["values"], [value_at(agent, row["obs"]) for row in truth], rtol=1e-4, atol=1e-5
    )
    advantages = generalised_advantages(agent, stored["values"], rewards, truth)
    np.testing.assert_allclose(stored["advantages"], advantages, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        stored["returns"], stored["advantages"] + stored["values"], rtol=1e-5, atol=1e-6
    )


def generalised_advantages(
    agent: SB3Agent, values: np.ndarray, rewards: list[float], truth: list[Any]
) -> list[float]:
    """GAE from its definition: the sum of discounted one-step errors up to the episode's end."""
    ahead = [*values[1:].tolist(), value_at(agent, truth[-1]["next"])]
    errors = [
        reward + GAMMA * (0.0 if row["done"] else after) - value
        for reward, row, after, value in zip(rewards, truth, ahead, values.tolist(), strict=True)
    ]
    advantages = []
    for start in range(len(errors)):
        total, weight = 0.0, 1.0
        for error, row in zip(errors[start:], truth[start:], strict=True):
            total += weight * error
            weight *= GAMMA * LAMBDA
            if row["done"]:
                break
        advantages.append(total)
    return advantages


def test_ragged_feedback_of_one_client_stays_with_its_envs() -> None:
    agent, kept = make_agent(num_envs=3, n_steps=4)
    client = RaggedClient(agent, 0, 3)
    client.ask(0, 1, 2)
    client.tell(2, 0)
    client.ask(2, 0)
    client.tell(1)
    client.ask(1)
    client.tell(0, 2, terminated=True)
    client.ask(2)
    client.tell(1, 2, truncated=True)
    client.ask(0, 1, 2)
    client.tell(2, 1, 0)
    assert agent.counters.transitions_stored == 10
    client.ask(2)
    client.tell(2)
    client.ask(1)
    client.tell(1)
    assert len(kept.rollouts) == 1
    assert kept.rollouts[0]["rewards"].shape == (12, 1)
    assert check_against_truth(agent, kept, client.lanes, 12) == 12


def test_two_clients_share_a_rollout_and_neither_touches_the_others_rows() -> None:
    agent, kept = make_agent(num_envs=5, n_steps=6)
    left, right = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 3)
    play_at_random(agent, [left, right], np.random.default_rng(0), messages=120)
    stored = len(kept.rollouts) * 30
    assert len(kept.rollouts) >= 3
    assert check_against_truth(agent, kept, left.lanes + right.lanes, 30) == stored
    assert agent.counters.transitions_stored == sum(
        len(lane.rows) for lane in left.lanes + right.lanes
    )
    assert agent.counters.chunks_dropped == 0


def play_at_random(
    agent: SB3Agent, clients: list[RaggedClient], rng: np.random.Generator, messages: int
) -> None:
    """Legal exchanges in random groups: each client asks for idle envs, then feeds some back."""
    for _ in range(messages):
        client = clients[rng.integers(len(clients))]
        idle = [k for k, lane in enumerate(client.lanes) if lane.action is None]
        client.ask(*rng.permutation(idle).tolist())
        busy = rng.permutation(len(client.lanes))
        client.tell(
            *busy[: rng.integers(1, len(busy) + 1)].tolist(),
            terminated=bool(rng.random() < 0.1),
            truncated=bool(rng.random() < 0.1),
        )


def test_a_client_that_leaves_cuts_its_trajectories_and_no_other_ones() -> None:
    agent, kept = make_agent(num_envs=5, n_steps=4)
    left, right = RaggedClient(agent, 0, 2), RaggedClient(agent, 2, 3)
    left.ask(0, 1)
    right.ask(0, 1, 2)
    for _ in range(3):
        left.tell(0, 1)
        left.ask(0, 1)
        right.tell(2, 0)
        right.ask(2, 0)
    right.peer.leave()
    assert agent.counters.chunks_dropped == 3
    back = RaggedClient(agent, 7, 3)  # the same client again: other lanes, the same env indices
    back.ask(0, 1, 2)
    back.tell(0, 1, 2)
    for _ in range(3):
        left.tell(0, 1)
        left.ask(0, 1)
    lanes = left.lanes + right.lanes + back.lanes
    assert len(kept.rollouts) == 1
    assert check_against_truth(agent, kept, lanes, 20) == 20


def test_a_rollout_holds_exactly_its_size_and_the_rest_waits_for_the_next() -> None:
    agent, kept = make_agent(num_envs=2, n_steps=3)
    client = RaggedClient(agent, 0, 4)
    for _ in range(5):
        client.ask(0, 1, 2, 3)
        client.tell(3, 1, 0, 2)
    assert [rollout["rewards"].size for rollout in kept.rollouts] == [6, 6, 6]
    assert agent.counters.updates == 3
    assert agent.counters.transitions_stored == 20
    assert agent.timesteps == 20
    assert check_against_truth(agent, kept, client.lanes, 6) == 18


def test_one_message_may_complete_several_rollouts() -> None:
    agent, kept = make_agent(num_envs=2, n_steps=1)
    client = RaggedClient(agent, 0, 7)
    client.ask(*range(7))
    client.tell(*range(7))
    assert [rollout["rewards"].size for rollout in kept.rollouts] == [2, 2, 2]
    assert not agent.learning_due


def test_envs_that_join_one_step_late_after_a_reset_are_ragged_but_whole() -> None:
    """NEXT_STEP: a finished env is held out of one exchange."""
    agent, kept = make_agent(num_envs=2, n_steps=8)
    client = RaggedClient(agent, 0, 2)
    client.ask(0, 1)
    for _ in range(4):
        client.tell(1)
        client.ask(1)
        client.tell(0, terminated=True)
        client.ask(0)
        client.tell(0, 1)
        client.ask(0, 1)
    assert check_against_truth(agent, kept, client.lanes, 16) == 16
    assert kept.rollouts[0]["episode_starts"].sum() == 2 + 4


def test_lockstep_has_a_column_for_each_env_in_the_order_of_the_messages() -> None:
    agent, kept = make_agent(num_envs=3, n_steps=2)
    client = RaggedClient(agent, 0, 3)
    for _ in range(4):
        client.ask(2, 0, 1)
        client.tell(2, 0, 1)
    assert [rollout["rewards"].shape for rollout in kept.rollouts] == [(2, 3), (2, 3)]
    first = kept.rollouts[0]["observations"][..., 0]
    np.testing.assert_array_equal(first, [[2000, 0, 1000], [2001, 1, 1001]])
    assert check_against_truth(agent, kept, client.lanes, 6) == 12


# -- what is left out -----------------------------------------------------------------------------


def test_an_overridden_step_is_left_out_and_nothing_is_estimated_across_it() -> None:
    agent, kept = make_agent(num_envs=1, n_steps=4)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 1)
    for t, overridden in enumerate([False, False, True, False, False]):
        peer.ask([0], column(t))
        peer.tell([0], column(t + 1), 1.0, overridden=[overridden])
    (rollout,) = kept.rollouts
    np.testing.assert_array_equal(rollout["observations"][:, 0, 0], [0, 1, 3, 4])
    np.testing.assert_array_equal(rollout["episode_starts"][:, 0], [1, 0, 0, 0])
    values = rollout["values"][:, 0]
    last_error = 1.0 + GAMMA * 2.0 - values[1]  # bootstrapped from observation 2, held last
    np.testing.assert_allclose(rollout["advantages"][1, 0], last_error, rtol=1e-5)
    assert agent.counters.overridden == 1
    assert agent.counters.transitions_stored == 4
    assert agent.timesteps == 5


def test_a_row_that_never_comes_leaves_a_gap() -> None:
    """The server drops a row with a NaN; the env is then asked for again."""
    agent, kept = make_agent(num_envs=1, n_steps=4)
    critic_that_reads_the_observation(agent)
    peer = connect(agent, 1, foreign=True)
    for t, reward in enumerate([1.0, 1.0, np.nan, 1.0, 1.0]):
        peer.ask([0], column(t))
        peer.tell([0], column(t + 1), reward)
    assert agent.counters.chunks_dropped == 1
    (rollout,) = kept.rollouts
    np.testing.assert_array_equal(rollout["observations"][:, 0, 0], [0, 1, 3, 4])
    np.testing.assert_array_equal(rollout["episode_starts"][:, 0], [1, 0, 0, 0])
    last_error = 1.0 + GAMMA * 2.0 - rollout["values"][1, 0]
    np.testing.assert_allclose(rollout["advantages"][1, 0], last_error, rtol=1e-5)


def test_an_evaluating_client_gets_the_most_likely_action_and_is_not_learned_from() -> None:
    agent, _ = make_agent(num_envs=2, n_steps=4)
    peer = AgentPeer(agent, NUMBER, spaces.Discrete(7), num_envs=3, mode="eval")
    observation = column(-3, 0, 3)
    generator = torch.get_rng_state()
    expected, _ = agent.model.predict(observation, deterministic=True)
    for _ in range(6):
        np.testing.assert_array_equal(peer.ask(range(3), observation)[0], expected)
        peer.tell(range(3), observation, 1.0)
    peer.leave()
    assert torch.equal(torch.get_rng_state(), generator)
    assert agent.counters.transitions_stored == 0
    assert agent.counters.chunks_dropped == 0
    assert agent.timesteps == 0


def test_each_env_keeps_its_own_gsde_noise_in_whatever_groups_they_ask() -> None:
    agent, _ = make_agent(
        num_envs=3, n_steps=8, action_space=spaces.Box(-9.0, 9.0, (2,)), use_sde=True
    )
    peer = connect(agent, 4)  # one more than a rollout is measured in
    groups = [[0, 1, 2, 3], [2], [3, 0], [1], [0, 1, 2, 3]]
    seen: dict[int, Any] = {}
    for group in groups:
        chunk = peer.ask(group, column(*[5.0] * len(group)))
        for env, action in zip(group, chunk[0], strict=True):
            np.testing.assert_allclose(action, seen.setdefault(env, action), rtol=1e-5)
        peer.tell(group, column(*[5.0] * len(group)), 0.0)
    assert len({tuple(np.round(action, 4)) for action in seen.values()}) == 4


def test_the_noise_of_a_client_that_left_is_free_for_the_next() -> None:
    agent, _ = make_agent(
        num_envs=2, n_steps=8, action_space=spaces.Box(-9.0, 9.0, (1,)), use_sde=True
    )
    for _ in range(4):
        peer = connect(agent, 2)
        peer.ask([0, 1], column(0, 0))
        peer.leave()
    assert len(agent.model.policy.action_dist.exploration_matrices) == 2


# -- callbacks and counters -----------------------------------------------------------------------


def test_episode_statistics_reach_the_log_with_or_without_the_clients_help() -> None:
    agent, _ = make_agent(num_envs=1, n_steps=100)
    peer = connect(agent, 1)
    for returns in (None, 77.0):
        for t in range(3):
            peer.ask([0], column(t))
            peer.tell([0], column(t + 1), 2.0, t == 2, returns=returns, lengths=5)
    episodes = list(agent.model.ep_info_buffer)
    assert [(episode["r"], episode["l"]) for episode in episodes] == [(6.0, 3), (77.0, 5)]


def test_a_callback_is_called_as_by_sb3_and_may_end_the_run() -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    class Witness(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def _on_training_start(self) -> None:
            self.calls.append("training starts")

        def _on_rollout_start(self) -> None:
            self.calls.append("rollout starts")

        def _on_step(self) -> bool:
            self.calls.append(f"step {self.num_timesteps}")
            return self.num_timesteps < 6

        def _on_rollout_end(self) -> None:
            self.calls.append("rollout ends")

        def _on_training_end(self) -> None:
            self.calls.append("training ends")

    witness = Witness()
    agent, _ = make_agent(num_envs=2, n_steps=2, callback=witness)
    client = RaggedClient(agent, 0, 2)
    while not agent.finished:
        client.ask(0, 1)
        client.tell(0, 1)
    agent.close()
    assert witness.calls == [
        "training starts",
        "rollout starts",
        "step 2",
        "step 4",
        "rollout ends",
        "rollout starts",
        "step 6",
        "training ends",
    ]
    assert agent.counters.updates == 1


@pytest.mark.parametrize(("total", "updates"), [(1, 1), (8, 1), (9, 2), (100, 13)])
def test_a_run_ends_after_the_rollout_that_reaches_its_timesteps(total: int, updates: int) -> None:
    agent, _ = make_agent(num_envs=2, n_steps=4)
    agent._total_timesteps = total
    client = RaggedClient(agent, 0, 2)
    while not agent.finished:
        client.ask(0, 1)
        client.tell(0, 1)
    assert (agent.counters.updates, agent.timesteps) == (updates, updates * 8)
