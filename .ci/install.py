"""``python .ci/install.py ARGUMENTS``: ``pip install``, which tells every few seconds what it does.

All that pip says is shown where it fails. On a terminal one line is drawn over.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time

_SECONDS = 4.0


class Told:
    """The last line that pip wrote, shown now and then until the block ends."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._live = sys.stderr.isatty()
        self._since = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(0.5 if self._live else _SECONDS):
            now = self.lines[-1] if self.lines else "starting"
            text = f"installing, {time.monotonic() - self._since:.0f} s: {now}"
            if self._live:
                width = shutil.get_terminal_size().columns - 1
                print(f"\r{text[:width]:{width}}", end="", file=sys.stderr, flush=True)
            else:
                print(text[:100], file=sys.stderr, flush=True)

    def __enter__(self) -> Told:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        if self._live:
            print(f"\r{'':{shutil.get_terminal_size().columns - 1}}\r", end="", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Run pip; returns its exit code."""
    plain = ["--progress-bar", "off", "--disable-pip-version-check", "--no-color"]
    command = [sys.executable, "-u", "-m", "pip", "install", *plain, *arguments]
    pip = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    with pip, Told() as told:
        assert pip.stdout is not None
        for line in pip.stdout:
            told.lines.append(line.strip())
    if pip.returncode:
        print("\n".join(told.lines), file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
