"""What it costs to measure latency by stage: ``python -m tests.benchmarks.latency``.

Processor time, which a busy machine changes little, the least of several in one run: that of one
env step with all that it takes on both sides (CartPole-v1, one env, a server that acts at random;
nothing takes less), and that of as many measurements as such a step makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest import mock

import gymnasium as gym

from plugrl_gym import PlugRLVectorEnv, local_server
from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.latency import Histogram

__all__ = ["share"]

_STEPS = 100
_MEASUREMENTS = 20_000
_REPEATS = 5


def share() -> tuple[float, float, float]:
    """The part of an env step that goes into measuring.

    Returns:
        Seconds of one env step, seconds of one measurement, measurements in one env step.
    """
    entered = 0

    def counted(method: Callable[[Histogram, float], None]) -> Callable[[Histogram, float], None]:
        def call(histogram: Histogram, seconds: float) -> None:
            nonlocal entered
            entered += 1
            method(histogram, seconds)

        return call

    with local_server(RandomAgent(seed=0)) as server:
        envs = PlugRLVectorEnv(gym.make_vec("CartPole-v1", num_envs=1), server.url)
        step = _least(lambda: envs.run(seed=0, max_steps=_STEPS)) / _STEPS
        with (
            mock.patch.object(Histogram, "observe", counted(Histogram.observe)),
            mock.patch.object(Histogram, "hold", counted(Histogram.hold)),
        ):
            envs.run(seed=0, max_steps=_STEPS)
        envs.close()
    return step, _least(_measure) / _MEASUREMENTS, entered / _STEPS


def _measure() -> None:
    """Two looks at the clock and an entry, many times."""
    histogram, clock = Histogram(), time.perf_counter
    for _ in range(_MEASUREMENTS):
        since = clock()
        histogram.observe(clock() - since + 1e-4)


def _least(work: Callable[[], object]) -> float:
    """Seconds of processor time, of all threads of this process."""
    seconds = []
    for _ in range(_REPEATS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def main() -> None:
    """Print it."""
    step, each, number = share()
    print(f"one env step          {step * 1e6:8.1f} us")
    print(f"one measurement       {each * 1e6:8.2f} us, {number:.1f} in each env step")
    print(f"share of an env step  {number * each / step:8.2%}")


if __name__ == "__main__":
    main()
