"""Videos and datasets of what a client's envs do."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import RecordVideo

from plugrl_gym.client import MinariRecorder
from plugrl_gym.client.minari_dataset import free_place
from plugrl_gym.commands.entry import one_line
from plugrl_gym.commands.environments import MakeFirst
from plugrl_gym.commands.naming import check_folder
from plugrl_gym.commands.options import count
from plugrl_gym.commands.output import Output
from plugrl_gym.errors import UsageError

__all__ = ["Recording", "add_recording_options"]


def add_recording_options(parser: argparse.ArgumentParser) -> None:
    """What a client keeps of its envs; ``train`` passes it on."""
    group = parser.add_argument_group("recording")
    group.add_argument(
        "--record-video",
        type=Path,
        metavar="DIR",
        help="write videos of whole episodes of the first env, by Gymnasium's RecordVideo "
        "(default: none)",
    )
    group.add_argument(
        "--video-every",
        type=count,
        metavar="N",
        help="a video of its first episode and of every N-th from there on (default: Gymnasium's "
        "choice, episodes 0, 1, 8, 27 and so on, then every 1,000th)",
    )
    group.add_argument(
        "--record-minari",
        metavar="NAME",
        help="write all episodes, with the actions that were executed, as a Minari dataset of this "
        "name, as cartpole/mine-v0; into MINARI_DATASETS_PATH, else ~/.minari/datasets "
        "(default: none)",
    )


class Recording:
    """What the options ask to be recorded; without them it does nothing.

    Args:
        options: With those of :func:`add_recording_options`, ``env_id``, ``probe`` and ``procs``.

    Raises:
        UsageError: They do not go together, a package is missing, or something is there already.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder: Path | None = options.record_video
        self._every: int | None = options.video_every
        self._dataset: str | None = options.record_minari
        self._place: Path | None = None
        self._prefix = re.sub(r"[^\w.-]+", "-", (options.env_id or "").rpartition(":")[2])
        if self._every is not None and self._folder is None:
            raise UsageError("--video-every needs --record-video DIR")
        if self._dataset is not None and options.procs > 1:
            raise UsageError("--record-minari does not go with --procs: one process, one dataset")
        if self._dataset is not None:
            with _named("--record-minari"):
                self._place = free_place(self._dataset)
        if self._folder is not None:
            if options.probe:
                raise UsageError("--record-video does not go with --probe, which has no picture")
            self._check_folder(self._folder)

    def _check_folder(self, folder: Path) -> None:
        if find_spec("moviepy") is None:
            raise UsageError(
                "--record-video needs MoviePy, which is not installed: "
                'pip install "plugrl-gym[video]"'
            )
        check_folder("--record-video", folder)
        if self._videos():
            raise UsageError(
                f"--record-video: {folder} holds videos of {self._prefix} already; name another "
                "directory"
            )

    def _videos(self) -> list[Path]:
        return [] if self._folder is None else [*self._folder.glob(f"{self._prefix}-episode-*.mp4")]

    @property
    def places(self) -> list[Path]:
        """The directories of videos and dataset that are there."""
        return [path for path in (self._folder, self._place) if path is not None and path.exists()]

    @property
    def make_first(self) -> MakeFirst | None:
        """For ``make_envs``; None where no video is wanted."""
        if self._folder is None:
            return None
        return _Filming(self._folder, self._prefix, self._every)

    @contextmanager
    def over(
        self, envs: VectorEnv[Any, Any, Any], output: Output
    ) -> Iterator[VectorEnv[Any, Any, Any]]:
        """The envs, recorded; at the end, when the block has closed them, says where it is.

        Raises:
            UsageError: The dataset cannot be made.
        """
        try:
            with _named("--record-minari"):
                recorder = None if self._dataset is None else MinariRecorder(envs, self._dataset)
        except BaseException:
            envs.close()
            raise
        try:
            yield envs if recorder is None else recorder
        finally:
            self._say(output, recorder)

    def _say(self, output: Output, recorder: MinariRecorder | None) -> None:
        videos = len(self._videos())
        if self._folder is not None:
            output.say(f"  {self._folder}: {videos:,} video{'s' * (videos != 1)}")
        if recorder is not None:
            kept = recorder.dataset
            output.say(
                f"  {kept.path}: {kept.episodes:,} episodes, {kept.steps:,} steps"
                if kept.episodes
                else f"  no Minari dataset {self._dataset}: not one step was recorded"
            )


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Say which option an error is about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error


class _Filming:
    """Puts RecordVideo around an env; goes to another process by pickle.

    Args:
        folder: Gets the videos.
        prefix: Their names begin with it.
        every: See ``--video-every``; None for Gymnasium's choice.
    """

    def __init__(self, folder: Path, prefix: str, every: int | None) -> None:
        self._folder = folder.absolute()
        self._prefix = prefix
        self._every = every

    def __call__(self, make: Callable[..., gym.Env[Any, Any]]) -> gym.Env[Any, Any]:
        """The env that ``make`` makes, filmed.

        Raises:
            UsageError: It gives no picture.
        """
        with warnings.catch_warnings():
            # Gymnasium's, that the env cannot draw itself, which is said below, and that the
            # directory is there already, in which nothing will be overwritten.
            warnings.simplefilter("ignore", UserWarning)
            try:
                env = make(render_mode="rgb_array")
            except TypeError as error:
                if "render_mode" not in str(error):
                    raise
                raise UsageError(f"--record-video: {self._prefix} takes no render_mode") from error
            modes = env.metadata.get("render_modes") or []
            if env.render_mode not in ("rgb_array", "rgb_array_list") or not {
                "rgb_array",
                "rgb_array_list",
            } & {*modes}:
                env.close()
                raise UsageError(
                    f"--record-video: {self._prefix} gives no picture: its render mode is "
                    f"{env.render_mode!r}, of {modes}; rgb_array is needed"
                )
            self._make_folder()
            return RecordVideo(
                _Drawn(env),
                str(self._folder),
                episode_trigger=None if self._every is None else self._due,
                name_prefix=self._prefix,
            )

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--record-video {self._folder}: {error.strerror}") from error

    def _due(self, episode: int) -> bool:
        return self._every is not None and episode % self._every == 0


class _Drawn(gym.Wrapper[Any, Any, Any, Any]):
    """Says in one sentence what an env lacks to draw itself."""

    def render(self) -> Any:
        """As the env; raises UsageError where a package is missing."""
        try:
            return super().render()
        except gym.error.DependencyNotInstalled as error:
            raise UsageError(f"--record-video: {one_line(error)}") from error
