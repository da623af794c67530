"""An operator stops a server process (SPEC 8.14)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plugrl_gym.protocol.close import REASON_SHUTDOWN
from tests.support.raw_client import DEADLINE, raw_client

PROGRAM = """
from plugrl_gym.server import serve
from tests.support.serving import FakeAgent

class Saving(FakeAgent):
    def close(self):
        print("saved", flush=True)

finished = serve(Saving(), port=0, on_listening=lambda server: print(server.url, flush=True))
print("finished" if finished else "stopped", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM is delivered to a child there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_shuts_the_server_down_and_lets_the_agent_save(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with raw_client(url) as client:
            client.infer(0)
            process.send_signal(number)
            assert client.closed() == (1001, REASON_SHUTDOWN)
        output, errors = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.wait(DEADLINE)
    assert output.split() == ["saved", "stopped"]
    assert errors == ""
    assert process.returncode == 0
