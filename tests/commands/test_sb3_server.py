"""servers/sb3_server.py: what a user copies."""

from __future__ import annotations

from stable_baselines3 import PPO

from tests.support.commands import ROOT, command, rollout

SERVER = ROOT / "servers" / "sb3_server.py"


def test_it_trains_its_own_network_and_ends(tmp_path):
    options = ("--port", 0, "--total-timesteps", 200, "--run-dir", tmp_path)
    with (
        command(SERVER, *options) as server,
        rollout("CartPole-v1", "--num-envs", 2, "--url", server.url(), "--quiet") as client,
    ):
        ran, served = client.finish(), server.finish()
    assert (ran.code, ran.stderr, served.code) == (0, "", 0)
    assert "Done: 256 env steps, mean return" in served.stdout
    model = PPO.load(tmp_path / "model.zip")
    assert model.policy_kwargs["net_arch"] == {"pi": [64, 64], "vf": [128, 128]}


def test_a_run_that_fails_is_told_in_one_line(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with (
        command(SERVER, "--port", 0, "--run-dir", file / "run") as server,
        rollout("CartPole-v1", "--num-envs", 2, "--url", server.url(), "--quiet"),
    ):
        served = server.finish()
    assert served.code == 1
    assert "Traceback" not in served.stderr
    assert served.stderr.splitlines()[-1].startswith("sb3_server: the run cannot begin: ")
