"""The pictures themselves: what their axes, lines and legends say."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure
from PIL import Image

from plugrl_gym.errors import UsageError
from plugrl_gym.plotting import learning_curve, plot_runs
from plugrl_gym.plotting.abscissa import Abscissa
from plugrl_gym.plotting.clients import clients_picture
from plugrl_gym.plotting.groups import group_runs
from plugrl_gym.plotting.latency import latency_picture
from plugrl_gym.plotting.learning import learning_picture
from plugrl_gym.plotting.runs import read_run
from plugrl_gym.plotting.style import stroke, time_unit
from tests.support.run_dirs import RETURN, SECONDS, STEPS, write_run

ALL = (0.0, 1.0)
WHO = {STEPS: [100, 200], "time/clients": [1, 3], "time/envs": [8, 24]}


def drawn(make, paths, against="steps"):
    """The axes of a picture of some runs, those that are on."""
    runs = [read_run(path) for path in paths]
    picture = make(group_runs(runs), Abscissa.of(runs, against))
    figure = Figure()
    picture.draw(figure)
    return [axes for axes in figure.axes if axes.axison]


def learning(paths, against="steps", band=ALL):
    return drawn(lambda groups, x: learning_picture(groups, x, band), paths, against)


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_axes_are_labelled_with_their_units(tmp_path):
    path = write_run(tmp_path / "run")
    (axes,) = learning([path])
    assert axes.get_title() == "CartPole-v1"
    assert axes.get_xlabel() == "env steps"
    assert axes.get_ylabel() == "mean return\n(training, last 100 episodes)"
    assert legend(axes) == ["ppo"]
    (axes,) = learning([path], "time")
    assert axes.get_xlabel() == "wall time (s)"
    assert axes.lines[0].get_xdata().tolist() == [1, 3]


@pytest.mark.parametrize(
    ("seconds", "name"), [(0.0, "s"), (179, "s"), (180, "min"), (10_799, "min"), (10_800, "h")]
)
def test_wall_time_has_a_unit_that_suits_it(seconds, name):
    assert time_unit(seconds).name == name


def test_minutes_are_minutes(tmp_path):
    log = {STEPS: [1, 2], SECONDS: [0, 600], RETURN: [1, 2]}
    (axes,) = learning([write_run(tmp_path / "run", log)], "time")
    assert axes.get_xlabel() == "wall time (min)"
    assert axes.lines[0].get_xdata().tolist() == [0, 10]


def test_seeds_are_one_line_with_a_band(tmp_path):
    paths = [
        write_run(tmp_path / str(seed), {STEPS: [100, 200], RETURN: [seed, 3 * seed]}, seed=seed)
        for seed in range(3)
    ]
    (axes,) = learning(paths)
    assert axes.lines[0].get_ydata().tolist() == [1, 3]
    (band,) = axes.collections
    assert {tuple(point) for point in band.get_paths()[0].vertices} >= {(100, 0), (200, 6)}
    assert legend(axes) == ["ppo (3 runs)"]
    assert axes.get_legend().get_title().get_text() == "line: median; band: min to max"


def test_a_run_that_went_on_alone_is_drawn_alone(tmp_path):
    short = write_run(tmp_path / "0", {STEPS: [100, 200], RETURN: [1, 2]}, seed=0)
    long = write_run(tmp_path / "1", {STEPS: [100, 200, 300], RETURN: [1, 2, 9]}, seed=1)
    (axes,) = learning([short, long])
    assert any(line.get_xydata().tolist() == [[200, 2], [300, 9]] for line in axes.lines)


def test_runs_without_a_step_in_common_are_drawn_one_by_one(tmp_path):
    early = write_run(tmp_path / "0", {STEPS: [100, 200], RETURN: [1, 2]}, seed=0)
    late = write_run(tmp_path / "1", {STEPS: [300, 400], RETURN: [3, 4]}, seed=1)
    (axes,) = learning([early, late])
    drawn = [line.get_xydata().tolist() for line in axes.lines]
    assert [[100, 1], [200, 2]] in drawn
    assert [[300, 3], [400, 4]] in drawn
    assert legend(axes) == ["ppo (2 runs)"]


def test_every_env_has_axes_of_its_own_and_evaluations_too(tmp_path):
    evaluations = {"timesteps": [100, 200], "mean_reward": [40, 50]}
    paths = [
        write_run(tmp_path / "0", evaluations=evaluations),
        write_run(tmp_path / "1", env_id="Pendulum-v1", algorithm="sac"),
    ]
    axes = learning(paths)
    assert [(a.get_title(), a.get_ylabel().split("\n")[1], legend(a)) for a in axes] == [
        ("CartPole-v1", "(training, last 100 episodes)", ["ppo"]),
        ("Pendulum-v1", "(training, last 100 episodes)", ["sac"]),
        ("CartPole-v1", "(evaluation)", ["ppo"]),
    ]
    assert axes[2].lines[0].get_xydata().tolist() == [[100, 40], [200, 50]]


def test_lines_are_told_apart_without_colour(tmp_path):
    assert len({(str(stroke(i).linestyle), stroke(i).marker) for i in range(63)}) == 63
    names = ("ppo", "a2c", "trpo")
    paths = [write_run(tmp_path / name, algorithm=name) for name in names]
    (axes,) = learning(paths)
    assert len({line.get_linestyle() for line in axes.lines}) == 3
    assert len({line.get_marker() for line in axes.lines}) == 3
    seen = [line.get_markevery() for line in axes.lines]
    assert all(every == 1 for _, every in seen)  # both points of so short a line


def test_a_legend_of_many_lines_stands_beside_the_axes(tmp_path):
    paths = [write_run(tmp_path / str(n), horizon=n + 1) for n in range(6)]
    (axes,) = learning(paths)
    assert legend(axes) == [f"ppo, horizon={n + 1}" for n in range(6)]
    figure = axes.figure
    figure.set_size_inches(9, 4)
    figure.set_layout_engine("constrained")
    figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x0 > axes.get_window_extent().x1
    assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1


def test_clients_and_envs_are_steps_from_0_up(tmp_path):
    above, below = drawn(clients_picture, [write_run(tmp_path / "run", WHO)])
    assert (above.get_ylabel(), below.get_ylabel()) == ("clients connected", "envs connected")
    assert above.lines[0].get_ydata().tolist() == [1, 3]
    assert below.lines[0].get_ydata().tolist() == [8, 24]
    assert above.lines[0].get_drawstyle() == "steps-post"
    assert above.get_ylim()[0] == below.get_ylim()[0] == 0
    assert below.get_xlabel() == "env steps"


def quantiles(*milliseconds):
    return dict(zip(("p50", "p95", "p99"), (ms / 1000 for ms in milliseconds), strict=True))


def test_latency_is_told_by_stage_in_milliseconds(tmp_path):
    paths = [
        write_run(
            tmp_path / str(seed),
            {
                STEPS: [100, 200],
                "latency/learn_p50": [0.1, ""],
                "latency/learn_p95": [0.3, 0.4],
                "latency/queue_p50": [0.001, 0.002],
                "latency/queue_p95": [0.003, 0.004],
                "latency/idle_p50": ["", ""],
            },
            seed=seed,
            result={
                "latency": {"queue": quantiles(1 + seed, 5, 9), "learn": quantiles(50, 60, 70)}
            },
        )
        for seed in (0, 1, 4)
    ]
    whole, middle, tail = drawn(latency_picture, paths)
    assert whole.get_title(loc="left") == "CartPole-v1, ppo (3 runs)"
    assert whole.get_xlabel() == "latency in the whole run (ms)"
    assert [label.get_text() for label in whole.get_yticklabels()] == ["queue", "learn"]
    assert whole.yaxis_inverted()
    assert [collection.get_label() for collection in whole.collections] == ["p50", "p95", "p99"]
    assert whole.collections[0].get_offsets().tolist() == [[2, 0], [50, 1]]
    assert whole.collections[2].get_offsets().tolist() == [[9, 0], [70, 1]]
    assert (middle.get_ylabel(), tail.get_ylabel()) == (
        "p50 of latency (ms)",
        "p95 of latency (ms)",
    )
    assert [line.get_xydata().tolist() for line in middle.lines] == [
        [[100, 1], [200, 2]],
        [[100, 100]],
    ]
    assert [line.get_xydata().tolist() for line in tail.lines] == [
        [[100, 3], [200, 4]],
        [[100, 300], [200, 400]],
    ]
    assert legend(tail) == ["queue", "learn"]
    assert tail.get_ylim() == middle.get_ylim()


def test_latency_of_a_run_that_goes_on_is_that_of_its_log(tmp_path):
    log = {STEPS: [1], "latency/b_p50": [0.1], "latency/a_p50": [0.2], "latency/a_p95": [0.2]}
    middle, tail = drawn(latency_picture, [write_run(tmp_path / "run", log)])
    assert legend(tail) == ["a", "b"]
    assert [line.get_label() for line in middle.lines] == ["a", "b"]
    assert [line.get_label() for line in tail.lines] == ["a"]


def test_latency_of_a_run_that_logs_none_is_that_of_its_result(tmp_path):
    path = write_run(tmp_path / "run", result={"latency": {"queue": quantiles(1, 2, 3)}})
    (whole,) = drawn(latency_picture, [path])
    assert [tick.get_text() for tick in whole.get_yticklabels()] == ["queue"]


def test_files_are_whole_pictures_and_the_same_every_time(tmp_path):
    path = write_run(tmp_path / "run", {**WHO, RETURN: [1, 2]})
    before = dict(rcParams)
    first = plot_runs([path, path], tmp_path / "a" / "b")
    assert [file.relative_to(tmp_path).as_posix() for file in first.files] == [
        f"a/b/{name}.{ending}"
        for name in ("learning_curve", "clients")
        for ending in ("png", "svg")
    ]
    assert dict(rcParams) == before
    again = plot_runs([path], tmp_path / "c")
    for one, other in zip(first.files, again.files, strict=True):
        assert one.read_bytes() == other.read_bytes()
        if one.suffix == ".svg":
            assert ElementTree.parse(one).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        else:
            with Image.open(one) as picture:
                grey = np.asarray(picture.convert("L"))
            assert grey.shape[1] >= 900
            assert 0.01 < (grey < 128).mean() < 0.5


def test_what_a_run_does_not_tell_is_left_out_with_a_sentence(tmp_path):
    pictures = plot_runs([write_run(tmp_path / "run")], tmp_path)
    assert [path.name for path in pictures.files] == ["learning_curve.png", "learning_curve.svg"]
    assert pictures.missing == [
        "No latency: neither progress.csv nor result.json tells it.",
        "No clients: progress.csv does not tell of them.",
    ]
    nothing = plot_runs([write_run(tmp_path / "other", WHO)], tmp_path / "out")
    assert {path.stem for path in nothing.files} == {"clients"}
    assert any("no episode has ended" in sentence for sentence in nothing.missing)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"progress\.csv.* cannot be written"):
        plot_runs([write_run(tmp_path / "run")], tmp_path / "run" / "progress.csv")


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    path = write_run(tmp_path / "run")
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r'pip install "plugrl-gym\[plot\]"'):
        plot_runs([path], tmp_path)


def test_a_run_gets_its_learning_curve(tmp_path):
    path = write_run(tmp_path / "run")
    assert learning_curve(path) == path / "learning_curve.png"
    with Image.open(path / "learning_curve.png") as picture:
        assert picture.format == "PNG"


def test_a_run_without_a_return_or_without_matplotlib_gets_none(tmp_path, monkeypatch):
    assert learning_curve(tmp_path) is None
    assert learning_curve(write_run(tmp_path / "silent", WHO)) is None
    path = write_run(tmp_path / "run")
    monkeypatch.setattr("plugrl_gym.plotting.pictures.find_spec", lambda name: None)
    assert learning_curve(path) is None
    assert not (path / "learning_curve.png").exists()
