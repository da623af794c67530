"""Which settings a run takes: the user's own, a file's, a preset's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from plugrl_gym.agents.sb3.settings.hyperparameter_file import HyperparameterFile
from plugrl_gym.agents.sb3.settings.presets import Preset, load_preset, preset_names
from plugrl_gym.errors import UsageError

__all__ = ["DEFAULT_TIMESTEPS", "SettingsChoice", "first_said"]

#: Env steps of a run for which neither the caller nor a preset says another number.
DEFAULT_TIMESTEPS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """What stands under the arguments that a user gives one by one.

    Attributes:
        algorithm: Lower case, as ``"ppo"``.
        preset: ``"auto"`` for that of the run's env, ``"none"``, or an env id.
        file: Over the preset; None for none.
    """

    algorithm: str
    preset: str = "auto"
    file: HyperparameterFile | None = None

    def settings_for(self, env_id: str | None) -> list[Preset]:
        """The settings for an env, from those that win over all others down.

        Args:
            env_id: None while nobody has said it.

        Raises:
            UsageError: The file has none that can be, or there is no preset of this name.
        """
        chosen = self._preset(env_id)
        filed = None if self.file is None else self.file.settings_for(self.algorithm, env_id)
        return [settings for settings in (filed, chosen) if settings is not None]

    def _preset(self, env_id: str | None) -> Preset | None:
        if self.preset == "none":
            return None
        if self.preset == "auto":
            return load_preset(self.algorithm, env_id)
        preset = load_preset(self.algorithm, self.preset)
        if preset is None:
            names = preset_names(self.algorithm)
            close = get_close_matches(self.preset, names, 1)
            there = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names)}"
            raise UsageError(f"{self.algorithm} has no preset {self.preset!r}; {there}")
        return preset


def first_said(settings: Sequence[Preset], name: str) -> Any:
    """The value of an attribute in the first of them that has one; None if none has."""
    said = (getattr(preset, name) for preset in settings)
    return next((value for value in said if value is not None), None)
