"""The page in a real browser."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from websockets.sync.client import connect

from plugrl_gym import PlugRLVectorEnv
from plugrl_gym.agents.random_agent import RandomAgent
from plugrl_gym.protocol import Observation
from plugrl_gym.protocol.credentials import authorization
from tests.support.browser import DEADLINE, Tab
from tests.support.commands import rollout, serve
from tests.support.raw_client import RawClient, declare, raw_client
from tests.support.serving import FakeAgent, Running, running

pytestmark = pytest.mark.browser

KEY = "a-key-that-nobody-guesses"
STATE = "document.getElementById('state').textContent"


def address(url: str) -> str:
    """Of the page of a server, by its URL for clients."""
    return f"http{url.removeprefix('ws')}/"


def says(text: str) -> str:
    """An expression: whether the page's line about the run begins with that."""
    return f"{STATE}.startsWith({text!r})"


def number(name: str) -> str:
    """An expression: one of the large numbers."""
    found = f"[...document.querySelectorAll('dt')].find((term) => term.textContent === {name!r})"
    return f"Number({found}.nextSibling.firstChild.textContent.replaceAll(',', ''))"


#: Whether the form is there, its script has run, and one may type.
FORM = (
    "document.getElementById('key') === document.activeElement"
    " && document.readyState === 'complete'"
)

#: Whether a chart has anything but its axes: pixels in the colour of a curve.
DRAWN = """((id) => {{
  const canvas = document.querySelector(`#${{id}} canvas`);
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let blue = 0;
  for (let i = 0; i < pixels.length; i += 4) {{
    if (pixels[i + 3] > 200 && pixels[i + 2] - pixels[i] > 100) blue += 1;
  }}
  return blue > 50;
}})({id!r})"""


@contextmanager
def stepping(url: str, api_key: str) -> Iterator[Callable[[], None]]:
    """A client that steps four CartPoles, and comes back when its server does.

    Yields:
        What ends it, to be called while there is a server.
    """
    stop = threading.Event()
    envs = gym.make_vec("CartPole-v1", num_envs=4)
    with PlugRLVectorEnv(envs, url, api_key=api_key, reconnect_timeout=DEADLINE) as client:

        def step() -> None:
            for _ in client.rollout(seed=0):
                if stop.wait(0.005):
                    break

        def end() -> None:
            stop.set()
            thread.join(2 * DEADLINE)
            assert not thread.is_alive()

        thread = threading.Thread(target=step)
        thread.start()
        try:
            yield end
        finally:
            end()


def open_with_key(tab: Tab, run: Running) -> None:
    """Open the page and type the key."""
    tab.open(address(run.url))
    tab.wait_for(FORM)
    tab.type_into("#key", KEY)
    tab.wait_for("!document.getElementById('main').hidden")


def test_page_shows_a_running_training(tab: Tab, tmp_path: Path) -> None:
    with serve(
        *("--algo", "ppo", "--total-timesteps", 1_000_000, "--run-dir", tmp_path / "ppo-in-a-tab"),
        *("-P", "n_steps=256", "-P", "n_epochs=4", "--num-envs", 4),
    ) as server:
        url = server.url()
        page = server.line(r"Watch it in a browser:\s+(\S+)")[1]
        assert page == address(url)
        tab.open(page)
        tab.wait_for(says("Waiting for the first client"))
        assert f"rollout CartPole-v1 --url {url}" in tab.text("#hint")
        with rollout("CartPole-v1", "--num-envs", 4, "--url", url) as client:
            tab.wait_for(f"{number('Env steps')} > 1500 && {number('Mean return')} > 5")
            tab.wait_for(f"{DRAWN.format(id='returns')} && {DRAWN.format(id='pace')}")
            before = tab.evaluate(number("Env steps"))
            tab.wait_for(f"{number('Env steps')} > {before}")
            _check_text(tab)
            server.interrupt()
            tab.wait_for(says("Stopped by its operator"))
            assert server.finish().code == 0
            tab.wait_for(says("Stopped by its operator; the server has ended, last seen"))
            client.process.kill()
    assert {request[: len(page)] for request in tab.requested} == {page}
    # Only the server's end may have been in the way of a request.
    assert [fault for fault in tab.complaints if "net::ERR_" not in fault] == []


def _check_text(tab: Tab) -> None:
    assert tab.text("h1") == "ppo-in-a-tab"
    assert tab.text("#about") == "PPO · CartPole-v1"
    assert re.fullmatch(r"[\d,]+ of 1,000,000 env steps, about .+ left", tab.text("#left"))
    assert re.fullmatch(r"1\s+CartPole-v1\s+4\s[\d,.\s]+train\s.*", tab.text("#clients tbody"))
    assert re.search(r"Mean return of the last 100 episodes: [\d.]+ at", tab.text("#returns"))
    assert re.search(r"[\d,]+ steps/s in the last seconds, .* into learning", tab.text("#pace"))
    assert tab.text("#balance") == "They balance."
    assert re.search(r"chunks given\s+[\d,]+", tab.text("#books"))


def test_page_tells_that_the_run_is_over(tab: Tab) -> None:
    with running(FakeAgent(stop_after=1)) as run, raw_client(run.url) as client:
        tab.open(address(run.url))
        tab.wait_for(says("Waiting for the first client"))
        client.exchange(0)
        tab.wait_for(says("The run is over"))
        run.ended()
        tab.wait_for(says("The run is over; the server has ended, last seen"))


def test_page_goes_on_after_a_restart_of_its_server(tab: Tab) -> None:
    with running(RandomAgent(), api_key=KEY) as run:
        port = run.server.port
        with stepping(run.url, KEY) as end:
            open_with_key(tab, run)
            tab.wait_for(f"{number('Env steps')} > 0 && {says('Running')}")
            run.server.request_shutdown()
            run.ended()
            tab.wait_for(says("Stopped by its operator; the server has ended, last seen"))
            with running(RandomAgent(), api_key=KEY, port=port):
                tab.wait_for(f"{number('Env steps')} > 0 && {says('Running')}")
                assert tab.evaluate("document.getElementById('main').className") == ""
                end()
    assert "key" not in tab.text("main").lower()


def test_lost_server_is_missed_and_its_last_news_stay(tab: Tab) -> None:
    with serve("--algo", "random", "--no-run-dir") as server:
        tab.open(address(server.url()))
        tab.wait_for(says("Waiting for the first client"))
        server.process.kill()
        tab.wait_for(f"/^Server not reachable, last seen [1-9]\\d* s ago$/.test({STATE})")
    assert tab.evaluate("document.getElementById('main').className") == "old"
    assert "chunks given" in tab.text("#books")


def test_wrong_key_shows_nothing(tab: Tab) -> None:
    with (
        running(FakeAgent(), api_key=KEY) as run,
        connect(run.url, additional_headers={"Authorization": authorization(KEY)}) as socket,
    ):
        RawClient(socket).exchange(0)
        tab.open(address(run.url))
        tab.wait_for(FORM)
        for wrong in ("guess", "two words", "schlüssel"):
            tab.type_into("#key", wrong)
            tab.wait_for("document.getElementById('complaint').textContent.startsWith('That is')")
            assert tab.evaluate("document.getElementById('key').value") == ""
            assert tab.evaluate("document.querySelectorAll('table, canvas, img, dl').length") == 0
            assert "fake" not in tab.text()
            tab.evaluate("document.getElementById('complaint').textContent = ''")
        paths = {request.removeprefix(address(run.url)) for request in tab.requested}
        assert paths == {"", "form.js", "page.css", "login"}
        tab.type_into("#key", KEY)
        tab.wait_for("document.querySelector('h1').textContent === 'fake'")
        assert tab.evaluate("document.cookie") == ""


def test_another_key_brings_the_form_back(tab: Tab) -> None:
    with running(FakeAgent(), api_key=KEY) as run:
        port = run.server.port
        open_with_key(tab, run)
    with running(FakeAgent(), api_key="another", port=port):
        tab.wait_for("document.getElementById('key') !== null")
        assert "fake" not in tab.text()


HOSTILE = "<img src=x onerror=alert(1)>" + "very-long-name/" * 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone_and_takes_what_clients_say_as_text(tab: Tab, scheme: str) -> None:
    tab.resize(360, 740, phone=True)
    tab.prefer(scheme)
    images = np.zeros((2, 48, 64, 3), np.uint8)
    declared = replace(declare(spaces.Discrete(2)), env_id=HOSTILE)
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        tab.open(address(run.url))
        tab.wait_for(says("Waiting"))
        observation = Observation(images={HOSTILE: images}, text=["", ""])
        client.infer(0, 1, observation=observation, spaces=declared)
        tab.wait_for("document.getElementById('image').naturalWidth === 64")
        assert HOSTILE in tab.text("#clients")
        assert HOSTILE in tab.text("#camera")
        width = tab.evaluate("document.documentElement.scrollWidth")
        smallest = tab.evaluate(
            "Math.min(...[...document.querySelectorAll('p, td, th, dt, dd, small, h2')]"
            ".map((part) => parseFloat(getComputedStyle(part).fontSize)))"
        )
    assert width == 360
    assert smallest >= 14
    assert tab.complaints == []
