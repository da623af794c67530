"""Latency by stage is measured at no cost worth naming."""

from __future__ import annotations

from tests.benchmarks import latency


def test_measuring_takes_less_than_a_thirtieth_of_the_smallest_env_step():
    step, measurement, number = latency.share()
    assert number >= 10
    assert number * measurement < step / 30


def test_the_program_prints_the_share(capsys, monkeypatch):
    monkeypatch.setattr(latency, "share", lambda: (1e-3, 1e-6, 12.0))
    latency.main()
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        *("share", "of", "an", "env", "step"),
        "1.20%",
    ]
