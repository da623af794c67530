"""servers/ppo_trainer.py: a trainer that knows of no client, over envs here and elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from servers.ppo_trainer import GAMMA, LAMBDA, Rollout, advantages, main
from tests.support.commands import ROOT, command, rollout

TRAINER = ROOT / "servers" / "ppo_trainer.py"


def weights(path: Path) -> dict[str, bytes]:
    return {name: part.numpy().tobytes() for name, part in torch.load(path).items()}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """The trainer sets how many torch has."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained_here(folder: Path, seed: int) -> dict[str, bytes]:
    options = ["--num-envs=4", "--total-timesteps=512", f"--seed={seed}", f"--save={folder / 'a'}"]
    assert main(["CartPole-v1", *options]) == 1  # the goal is far away
    return weights(folder / "a")


def test_where_the_envs_are_makes_no_difference(tmp_path: Path) -> None:
    here = trained_here(tmp_path, 3)
    options = ("--num-envs", 4, "--total-timesteps", 512, "--seed", 3, "--save", tmp_path / "there")
    with (
        command(TRAINER, "CartPole-v1", "--port", 0, *options) as trainer,
        rollout("CartPole-v1", "--num-envs", 4, "--seed", 3, "--url", trainer.url()) as client,
    ):
        ran, done = client.finish(), trainer.finish()
    assert (ran.code, done.code, done.said) == (0, 1, "")
    assert weights(tmp_path / "there") == here
    assert trained_here(tmp_path, 4) != here


def test_two_clients_make_up_its_envs() -> None:
    options = ("--port", 0, "--num-envs", 4, "--total-timesteps", 256, "--goal", 500)
    with command(TRAINER, "CartPole-v1", *options) as trainer, ExitStack() as stack:
        where = ("--url", trainer.url(), "--json")
        clients = [
            stack.enter_context(rollout("CartPole-v1", "--num-envs", 2, "--seed", seed, *where))
            for seed in range(2)
        ]
        ran, done = [client.finish() for client in clients], trainer.finish()
    assert [one.result["finished"] for one in ran] == [True, True]
    assert [one.result["env_steps"] for one in ran] == [128, 128]
    assert "Done: 256 env steps" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["Pendulum-v1"], r"chooses among Discrete actions only, the envs have Box\(-2.0, 2.0"),
        (["CartPole-v1", "--num-envs=0"], "--num-envs: expected at least 1, got 0"),
        (["CartPole-v1", "--port=99999"], ".*99999"),
        (["NoSuchEnv-v0"], ".*NoSuchEnv"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert re.match(f"ppo_trainer: {sentence}", said[-1])


def test_ctrl_c_ends_it_and_its_clients() -> None:
    with (
        command(TRAINER, "CartPole-v1", "--port", 0, "--num-envs", 1) as trainer,
        rollout("CartPole-v1", "--num-envs", 1, "--url", trainer.url(), "--json") as client,
    ):
        trainer.line("env steps, mean return")
        trainer.interrupt()
        done, ran = trainer.finish(), client.finish()
    assert (done.code, done.said) == (130, "")
    assert done.stdout.endswith("Stopped.\n")
    assert (ran.code, ran.result["finished"]) == (0, True)


def test_a_goal_that_is_reached_ends_it_with_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["CartPole-v1", "--num-envs=8", "--goal=5"]) == 0
    done = re.fullmatch(r"Done: (\d+) env steps, mean return (.*)\n", last(capsys))
    assert done is not None
    assert 1000 < int(done[1]) < 5000
    assert float(done[2]) > 5.0


def last(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines(keepends=True)[-1]


def test_advantages_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    reward, value, following = rng.normal(size=(3, 12, 2))
    terminated, truncated = rng.random((2, 12, 2)) < 0.2
    ended = terminated | truncated
    expected = np.zeros((12, 2))
    for env in range(2):
        for start in range(12):
            for step in range(start, 12):
                worth = 0.0 if terminated[step, env] else GAMMA * following[step, env]
                error = reward[step, env] + worth - value[step, env]
                expected[start, env] += (GAMMA * LAMBDA) ** (step - start) * error
                if ended[step, env]:
                    break
    none = torch.zeros(12, 2)
    rollout = Rollout(
        none, none, none, *map(torch.as_tensor, (reward, following, terminated, ended))
    )
    found = advantages(rollout, torch.as_tensor(value), torch.as_tensor(following))
    np.testing.assert_allclose(found.numpy(), expected)
    assert found.numpy() != pytest.approx(reward - value)
