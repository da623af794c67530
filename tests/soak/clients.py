"""Some clients in one process, each a thread: one leaves, the next one joins.

``python -m tests.soak.clients URL NUMBER SEED`` runs until its stdin closes, then prints a line of
JSON with what all of them did.
"""

from __future__ import annotations

import collections
import json
import random
import sys
import threading
import time

import gymnasium as gym

from plugrl_gym import PlugRLVectorEnv

__all__ = ["Visitors"]


class Visitors:
    """Clients that share a process.

    Args:
        url: Of the server.
        pace: Seconds between two steps.

    Attributes:
        counts: Clients that came, env steps, books that did not balance, and how clients left.
    """

    def __init__(self, url: str, pace: float = 0.05) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []
        self._url = url
        self._pace = pace
        self.over = threading.Event()
        self._lock = threading.Lock()

    def keep_coming(self, seed: int) -> None:
        """One client after the other, until it is over."""
        draw = random.Random(seed)
        try:
            while not self.over.is_set():
                self._visit(draw)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def _visit(self, draw: random.Random) -> None:
        inner = gym.make_vec("CartPole-v1", num_envs=draw.randrange(1, 4))
        envs = PlugRLVectorEnv(inner, self._url, connect_timeout=60.0)
        leave_at = time.monotonic() + draw.uniform(2.0, 30.0)
        for _ in envs.rollout(seed=draw.randrange(2**31)):
            if self.over.wait(self._pace) or time.monotonic() > leave_at:
                break
        way = draw.choice(("closed", "closed", "vanished"))
        if way == "vanished" and envs._session._connection is not None:
            envs._session._connection.abort()
        envs.close()
        with self._lock:
            self.counts.update({"clients": 1, "env steps": envs.stats.env_steps, way: 1})
            self.errors += envs.stats.book_errors


def main(url: str, number: str, seed: str) -> int:
    visitors = Visitors(url)
    threads = [
        threading.Thread(target=visitors.keep_coming, args=(int(seed) + k,), daemon=True)
        for k in range(int(number))
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    visitors.over.set()
    for thread in threads:
        thread.join(60)
    print(json.dumps({"counts": visitors.counts, "errors": visitors.errors}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
