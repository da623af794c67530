"""Videos and datasets that ``rollout`` and ``train`` leave."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import minari
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from plugrl_gym import rollout as command
from plugrl_gym import train
from plugrl_gym.client.handed_out import env_id
from plugrl_gym.commands.environments import make_envs
from plugrl_gym.commands.fleet import command_lines
from plugrl_gym.commands.output import Output
from plugrl_gym.commands.recording import Recording, add_recording_options
from plugrl_gym.errors import UsageError
from tests.support.commands import run, serve

DRAWING = "tests.support.drawing_envs:Drawing-v0"


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def asked(*arguments: object, env_id: str | None = DRAWING, **others: Any) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_recording_options(parser)
    parser.set_defaults(env_id=env_id, probe=env_id is None, procs=1)
    parser.set_defaults(**others)
    return parser.parse_args([str(argument) for argument in arguments])


def filmed(
    options: argparse.Namespace, autoreset: str, vector: str = "sync", steps: int = 10
) -> Any:
    """Make the envs of some options, step them and close them."""
    envs = make_envs(DRAWING, 3, vector, autoreset, {}, Recording(options).make_first)
    assert env_id(envs) == "Drawing-v0"
    envs.reset(seed=0)
    for _ in range(steps):
        _, _, terminated, _, _ = envs.step(np.zeros(3, np.int64))
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and terminated.any():
            envs.reset(options={"reset_mask": terminated})
    envs.close()


def frames(folder: Path) -> dict[str, int]:
    """How many pictures are in each file of a directory."""
    return {
        path.name: imageio_ffmpeg.count_frames_and_secs(str(path))[0] for path in folder.iterdir()
    }


@pytest.mark.parametrize("autoreset", ["same-step", "next-step", "disabled"])
def test_a_video_holds_a_whole_episode_of_the_first_env(tmp_path: Path, autoreset: str) -> None:
    options = asked("--record-video", tmp_path / "videos", "--video-every", 2)
    filmed(options, autoreset)
    # NEXT_STEP has begun its third episode with the tenth step, the others two steps ago.
    last = 1 if autoreset == "next-step" else 3
    assert frames(tmp_path / "videos") == {
        "Drawing-v0-episode-0.mp4": 5,
        "Drawing-v0-episode-2.mp4": last,
    }


def test_an_env_in_a_process_of_its_own_is_filmed_there(tmp_path: Path) -> None:
    filmed(asked("--record-video", tmp_path), "same-step", "async", steps=5)
    assert frames(tmp_path) == {"Drawing-v0-episode-0.mp4": 5, "Drawing-v0-episode-1.mp4": 2}


def test_nothing_is_asked_for_by_default() -> None:
    recording, envs = Recording(asked()), object()
    assert recording.make_first is None
    with recording.over(envs, Output("test", quiet=False, json=False)) as recorded:
        assert recorded is envs


def test_videos_are_never_overwritten(tmp_path: Path) -> None:
    options = asked("--record-video", tmp_path)
    filmed(options, "same-step", steps=1)
    with pytest.raises(UsageError, match="holds videos of Drawing-v0 already"):
        Recording(options)


@pytest.mark.parametrize(
    ("arguments", "others", "said"),
    [
        (["--video-every", 2], {}, "--video-every needs --record-video DIR"),
        (["--record-video", "x"], {"env_id": None}, "does not go with --probe"),
        (["--record-video", __file__], {}, "is a file, not a directory"),
        (["--record-video", f"{__file__}/x/y"], {}, f"{__file__} is a file, not a directory"),
        (["--record-minari", "a-v0"], {"procs": 2}, "does not go with --procs"),
    ],
)
def test_what_cannot_be_recorded_is_refused(arguments: Any, others: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Recording(asked(*arguments, **others))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Undrawable", "--record-video: pens are not installed"),
        ("Written", r"Written-v0 gives no picture: .* of \['ansi'\]; rgb_array is needed"),
        ("Invisible", "Invisible-v0 takes no render_mode"),
    ],
)
def test_an_env_that_gives_no_picture_is_told_in_a_sentence(
    tmp_path: Path, kind: str, said: str
) -> None:
    name = f"tests.support.drawing_envs:{kind}-v0"
    recording = Recording(asked("--record-video", tmp_path, env_id=name))
    with pytest.raises(UsageError, match=said):
        make_envs(name, 1, "sync", "same-step", {}, recording.make_first).reset()


def test_train_names_what_its_client_recorded(tmp_path: Path, datasets: Path) -> None:
    videos = tmp_path / "videos"
    finished = run(
        *("-m", "plugrl_gym.train", DRAWING, "--algo", "random", "--num-envs", 2),
        *("--total-timesteps", 12, "--run-dir", tmp_path / "run", "--record-video", videos),
        *("--record-minari", "drawing/mine-v0"),
    )
    assert finished.code == 0, finished.stderr
    assert f"\n  {videos}\n  {datasets / 'drawing' / 'mine-v0'}\n" in finished.stderr
    assert minari.load_dataset("drawing/mine-v0").total_steps == 12


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugrl_gym.commands.recording.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r'pip install "plugrl-gym\[video\]"'):
        Recording(asked("--record-video", tmp_path))


@pytest.mark.parametrize("main", [command.main, train.main])
def test_both_commands_refuse_it_in_one_line(main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["CartPole-v1", "--record-minari", "no version"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--record-minari: Minari dataset 'no version': expected a name as mine-v0" in line


def test_of_several_processes_the_first_is_filmed() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env_id")
    command.add_options(parser)
    options = parser.parse_args(
        ["X-v0", "--procs", "2", "--record-video", "d", "--video-every", "3"]
    )
    first, second = command_lines(command.add_options, options)
    assert {"--record-video=d", "--video-every=3"} <= set(first)
    assert not any("video" in argument for argument in second)


def test_rollout_leaves_videos_and_a_dataset_and_names_them(tmp_path: Path, datasets: Path) -> None:
    videos = tmp_path / "videos"
    with serve("--algo", "random", "--no-run-dir", "--total-timesteps", 30) as server:
        finished = run(
            *("-m", "plugrl_gym.rollout", DRAWING, "--num-envs", 3, "--url", server.url()),
            *("--record-video", videos, "--record-minari", "drawing/mine-v0"),
        )
        assert server.finish().code == 0
    assert finished.code == 0, finished.stderr
    assert f"  {videos}: 2 videos\n" in finished.stderr
    told = f"  {datasets / 'drawing' / 'mine-v0'}: 9 episodes, 30 steps\n"
    assert finished.stderr.endswith(told)
    dataset = minari.load_dataset("drawing/mine-v0")
    assert [len(episode) for episode in dataset] == [4] * 6 + [2] * 3
    assert dataset.spec.env_spec.id == "Drawing-v0"
    assert sorted(frames(videos).values()) == [5, 5]
