"""``plot``: pictures of runs from a command line."""

from __future__ import annotations

import json
import sys

import pytest

from plugrl_gym import plot
from plugrl_gym.__main__ import main
from tests.support.run_dirs import write_run


def test_a_run_gets_its_pictures_and_they_are_named_at_the_end(tmp_path, capsys):
    path = write_run(tmp_path / "run")
    assert main(["plot", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "No latency: neither progress.csv nor result.json tells it.",
        "No clients: progress.csv does not tell of them.",
        f"  {path / 'learning_curve.png'}",
        f"  {path / 'learning_curve.svg'}",
    ]
    assert (path / "learning_curve.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_several_runs_get_theirs_in_a_directory_beside(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [str(write_run(tmp_path / str(seed), seed=seed)) for seed in range(2)]
    assert plot.main([*paths, "--json", "--quiet", "--x", "time", "--band", "quartiles"]) == 0
    said = capfd.readouterr()
    assert said.err == ""
    result = json.loads(said.out)
    assert [path.replace("\\", "/") for path in result["files"]] == [
        "plots/learning_curve.png",
        "plots/learning_curve.svg",
    ]
    assert all((tmp_path / path).stat().st_size > 10_000 for path in result["files"])
    assert len(result["missing"]) == 2
    svg = (tmp_path / "plots" / "learning_curve.svg").read_text(encoding="utf-8")
    assert "wall time (s)" in svg
    assert "25th to 75th percentile" in svg


@pytest.mark.parametrize("kind", ["nowhere", "empty", "foreign"])
def test_a_run_that_cannot_be_read_is_one_sentence(tmp_path, capsys, kind):
    good, bad = write_run(tmp_path / "good"), tmp_path / kind
    if kind != "nowhere":
        bad.mkdir()
    if kind == "foreign":
        (bad / "progress.csv").write_bytes(b"\x80\n")
    assert plot.main([str(good), str(bad), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plugrl-gym plot: ")
    assert str(bad) in line
    assert not (tmp_path / "out").exists()


def test_a_missing_extra_is_one_sentence(tmp_path, capsys, monkeypatch):
    path = write_run(tmp_path / "run")
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert plot.main([str(path)]) == 2
    assert capsys.readouterr().err == (
        "plugrl-gym plot: plots need matplotlib, which is not installed: "
        'pip install "plugrl-gym[plot]"\n'
    )
