"""``python -m plugrl_gym.conformance``."""

from __future__ import annotations

from plugrl_gym.conformance.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
