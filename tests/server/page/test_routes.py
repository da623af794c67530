"""What a browser gets from a server's port, and who gets it (SPEC 2.12, 2.16)."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import math
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from plugrl_gym.protocol import Observation
from plugrl_gym.protocol.close import REASON_STOP
from plugrl_gym.server import tls_context
from plugrl_gym.server.page.files import ASSETS, FORM, PAGE, contents
from tests.support.certificates import certificate_files
from tests.support.raw_client import DEADLINE, declare, raw_client
from tests.support.serving import FakeAgent, Running, running

KEY = "a-key-that-nobody-guesses"
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
BEHIND_THE_KEY = ["/status.json", "/status.json?wait", "/camera.png", "/login", "/metrics"]


class Answer:
    """What came back.

    Attributes:
        status: The number.
        headers: By name; a name that came twice has both values.
        body: As bytes.
    """

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = {
            name: ", ".join(answer.headers.get_all(name, [])) for name in answer.headers
        }
        self.body = answer.read()

    @property
    def cookie(self) -> str:
        """What a browser sends back; empty where nothing was given out."""
        return self.headers.get("Set-Cookie", "").partition(";")[0]


def visit(run: Running, path: str, tls: ssl.SSLContext | None = None, **headers: str) -> Answer:
    """Ask for ``path``."""
    address: tuple[str, int] = ("127.0.0.1", run.server.port)
    browser = (
        http.client.HTTPConnection(*address, timeout=DEADLINE)
        if tls is None
        else http.client.HTTPSConnection(*address, timeout=DEADLINE, context=tls)
    )
    with contextlib.closing(browser):
        browser.request("GET", path, headers=headers)
        return Answer(browser.getresponse())


def status(run: Running, path: str = "/status.json", **headers: str) -> dict[str, Any]:
    """The news."""
    answer = visit(run, path, **headers)
    assert answer.status == 200, answer.body
    news: dict[str, Any] = json.loads(answer.body, parse_constant=pytest.fail)
    return news


def log_in(run: Running, key: str = KEY) -> Answer:
    """Show a key."""
    return visit(run, "/login", Authorization=f"Api-Key {key}")


@pytest.fixture
def locked() -> Iterator[Running]:
    """A server that wants a key."""
    with running(FakeAgent(), api_key=KEY) as run:
        yield run


# -- documents -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/?from=a-link"])
def test_browser_gets_the_page_and_everybody_else_a_sentence(path: str) -> None:
    with running(FakeAgent()) as run:
        page, other = visit(run, path, **HTML), visit(run, path, Accept="*/*")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert page.body == contents(PAGE)
    assert other.status == 426
    assert f"a browser at http://127.0.0.1:{run.server.port}/\n".encode() in other.body


def test_nothing_of_the_page_may_come_from_or_be_used_elsewhere() -> None:
    paths = ["/", *ASSETS, "/status.json", "/camera.png", "/login"]
    with running(FakeAgent()) as run, running(FakeAgent(), api_key=KEY) as locked:
        answers = [visit(run, path, **HTML) for path in paths]
        answers.append(visit(locked, "/", **HTML))
    for answer in answers:
        _check_headers(answer.headers)


def _check_headers(headers: dict[str, str]) -> None:
    rules = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert rules == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"


class Document(HTMLParser):
    """Collects what a document loads, and what it has inside that its policy forbids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.inside: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._open = tag
        self.loads += [value or "" for name, value in attributes if name in ("src", "href")]
        self.inside += [n for n, _ in attributes if n.startswith("on") or n == "style"]

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style") and data.strip():
            self.inside.append(data)


@pytest.mark.parametrize("name", [PAGE, FORM])
def test_document_loads_only_what_this_server_has(name: str) -> None:
    text = contents(name).decode()
    document = Document(text)
    assert set(document.loads) <= {"data:,", *ASSETS}
    assert document.inside == []
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text


def test_assets_are_open_and_whole(locked: Running) -> None:
    for path, (name, media_type) in ASSETS.items():
        answer = visit(locked, path)
        assert (answer.status, answer.body) == (200, contents(name))
        assert answer.headers["Content-Type"] == media_type


def test_own_scripts_write_no_html_and_know_no_other_place() -> None:
    for name in ("page.js", "charts.js", "form.js"):
        script = contents(name).decode()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script)
        assert not re.search(r"https?://|localStorage|sessionStorage", script)


def test_parts_of_others_have_their_version_and_licence_beside_them() -> None:
    (version,) = re.findall(r"\| (\d+\.\d+\.\d+) \|", contents("vendor/README.md").decode())
    assert f"(v{version})".encode() in contents("vendor/uPlot.iife.min.js")
    assert b"The MIT License" in contents("vendor/uPlot.LICENSE")


# -- the key ---------------------------------------------------------------------------------


def test_without_the_key_there_is_the_form_and_nothing_else(locked: Running) -> None:
    for headers in (HTML, {**HTML, "Cookie": "plugrl=1"}, {**HTML, "Authorization": "Api-Key x"}):
        answer = visit(locked, "/", **headers)
        assert (answer.status, answer.body) == (401, contents(FORM))
    for path in BEHIND_THE_KEY:
        answer = visit(locked, path)
        assert answer.status == 401
        assert answer.body == b"This PlugRL server wants a key, and this client sent no key.\n"


@pytest.mark.parametrize("key", ["guess", "", f"{KEY}x", KEY[:-1], f"x {KEY}"])
def test_wrong_key_is_refused_and_sets_no_cookie(key: str, locked: Running) -> None:
    answer = log_in(locked, key)
    assert (answer.status, answer.cookie) == (401, "")
    assert visit(locked, "/", Cookie=answer.cookie, **HTML).status == 401


def test_right_key_gives_a_cookie_that_opens_everything_there_is_to_read(locked: Running) -> None:
    answer = log_in(locked)
    assert (answer.status, answer.body) == (204, b"")
    assert KEY not in answer.headers["Set-Cookie"]
    assert visit(locked, "/", Cookie=answer.cookie, **HTML).body == contents(PAGE)
    assert status(locked, Cookie=answer.cookie)["run"]["algorithm"] == "fake"
    assert visit(locked, "/camera.png", Cookie=answer.cookie).status == 404
    assert visit(locked, "/metrics", Cookie=answer.cookie).status == 200


def test_cookie_that_somebody_made_up_opens_nothing(locked: Running) -> None:
    cookie = log_in(locked).cookie
    for wrong in (cookie[:-1], cookie.replace("=1", "=2"), cookie.partition("=")[0]):
        assert visit(locked, "/status.json", Cookie=wrong).status == 401


def test_cookie_does_not_prolong_itself(locked: Running) -> None:
    answer = visit(locked, "/login", Cookie=log_in(locked).cookie)
    assert (answer.status, answer.cookie) == (401, "")


def test_cookie_opens_no_training(locked: Running) -> None:
    cookie = log_in(locked).cookie
    with (
        pytest.raises(InvalidStatus, match="401"),
        connect(locked.url, additional_headers={"Cookie": cookie}),
    ):
        pass
    with connect(locked.url, additional_headers={"Authorization": f"Api-Key {KEY}"}):
        pass


def test_cookie_is_good_for_the_next_server_with_the_same_key_only(locked: Running) -> None:
    cookie = log_in(locked).cookie
    with running(FakeAgent(), api_key=KEY) as again, running(FakeAgent(), api_key="new") as other:
        assert visit(again, "/status.json", Cookie=cookie).status == 200
        assert visit(other, "/status.json", Cookie=cookie).status == 401


def test_cookie_of_a_server_with_tls_travels_over_tls_only(tmp_path: Path, locked: Running) -> None:
    files = certificate_files(tmp_path / "tls")
    trusting = ssl.create_default_context(cafile=files.ca)
    context = tls_context(files.cert, files.key)
    with running(FakeAgent(), api_key=KEY, ssl_context=context) as run:
        secure = visit(run, "/login", trusting, Authorization=f"Api-Key {KEY}")
        sentence = visit(run, "/", trusting, Authorization=f"Api-Key {KEY}").body
    assert secure.headers["Set-Cookie"].endswith("; SameSite=Strict; Secure")
    assert f"a browser at https://127.0.0.1:{run.server.port}/\n".encode() in sentence
    assert log_in(locked).headers["Set-Cookie"].endswith("; SameSite=Strict")


def test_server_without_a_key_gives_out_no_cookie() -> None:
    with running(FakeAgent()) as run:
        answer = visit(run, "/login")
    assert (answer.status, answer.cookie) == (204, "")


def test_key_and_cookie_are_not_logged(locked: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cookie = log_in(locked).cookie
    log_in(locked, "a-wrong-key")
    visit(locked, "/status.json", Cookie=cookie)
    assert "refused, HTTP 401" in caplog.text
    for secret in (KEY, "a-wrong-key", cookie.partition("=")[2]):
        assert secret not in caplog.text


def test_looking_at_the_form_is_no_refusal(
    locked: Running, caplog: pytest.LogCaptureFixture
) -> None:
    assert visit(locked, "/", **HTML).status == 401
    assert "refused" not in caplog.text


# -- pages of others -------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(
    "foreign", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}]
)
def test_page_of_another_server_gets_nothing(key: str | None, foreign: dict[str, str]) -> None:
    with running(FakeAgent(), api_key=key) as run:
        for path in ("/", *BEHIND_THE_KEY):
            answer = visit(run, path, **HTML, **foreign)
            knowing = visit(run, path, Authorization=f"Api-Key {KEY}", **HTML, **foreign)
            keyless = 401 if path == "/login" and key else 403
            assert (answer.status, knowing.status) == (keyless, 403), path
            assert answer.headers["Content-Type"].startswith("text/plain")


def test_server_without_a_key_shows_its_page_under_names_that_are_its_own() -> None:
    with running(FakeAgent(), host="0.0.0.0", insecure=True, allowed_hosts=["lab.lan"]) as run:
        for path in ("/", "/status.json", "/camera.png"):
            rebound = visit(run, path, Host="evil.example:8000", **HTML)
            assert rebound.status == 403
            assert b"start it with --allow-host evil.example or with a key" in rebound.body
            for name in ("192.168.1.20:8000", "localhost", "lab.lan:8000", socket.gethostname()):
                assert visit(run, path, Host=name, **HTML).status in (200, 404)
        for path in ("/", "/metrics"):  # a program's, which no page of others can be
            assert visit(run, path, Host="trainer.lan").status in (200, 426)


def test_server_with_a_key_shows_its_page_under_any_name() -> None:
    with running(FakeAgent(), host="0.0.0.0", api_key=KEY) as run:
        cookie = log_in(run).cookie
        assert visit(run, "/", Host="trainer.lan", Cookie=cookie, **HTML).status == 200


# -- news ------------------------------------------------------------------------------------


def test_news_tell_of_the_run_its_clients_and_its_books() -> None:
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        assert status(run)["run"]["state"] == "new"
        run.server.board.title = "ppo-test"
        client.infer(0, 1, spaces=declare(spaces.Discrete(2)))
        client.feed_back(0, 1, rewards=[3.0, 5.0], terminated=[True, False])
        client.infer(0)
        news = status(run)
    assert news["run"] | {"seconds": 0, "started": 0} == {
        "title": "ppo-test",
        "algorithm": "fake",
        "state": "running",
        "started": 0,
        "seconds": 0,
        "steps": 2,
        "total_steps": None,
        "episodes": 1,
        "mean_return": 3.0,
        "mean_length": 1.0,
        "steps_per_second": news["run"]["steps_per_second"],
        "mean_steps_per_second": news["run"]["mean_steps_per_second"],
        "learning_seconds": 0.0,
    }
    (row,) = news["clients"]
    assert 0 <= row.pop("idle_seconds") < DEADLINE
    assert row.pop("address").startswith("127.0.0.1:")
    assert row == {
        "number": 1,
        "env_id": "Test-v0",
        "envs": 1,
        "mode": "train",
        "steps": 2,
        "episodes": 1,
        "mean_return": 3.0,
    }
    assert news["curve"]["steps"][-1] == 2
    assert news["curve"]["returns"][-1] == 3.0
    assert len({len(column) for column in news["curve"].values()}) == 1
    assert (news["books"]["chunks_given"], news["books"]["chunks_open"]) == (3, 1)
    assert news["book_errors"] == []
    assert news["evaluation"] is None
    assert news["latency"]["forward"]["count"] == 2
    assert 0 < news["latency"]["forward"]["p50"] <= news["latency"]["forward"]["p99"] < DEADLINE


def test_resumed_run_is_shown_as_a_whole() -> None:
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        run.server.board.continued = lambda run: replace(run, env_steps=run.env_steps + 1000)
        client.exchange(0)
        client.infer(0)
        news = status(run)
    assert (news["run"]["steps"], news["curve"]["steps"][-1]) == (1001, 1001)


def test_client_that_declares_nothing_has_the_envs_that_it_names() -> None:
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        client.infer(4, 7, 9)
        (row,) = status(run)["clients"]
    assert (row["env_id"], row["envs"], row["mean_return"]) == (None, 3, None)


def test_evaluation_is_apart() -> None:
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        client.infer(0, spaces=declare(spaces.Discrete(2), mode="eval"))
        client.feed_back(0, rewards=[4.0], terminated=[True])
        client.infer(0)
        news = status(run)
    assert news["evaluation"] == {"episodes": 1, "mean_return": 4.0}
    assert (news["run"]["steps"], news["run"]["mean_return"]) == (0, None)
    assert [(row["mode"], row["steps"]) for row in news["clients"]] == [("eval", 1)]


def test_return_that_json_cannot_say_is_left_out() -> None:
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        client.infer(0)
        client.feed_back(0, terminated=[True])
        client.infer(0)
        run.statistics._training.returns.append(math.inf)
        news = status(run)
    assert (news["run"]["mean_return"], news["curve"]["returns"][-1]) == (None, None)


def test_only_so_many_clients_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugrl_gym.server.page.board._MOST_CLIENTS", 2)
    with running(FakeAgent()) as run, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(raw_client(run.url)).infer(0)
        stack.enter_context(raw_client(run.url))  # which has asked for nothing
        news = status(run)
    assert [row["number"] for row in news["clients"]] == [1, 2]
    assert news["other_clients"] == 1


def test_state_tells_who_is_waited_for() -> None:
    agent = FakeAgent(learn_after=1)
    agent.may_learn.clear()
    with running(agent) as run:
        with raw_client(run.url) as client:
            client.exchange(0)
            assert agent.learning.wait(DEADLINE)
            assert status(run)["run"]["state"] == "learning"
            agent.may_learn.set()
        agent.wait_for_departures(1)
        assert status(run)["run"]["state"] == "alone"


@pytest.mark.parametrize("end", ["stopped", "finished", "failed"])
def test_held_question_is_answered_as_soon_as_the_run_ends(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugrl_gym.server.page.routes._HELD_SECONDS", 2 * DEADLINE)
    agent = FakeAgent(stop_after=1 if end == "finished" else None)
    heard: list[dict[str, Any]] = []
    with running(agent) as run, raw_client(run.url) as client:
        client.infer(0)
        asked = threading.Event()
        monkeypatch.setattr(run.server.board, "expect_more", asked.set)
        asking = threading.Thread(target=lambda: heard.append(status(run, "/status.json?wait")))
        asking.start()
        assert asked.wait(DEADLINE)
        agent.fail_in = "feedback" if end == "failed" else ""
        if end == "stopped":
            run.server.request_shutdown()
        else:
            client.feed_back(0)
        asking.join(DEADLINE)
        run.ended()
    assert [news["run"]["state"] for news in heard] == [end]


def test_server_that_ends_waits_a_moment_for_an_open_page_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plugrl_gym.server.page.board._FAREWELL_SECONDS", DEADLINE)
    agent = FakeAgent(stop_after=1)
    with running(agent) as run, raw_client(run.url) as client:
        status(run, "/status.json?wait")
        client.exchange(0)
        assert client.closed()[1] == REASON_STOP
        assert status(run, "/status.json?wait")["run"]["state"] == "finished"
        assert run.ended() is True


def test_server_that_ends_does_not_wait_for_those_who_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plugrl_gym.server.page.board._FAREWELL_SECONDS", 3 * DEADLINE)
    with running(FakeAgent()) as run:
        status(run)
        run.server.request_shutdown()
        assert run.ended() is False


def test_question_for_news_is_held_while_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugrl_gym.server.page.routes._HELD_SECONDS", 0.05)
    with running(FakeAgent()) as run:
        first = status(run)["run"]["seconds"]
        assert status(run, "/status.json?wait")["run"]["seconds"] >= first + 0.05


def test_camera_shows_what_an_env_sees() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 6, 8, 3), np.uint8)
    with running(FakeAgent()) as run, raw_client(run.url) as client:
        assert status(run)["camera"] is None
        assert visit(run, "/camera.png").status == 404
        client.infer(5, 3, observation=Observation(images={"cam": images}, text=["", ""]))
        sight = status(run)["camera"]
        answer = visit(run, f"/camera.png?{sight['number']}")
    assert sight == {"number": 1, "client": 1, "env": 5, "key": "cam", "shape": [6, 8, 3]}
    assert answer.headers["Content-Type"] == "image/png"
    with Image.open(io.BytesIO(answer.body)) as read:
        assert (np.asarray(read) == images[0]).all()
