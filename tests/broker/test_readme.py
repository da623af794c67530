"""The trainers that README.md shows, as programs with real clients."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import ROOT, command, rollout

README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(
    ("name", "edits"),
    [
        (
            "RemoteVectorEnv",
            [
                ("num_envs=8)", "num_envs=4, port=0)"),
                ('PPO("MlpPolicy", ', 'PPO("MlpPolicy", n_steps=32, batch_size=32, env='),
                ("20_000", "200"),
                ("    model = ", '    print(f"Serving at {envs.url}", flush=True)\n    model = '),
            ],
        ),
        (
            "EnvBroker",
            [
                ("port=8000", "port=0"),
                ("1_000", "50"),
                ("    for ", '    print(f"Serving at {broker.url}", flush=True)\n    for '),
            ],
        ),
    ],
)
def test_trainer_runs_and_its_clients_end(
    name: str, edits: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (snippet,) = [each for each in SNIPPETS if f"import {name}" in each]
    for before, after in edits:
        assert snippet.count(before) == 1, before
        snippet = snippet.replace(before, after)
    program = tmp_path / "trainer.py"
    program.write_text(snippet)
    with (
        command(program) as trainer,
        rollout("CartPole-v1", "--num-envs", 4, "--url", trainer.url(), "--json") as client,
    ):
        ran, trained = client.finish(), trainer.finish()
    assert (trained.code, trained.stderr) == (0, "")
    assert ran.code == 0
    assert ran.result["finished"]
    assert ran.result["env_steps"] >= 180
