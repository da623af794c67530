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
