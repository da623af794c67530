"""A well-behaved client beside the fuzzer: steps until its stdin closes, then tells how it was."""

from __future__ import annotations

import json
import sys
import threading
import time

import gymnasium as gym

from plugrl_gym import PlugRLVectorEnv


def main(url: str) -> int:
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    longest, last = 0.0, time.monotonic()
    with PlugRLVectorEnv(gym.make_vec("CartPole-v1", num_envs=2), url) as envs:
        for _ in envs.rollout(seed=0):
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            if over.wait(0.005):
                break
    stats = envs.stats
    told = {
        "env_steps": stats.env_steps,
        "connections": stats.connections,
        "dropped": dict(stats.books.chunks_dropped),
        "errors": list(stats.book_errors),
        "longest_step_seconds": round(longest, 3),
    }
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
