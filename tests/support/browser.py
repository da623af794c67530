"""A real browser without a window, told what to do over Chromium's DevTools protocol.

``python -m tests.support.browser`` runs the tests that need one, by themselves, for they and the
other tests would take the processor from each other.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

NONE_HERE = (
    "neither Chromium nor Chrome is here; PLUGRL_BROWSER names another browser of that kind, and "
    ".ci/install-chromium installs one on Debian and Ubuntu"
)
DEADLINE = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
)
_FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--no-default-browser-check", "--remote-debugging-port=0"),
)


def find_browser() -> str | None:
    """Chromium or Chrome on this machine; ``PLUGRL_BROWSER`` names another. None where none is."""
    named = os.environ.get("PLUGRL_BROWSER")
    if named:
        return named
    found = (shutil.which(name) for name in _NAMES)
    return next((path for path in (*found, *_PLACES) if path and Path(path).exists()), None)


class Tab:
    """One page of a browser.

    Attributes:
        complaints: What went wrong in it: uncaught errors, broken content security policy, files
            that could not be loaded.
        requested: The address of everything that it asked for.
    """

    def __init__(self, socket: Any) -> None:
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        deadline = time.monotonic() + DEADLINE
        while True:
            answer = json.loads(self._socket.recv(timeout=max(deadline - time.monotonic(), 0.0)))
            if answer.get("id") != number:
                self._note(answer.get("method"), answer.get("params", {}))
            elif "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def _note(self, event: str | None, what: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", "")
            self.complaints.append(f"{details['text']} {thrown}")
        elif event == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.complaints.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.requested.append(what["request"]["url"])

    def start_over(self) -> None:
        """Forget what was: cookies, complaints, requests."""
        self.open("about:blank")
        self.call("Network.clearBrowserCookies")
        self.complaints.clear()
        self.requested.clear()

    def open(self, url: str) -> None:
        """Go to ``url``, as if it had been typed."""
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int, phone: bool = False, scale: float = 1.0) -> None:
        """Take on the size of a window, in CSS pixels, or of a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )

    def prefer(self, scheme: str) -> None:
        """Prefer ``dark`` or ``light``."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float = DEADLINE) -> Any:
        """Wait until an expression is true, over loads of pages; returns its value."""
        deadline = time.monotonic() + seconds
        while True:
            # While one document makes room for the next there may be nothing to ask.
            with contextlib.suppress(AssertionError):
                value = self.evaluate(f"(() => {{ try {{ return {expression} }} catch {{}} }})()")
                if value:
                    return value
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {expression}\n{self.text()}")
            with contextlib.suppress(TimeoutError):
                event = json.loads(self._socket.recv(timeout=0.1))
                self._note(event.get("method"), event.get("params", {}))

    def text(self, selector: str = "body") -> str:
        """The text that is to be read there."""
        found = f"document.querySelector({json.dumps(selector)})"
        return str(self.evaluate(f"{found} === null ? '' : {found}.innerText"))

    def type_into(self, selector: str, text: str) -> None:
        """Type ``text`` into a field, and Enter."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key="Enter",
                code="Enter",
                text="\r" if kind == "keyDown" else "",
                windowsVirtualKeyCode=13,
            )

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Write what it looks like, as PNG; ``whole`` is more than the window shows."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))


@contextlib.contextmanager
def browser(program: str, profile: Path) -> Iterator[Tab]:
    """A browser with an empty profile in the directory ``profile``; closed at the end."""
    flags = [*_FLAGS, f"--user-data-dir={profile}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # root has none
    log = profile.with_name(f"{profile.name}.log")
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [program, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=stderr
        ) as process,
    ):
        try:
            port, path = _await_port(profile / "DevToolsActivePort", process, log)
            url = f"ws://127.0.0.1:{port}{path}"
            # Events may wait as long as a test does something else.
            with connect(url, max_size=None, max_queue=None, ping_interval=None) as socket:
                yield Tab(socket)
        finally:
            process.kill()


def _await_port(file: Path, process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    """Where it listens, from the file that it writes once it does."""
    deadline = time.monotonic() + DEADLINE
    while True:
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        if len(lines) == 2:
            return lines[0], lines[1]
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the browser did not start: {log.read_text('utf-8', 'replace')}")
        time.sleep(0.05)


def main(arguments: list[str]) -> int:
    """Run the tests that need a browser; without one say so, which fails if it is required."""
    if find_browser() is None:
        print(f"NOT TESTED: the server's page in a browser: {NONE_HERE}", file=sys.stderr)
        return int("--required" in arguments)
    return int(pytest.main(["-m", "browser", "tests/server/page"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
