"""The checker of an ordeal sees every way in which a transition can be false."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.chaos.checker import check_buffer, check_rows, read_life, read_lines, read_truth
from tests.chaos.envs import Ledgered, read_cue, read_tag

ACTIONS = (1, 3, 0, 2, 2, 1, 0)


@pytest.fixture
def env(tmp_path: Any) -> Any:
    """An env of client 700 that has taken seven steps of its second episode, and its log."""
    env = Ledgered(700, str(tmp_path / "truth"))
    env.reset()
    env.reset()
    observations = [env._observe()]
    rewards = []
    for action in ACTIONS:
        observation, reward, _, _, _ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
    env.close()
    return env, observations, rewards, read_truth((tmp_path / "truth").read_bytes())


def row(env: Any, first: int, steps: int, more: int = 1) -> dict[str, Any]:
    """A true transition of ``steps`` env steps, of a chunk with ``more`` that were not run."""
    _, observations, rewards, _ = env
    return {
        "before": list(read_tag(observations[first])),
        "chunk": [*ACTIONS[first : first + steps], *[0] * more],
        "steps": steps,
        "reward": float(np.float32(sum(rewards[first : first + steps]))),
        "terminated": False,
        "truncated": False,
        "after": list(read_tag(observations[first + steps])),
    }


def test_tag_and_cue_survive_float32(env: Any) -> None:
    ledgered, observations, _, _ = env
    tag = read_tag(observations[2])
    assert tag == (700, ledgered._env, 1, 2, 3)
    assert read_cue(observations[2]) == ledgered._cue


def test_true_transitions_are_found_true(env: Any) -> None:
    verdict = check_rows([row(env, 0, 3), row(env, 3, 1), row(env, 4, 3)], env[3])
    assert (verdict.true_rows, verdict.false, verdict.twice) == (3, [], 0)
    assert verdict.stored_steps == {700: 7}


def test_step_in_two_transitions_is_seen(env: Any) -> None:
    assert check_rows([row(env, 0, 3), row(env, 2, 2)], env[3]).twice == 1


Change = Callable[[dict[str, Any]], None]
CHANGES: dict[str, Change] = {
    "action": lambda r: r["chunk"].__setitem__(1, 3),
    "reward": lambda r: r.__setitem__("reward", r["reward"] + 1 / 1024),
    "next observation of another step": lambda r: r["after"].__setitem__(3, 6),
    "next observation after another action": lambda r: r["after"].__setitem__(4, 1),
    "observation after another action": lambda r: r["before"].__setitem__(4, 1),
    "observation of another client": lambda r: r["before"].__setitem__(0, 701),
    "both of another episode": lambda r: [r[key].__setitem__(2, 9) for key in ("before", "after")],
    "end": lambda r: r.__setitem__("terminated", True),
    "cut": lambda r: r.__setitem__("truncated", True),
    "fewer steps": lambda r: r.__setitem__("steps", 2),
    "steps that were not taken yet": lambda r: (
        r.__setitem__("steps", 9),
        r["after"].__setitem__(3, 11),
        r.__setitem__("chunk", [0] * 9),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_false_transition_is_seen(env: Any, change: str) -> None:
    changed = copy.deepcopy(row(env, 2, 3))
    CHANGES[change](changed)
    assert len(check_rows([changed], env[3]).false) == 1


def test_transition_beyond_the_end_of_an_episode_is_seen(env: Any) -> None:
    truth = dict(env[3])
    place = (*row(env, 2, 3)["before"][:3], 3)
    truth[place] = truth[place]._replace(terminated=True)
    assert "after the end" in check_rows([row(env, 2, 3)], truth).false[0]


def stored(env: Any, step: int, **changes: Any) -> dict[str, Any]:
    """A true row of a replay buffer."""
    _, observations, rewards, _ = env
    before, after = (list(read_tag(observations[at])) for at in (step, step + 1))
    return {
        "stored": before,
        "action": ACTIONS[step],
        "reward": rewards[step],
        "after": after,
        **changes,
    }


def test_true_rows_of_a_buffer_are_found_true(env: Any) -> None:
    verdict = check_buffer([stored(env, 1), stored(env, 2, after=None)], env[3])
    assert (verdict.true_rows, verdict.false, verdict.twice) == (2, [], 0)


@pytest.mark.parametrize("changes", [{"action": 0}, {"reward": 0.5}, {"after": [700, 0, 1, 4, 0]}])
def test_false_row_of_a_buffer_is_seen(env: Any, changes: dict[str, Any]) -> None:
    assert len(check_buffer([stored(env, 1, **changes)], env[3]).false) == 1


def test_row_that_a_buffer_has_twice_is_seen(env: Any) -> None:
    assert check_buffer([stored(env, 1), stored(env, 1)], env[3]).twice == 1


def test_line_that_a_kill_has_cut_short_is_left_out() -> None:
    data = b'{"a": 1}\n{"b": 2}\n{"message": 3, "not_'
    assert list(read_lines(data)) == [{"a": 1}, {"b": 2}]
    assert list(read_lines(b"")) == []


def test_life_of_a_server_is_read_back() -> None:
    lines = [
        {"resumed_at": 64},
        {"before": [1, 0, 0, 0, -1], "steps": 3},
        {"message": 1, "not_kept": {"overridden": 1}},
        {"stored": [1, 0, 0, 0, -1]},
    ]
    life = read_life("".join(f"{json.dumps(line)}\n" for line in lines).encode())
    assert (life.resumed_at, life.steps, life.not_kept, len(life.buffer)) == (64, 3, 1, 1)


def test_step_that_an_env_took_twice_is_no_truth() -> None:
    line = b"[1, 0, 0, 0, 2, 1.0, 0, 0]\n"
    with pytest.raises(ValueError, match="twice"):
        read_truth(line + line)
