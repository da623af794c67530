"""What a caller chose for a run, beside the plan of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from plugrl_gym.errors import UsageError

__all__ = ["Choices"]

_SAVE_EVERY: Final = 10_000
_KEEP: Final = 3
_MAX_POLICY_LAG: Final = 1


class Choices(NamedTuple):
    """Arguments of the agent, under the same names; None or "auto" where nobody chose."""

    total_timesteps: int | None = None
    num_envs: int | None = None
    env_id: str | None = None
    run_dir: Path | None = None
    preset: str = "auto"
    hyperparameter_file: str | None = None
    log_interval: int | None = None
    save_every: int | None = None
    keep: int | None = None
    max_policy_lag: int | None = None
    async_learn: bool | None = None
    demonstrations_share: float | None = None

    def complete(self, log_interval: int) -> Choices:
        """The same, with a value for each that needs none from the user or the env.

        Args:
            log_interval: SB3's default.

        Raises:
            UsageError: One is less than it can be.
        """
        interval = log_interval if self.log_interval is None else self.log_interval
        save_every = _SAVE_EVERY if self.save_every is None else self.save_every
        keep = _KEEP if self.keep is None else self.keep
        lag = _MAX_POLICY_LAG if self.max_policy_lag is None else self.max_policy_lag
        for name, number, least in (
            ("log_interval", interval, 1),
            ("save_every", save_every, 0),
            ("keep", keep, 1),
            ("max_policy_lag", lag, 0),
        ):
            if number < least:
                raise UsageError(f"{name}: expected at least {least}, got {number}")
        return self._replace(
            log_interval=interval,
            save_every=save_every,
            keep=keep,
            max_policy_lag=lag,
            async_learn=bool(self.async_learn),
            demonstrations_share=self.demonstrations_share or 0.0,
        )
