"""The same behaviour where msgpack's C extension is missing (MSGPACK_PUREPYTHON=1)."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.golden import ROOT

CODE = """
import msgpack, sys
assert msgpack.Packer.__module__ == "msgpack.fallback"
import pytest
files = ["arrays", "codec", "golden", "spec", "state", "server", "sending"]
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider",
                      *(f"tests/protocol/test_{name}.py" for name in files)]))
"""


def test_codec_behaves_alike_without_c_extension() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        env={**os.environ, "MSGPACK_PUREPYTHON": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
