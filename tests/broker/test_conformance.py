"""A broker whose trainer answers whatever has arrived, under the suite for servers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from plugrl_gym import EnvBroker
from plugrl_gym.conformance import Report, grade_server

STATE = spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTION = spaces.Box(-1.0, 1.0, (3,), np.float32)


def grade(broker: EnvBroker, rows: int, **told: Any) -> Report:
    """Grade a broker whose trainer ends the run after so many rows with a transition."""

    def train() -> None:
        seen = 0
        while seen < rows:
            batch = broker.collect_async(timeout=30.0)
            seen += int((~batch.first).sum())
            slots = batch.slots[batch.waiting][::-1]  # in another order than they came in
            if len(slots):
                space = broker.single_action_space
                assert space is not None
                shape = (broker.horizon, len(slots), *(space.shape or ()))
                broker.step_async(slots, np.zeros(shape, space.dtype))
        broker.close(finished=True)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        return grade_server(
            broker.url, state_dim=3, until_stop=True, timeout=30.0, feedback_timeout=3.0, **told
        )
    finally:
        broker.close()
        trainer.join(30.0)
        assert not trainer.is_alive()


@pytest.mark.parametrize(
    "options",
    [
        {"horizon": 3, "observation_space": STATE, "action_space": ACTION},
        # Nothing is known before the first client has declared its spaces.
        pytest.param({"horizon": 1}, marks=pytest.mark.full),
    ],
    ids=["chunks", "spaces unknown"],
)
def test_broker_has_no_violation(options: dict[str, Any]) -> None:
    with EnvBroker(evaluation=True, feedback_timeout=3.0, **options) as broker:
        report = grade(broker, 1500)
    assert report.exit_code == 0, report.to_text()
    assert report.notes == [], report.to_text()
    assert broker.statistics.snapshot().book_errors == ()
