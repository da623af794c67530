"""Where a command says that a run can be watched, it can."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

from tests.support.commands import DEADLINE, serve


def fetch(url: str, **headers: str) -> bytes:
    """What lies at ``url``."""
    with urlopen(Request(url, headers=headers), timeout=DEADLINE) as answer:
        body: bytes = answer.read()
    return body


def test_serve_tells_where_its_page_is(tmp_path: Path) -> None:
    with serve("--algo", "random", "--run-dir", tmp_path / "by-chance") as server:
        url = server.line(r"Watch it in a browser:  (http://127\.0\.0\.1:\d+/)$")[1]
        assert b"<title>plugrl-gym</title>" in fetch(url, Accept="text/html")
        news = json.loads(fetch(f"{url}status.json"))
    assert (news["run"]["title"], news["run"]["algorithm"]) == ("by-chance", "random")
