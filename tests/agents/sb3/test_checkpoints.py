"""What a run leaves on disk, whatever happens to it."""

from __future__ import annotations

import errno
import json
import logging
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN, PPO

from plugrl_gym.agents.sb3 import SB3Agent
from plugrl_gym.agents.sb3.runs import disk
from plugrl_gym.errors import RunFailed, UsageError
from plugrl_gym.server.agent import Refusal
from tests.support.resuming import Envs, checkpoints, killed, small_agent, stopped_run


def refused(**settings: Any) -> str:
    with pytest.raises(UsageError) as caught:
        SB3Agent(**settings).close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run_for(agent: SB3Agent, steps: int) -> None:
    with Envs("CartPole-v1", 2) as envs:
        envs.run(agent, until=steps)


# -- when they are written --------------------------------------------------------------------


def test_checkpoints_are_written_as_often_as_asked_and_the_last_ones_stay(tmp_path: Path) -> None:
    with closing(small_agent(tmp_path, save_every=20, keep=2)) as agent:
        run_for(agent, 2)
        assert checkpoints(tmp_path) == [0]
        run_for(agent, 50)
        assert checkpoints(tmp_path) == [20, 40]
    assert checkpoints(tmp_path) == [40, 52]


def test_save_every_0_leaves_one_checkpoint_at_the_end(tmp_path: Path) -> None:
    with closing(small_agent(tmp_path, save_every=0)) as agent:
        run_for(agent, 50)
        assert not (tmp_path / "checkpoints").exists()
    assert checkpoints(tmp_path) == [50]


def test_a_checkpoint_waits_for_the_update_that_is_due(tmp_path: Path) -> None:
    with closing(small_agent(tmp_path, save_every=32)) as agent:
        run_for(agent, 32)
        note = json.loads((tmp_path / "checkpoints" / "32" / "checkpoint.json").read_text())
    assert note["counters"]["updates"] == agent.counters.updates == 1


def test_saving_twice_at_one_step_keeps_the_second(tmp_path: Path) -> None:
    with closing(small_agent(tmp_path)) as agent:
        run_for(agent, 4)
        agent.save()
        agent.save()
        names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        assert names == ["0", "4-2"]
    with closing(SB3Agent(resume=tmp_path)) as agent:
        assert agent.timesteps == 4


def test_a_negative_save_every_is_refused() -> None:
    assert refused(save_every=-1) == "save_every: expected at least 0, got -1"
    assert refused(keep=0) == "keep: expected at least 1, got 0"


# -- what is in them --------------------------------------------------------------------------


def test_plain_sb3_loads_the_newest_model_and_those_of_checkpoints(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    for path in (tmp_path / "model.zip", tmp_path / "checkpoints" / "64" / "model.zip"):
        model = PPO.load(path, env=gym.make("CartPole-v1"), device="cpu")
        assert model.num_timesteps == 64


def test_only_the_filled_part_of_a_replay_buffer_is_saved(tmp_path: Path) -> None:
    stopped_run(tmp_path, "dqn")
    with np.load(tmp_path / "checkpoints" / "64" / "replay_buffer.npz") as arrays:
        assert {arrays[name].shape[0] for name in arrays.files} == {32}
        assert arrays["observations"].shape == (32, 2, 4)
    assert DQN.load(tmp_path / "model.zip").num_timesteps == 64


def test_an_on_policy_run_has_no_replay_buffer(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    assert sorted(path.name for path in (tmp_path / "checkpoints" / "64").iterdir()) == [
        "checkpoint.json",
        "model.zip",
        "state.pkl",
    ]


def test_config_tells_what_the_run_was_started_with(tmp_path: Path) -> None:
    stopped_run(tmp_path, hyperparameters={"n_steps": 16, "learning_rate": "lin_0.001"})
    config = json.loads((tmp_path / "config.json").read_text())
    versions = config.pop("versions")
    assert {"python", "torch", "stable-baselines3", "plugrl-gym"} <= versions.keys()
    assert config["hyperparameters"] == {"n_steps": 16, "learning_rate": "lin_0.001"}
    assert [config[name] for name in ("algorithm", "policy", "seed", "num_envs", "env_id")] == [
        "ppo",
        "MlpPolicy",
        0,
        2,
        "CartPole-v1",
    ]
    assert config["total_timesteps"] == 1000
    assert config["action_space"] == {"type": "Discrete", "n": 2, "start": 0, "dtype": "<i8"}
    assert config["observation_space"]["high"]["numbers"][1] == "inf"


# -- when something goes wrong ----------------------------------------------------------------


def test_leftovers_of_a_killed_write_are_no_checkpoint_and_are_removed(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    shutil.copytree(tmp_path / "checkpoints" / "64", tmp_path / "checkpoints" / ".900.part")
    (tmp_path / ".model.zip.part").write_bytes(b"half")
    with closing(SB3Agent(resume=tmp_path)) as agent:
        assert agent.timesteps == 64
        assert not list(tmp_path.rglob(".*.part"))


class Killed(BaseException):
    """What no handler of ours is for, as a kill."""


@pytest.mark.parametrize("survived", range(6))
def test_a_kill_at_any_moment_of_saving_leaves_a_run_that_goes_on(
    survived: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at one of the moments when files reach the disk; nothing is tidied up after it."""
    run_dir, left = tmp_path / "run", tmp_path / "left"
    agent = small_agent(run_dir, keep=1)
    run_for(agent, 64)
    calls = 0
    sync = disk.sync

    def die(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > survived:
            if not left.exists():
                killed(run_dir, left)
            raise Killed
        sync(path)

    monkeypatch.setattr(disk, "sync", die)
    with pytest.raises(Killed):
        agent.close()
    monkeypatch.undo()
    with closing(SB3Agent(resume=left)) as resumed:
        assert resumed.timesteps in (0, 64)
        run_for(resumed, 32)


@pytest.mark.parametrize("file", ["model.zip", "state.pkl", "replay_buffer.npz", "checkpoint.json"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped_run(tmp_path, "dqn", save_every=32, steps=70)
    path = tmp_path / "checkpoints" / "70" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with closing(SB3Agent(resume=tmp_path)) as agent:
        assert agent.timesteps == 64
    assert f"{path} " in caplog.text
    assert "trying the checkpoint before it" in caplog.text


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(tmp_path: Path) -> None:
    stopped_run(tmp_path, save_every=0)
    path = tmp_path / "checkpoints" / "64" / "state.pkl"
    path.write_bytes(path.read_bytes()[:-1])
    said = refused(resume=tmp_path)
    assert said == f"{tmp_path} has no whole checkpoint: {path} is damaged"


@pytest.mark.parametrize("place", ["checkpoint", "config"])
def test_a_newer_format_is_refused(place: str, tmp_path: Path) -> None:
    stopped_run(tmp_path)
    path = tmp_path / "config.json"
    if place == "checkpoint":
        path = tmp_path / "checkpoints" / "64" / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    assert "was written by a newer plugrl-gym (format 2, this one reads up to 1)" in refused(
        resume=tmp_path
    )


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    assert refused(resume=tmp_path / "none") == f"there is no run directory {tmp_path / 'none'}"
    assert refused(resume=tmp_path) == f"{tmp_path} holds no run: there is no config.json in it"
    stopped_run(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    assert refused(resume=tmp_path) == f"{tmp_path} has no checkpoint to go on from"
    (tmp_path / "config.json").write_text("{")
    assert refused(resume=tmp_path).startswith(f"{tmp_path / 'config.json'} cannot be read (")


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (["num_envs"], "2", "num_envs: expected int, got '2'"),
        (["seed"], False, "seed: expected int or null, got False"),
        (["settings"], [], "settings: expected dict, got []"),
        (["settings", "keep"], None, "settings.keep: expected int, got None"),
        (["settings", "normalize"], "yes", "settings.normalize: expected bool or dict, got 'yes'"),
        (["settings", "more"], ..., "settings.keep is missing"),
    ],
)
def test_a_config_that_was_edited_amiss_is_refused(
    place: list[str], value: Any, complaint: str, tmp_path: Path
) -> None:
    stopped_run(tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    *outer, name = place
    group = content[outer[0]] if outer else content
    if value is ...:
        group[name] = group.pop("keep")
    else:
        group[name] = value
    path.write_text(json.dumps(content))
    assert refused(resume=tmp_path) == f"{path} is none of a run ({complaint})"


def test_a_new_run_does_not_come_over_another_one(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    assert refused(run_dir=tmp_path) == (
        f"{tmp_path} holds a run: go on with it by --resume {tmp_path}, or choose another --run-dir"
    )


def test_no_two_agents_write_one_run(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    with closing(SB3Agent(resume=tmp_path)):
        assert refused(resume=tmp_path) == f"{tmp_path}: another process is writing this run"
    SB3Agent(resume=tmp_path).close()


def full(path: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_stops_no_learning_and_spares_older_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(small_agent(tmp_path, save_every=20)) as agent:
        run_for(agent, 20)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "sync", full)
            run_for(agent, 60)
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert warnings == [
            f"no checkpoint at env step {steps}: [Errno 28] No space left on device; learning goes "
            f"on, and the last good checkpoint is {tmp_path / 'checkpoints' / '20'}"
            for steps in (40, 60, 80)
        ]
        assert checkpoints(tmp_path) == [0, 20]
        run_for(agent, 20)
        assert checkpoints(tmp_path) == [0, 20, 100]


def test_a_disk_too_full_for_the_newest_model_is_not_filled_by_old_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(small_agent(tmp_path, save_every=20, keep=2)) as agent:
        run_for(agent, 20)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "copy_file", lambda source, path: full(path))
            run_for(agent, 20)
        assert caplog.records[-1].getMessage() == (
            "no new model.zip at env step 40: [Errno 28] No space left on device; learning goes "
            f"on, and the last good checkpoint is {tmp_path / 'checkpoints' / '40'}"
        )
        assert checkpoints(tmp_path) == [20, 40]


def test_a_run_cannot_go_on_where_the_disk_takes_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_run(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunFailed) as caught:
        SB3Agent(resume=tmp_path)
    assert str(caught.value) == "the run cannot begin: OSError: [Errno 28] No space left on device"


def test_a_full_disk_at_the_end_fails_the_run_and_spares_older_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = small_agent(tmp_path, save_every=20)
    run_for(agent, 30)
    monkeypatch.setattr(disk, "sync", full)
    with pytest.raises(RunFailed) as caught:
        agent.close()
    assert str(caught.value) == (
        f"{tmp_path}: saving at env step 30 failed: [Errno 28] No space left on device; the last "
        f"good checkpoint is {tmp_path / 'checkpoints' / '20'}"
    )
    monkeypatch.undo()
    assert checkpoints(tmp_path) == [0, 20]
    with closing(SB3Agent(resume=tmp_path)) as resumed:
        assert resumed.timesteps == 20


def test_a_model_that_cannot_be_saved_fails_the_run_when_it_begins(tmp_path: Path) -> None:
    with closing(small_agent(tmp_path)) as agent, Envs("CartPole-v1", 2) as envs:
        peer = envs.connect(agent)
        join, agent.join = agent.join, lambda client: spoil(agent, join, client)
        with pytest.raises(RunFailed, match="the run cannot be saved: TypeError: cannot pickle"):
            envs.ask(peer)


def spoil(agent: SB3Agent, join: Any, client: Any) -> None:
    join(client)
    agent.model.generator = (number for number in range(3))


# -- what a run that goes on takes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "ours", "given"),
    [
        ({"algorithm": "a2c"}, "algorithm=ppo", "algorithm=a2c"),
        ({"policy": "CnnPolicy"}, "policy=MlpPolicy", "policy=CnnPolicy"),
        ({"seed": 4}, "seed=0", "seed=4"),
        ({"num_envs": 4}, "num_envs=2", "num_envs=4"),
        ({"env_id": "Acrobot-v1"}, "env_id=CartPole-v1", "env_id=Acrobot-v1"),
        ({"n_steps": 32}, "n_steps=16", "n_steps=32"),
        ({"gamma": 0.9}, "gamma=0.99", "gamma=0.9"),
        ({"learning_rate": "lin_0.1"}, "learning_rate=0.0003", "learning_rate=lin_0.1"),
        ({"preset": "Pendulum-v1"}, "preset=none", "preset=Pendulum-v1"),
        ({"horizon": 2}, "horizon=1", "horizon=2"),
        ({"normalize": True}, "normalize=False", "normalize={}"),
        ({"max_policy_lag": 5}, "max_policy_lag=1", "max_policy_lag=5"),
        ({"demonstrations_share": 0.5}, "demonstrations_share=0.0", "demonstrations_share=0.5"),
    ],
)
def test_settings_that_contradict_the_run_are_refused(
    settings: dict[str, Any], ours: str, given: str, tmp_path: Path
) -> None:
    stopped_run(tmp_path)
    assert refused(resume=tmp_path, **settings) == (
        f"{tmp_path} was started with {ours}, it cannot go on with {given}"
    )


@pytest.mark.parametrize(
    ("algorithm", "name", "ours", "common"),
    [
        ("ppo", "max_policy_lag", 5, 1),
        ("dqn", "async_learn", True, False),
        ("dqn", "demonstrations_share", 0.5, 0.0),
    ],
)
def test_a_setting_is_compared_though_it_is_the_usual_one(
    algorithm: str, name: str, ours: Any, common: Any, tmp_path: Path
) -> None:
    stopped_run(tmp_path, algorithm, **{name: ours})
    assert refused(resume=tmp_path, **{name: common}) == (
        f"{tmp_path} was started with {name}={ours}, it cannot go on with {name}={common}"
    )
    for same in ({}, {name: ours}):
        SB3Agent(resume=tmp_path, **same).close()


@pytest.mark.parametrize(
    ("first", "again"), [(4, (4, "step")), ((4, "step"), 4), ([4, "step"], (4, "step"))]
)
def test_a_setting_may_be_repeated_in_another_way(first: Any, again: Any, tmp_path: Path) -> None:
    settings = {"learning_starts": 8, "batch_size": 8, "buffer_size": 500}
    stopped_run(tmp_path, "dqn", hyperparameters={**settings, "train_freq": first})
    SB3Agent(resume=tmp_path, train_freq=again, replay_buffer_kwargs={}).close()
    assert refused(resume=tmp_path, train_freq=(4, "episode")).endswith(
        "was started with train_freq=4, it cannot go on with train_freq=[4, 'episode']"
    )


def test_settings_that_repeat_the_run_s_are_fine(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    same = {"seed": 0, "num_envs": 2, "n_steps": 16, "gamma": 0.99, "env_id": "mine:CartPole-v1"}
    agent = SB3Agent(PPO, resume=tmp_path, run_dir=tmp_path, policy="MlpPolicy", **same)
    with closing(agent):
        assert agent.timesteps == 64


def test_the_device_may_be_another(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    with closing(SB3Agent(resume=tmp_path, device="auto")) as agent:  # it was "cpu"
        assert agent.timesteps == 64


def test_a_smaller_total_or_another_directory_is_refused(tmp_path: Path) -> None:
    stopped_run(tmp_path / "run")
    assert refused(resume=tmp_path / "run", total_timesteps=500) == (
        f"{tmp_path / 'run'} was started with total_timesteps=1000, which can only become larger, "
        "got 500"
    )
    assert refused(resume=tmp_path / "run", run_dir=tmp_path) == (
        f"a run that goes on stays in {tmp_path / 'run'}, got run_dir {tmp_path}"
    )


def test_a_run_that_stopped_short_of_its_last_update_is_not_over(tmp_path: Path) -> None:
    stopped_run(tmp_path, total_timesteps=40, steps=50)
    with closing(SB3Agent(resume=tmp_path)) as agent:
        run_for(agent, 100)
        assert agent.finished
        assert (agent.timesteps, agent.counters.updates) == (64, 2)


def test_a_run_that_is_over_is_refused(tmp_path: Path) -> None:
    stopped_run(tmp_path, total_timesteps=64)
    assert refused(resume=tmp_path) == (
        f"{tmp_path} has done all of its 64 env steps; a larger --total-timesteps goes on"
    )


def test_a_client_with_other_spaces_is_refused(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    with (
        closing(SB3Agent(resume=tmp_path)) as agent,
        Envs("Acrobot-v1", 2) as others,
        pytest.raises(Refusal, match=r"this run has observations Box\(4,\), env has Box\(6,\)"),
    ):
        others.run(agent)


def test_spaces_that_the_caller_gives_are_compared(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    env = gym.make("Acrobot-v1")
    said = refused(
        resume=tmp_path, observation_space=env.observation_space, action_space=env.action_space
    )
    assert said == f"{tmp_path}: this run has observations Box(4,), env has Box(6,)"


def test_a_run_goes_on_with_more_envs_than_it_had(tmp_path: Path) -> None:
    stopped_run(tmp_path)
    with closing(SB3Agent(resume=tmp_path)) as agent:
        with Envs("CartPole-v1", 5) as more:
            more.run(agent, until=100)
        assert agent.timesteps == 164
        assert agent.counters.updates == 5


def test_a_damaged_checkpoint_pushes_out_no_whole_one(tmp_path: Path) -> None:
    with Envs("CartPole-v1", 2) as envs:
        with closing(small_agent(tmp_path, save_every=64, keep=2)) as agent:
            envs.run(agent, until=100)
        (tmp_path / "checkpoints" / "100" / "model.zip").write_bytes(b"half")
        with closing(SB3Agent(resume=tmp_path, keep=1)) as agent:
            assert agent.timesteps == 64
            envs.run(agent, until=116)
    assert checkpoints(tmp_path) == [80]
    with closing(SB3Agent(resume=tmp_path)) as agent:
        assert agent.timesteps == 80
