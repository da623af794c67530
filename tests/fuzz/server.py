"""The server under fire: random actions, no delay for peers that come back broken."""

from __future__ import annotations

import logging
import sys

from gymnasium import spaces

from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.server import PlugRLServer


def main() -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    agent = RandomAgent(spaces.Discrete(2), horizon=2, seed=0)
    server = PlugRLServer(
        agent, port=0, max_resync_delay=0.0, on_listening=lambda it: print(it.port, flush=True)
    )
    server.serve()
    now = server.statistics.snapshot()
    print(f"books: {now.books.to_dict()}; errors: {list(now.book_errors)}", flush=True)
    return 1 if now.book_errors else 0


if __name__ == "__main__":
    sys.exit(main())
