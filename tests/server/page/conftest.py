"""One browser for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import NONE_HERE, Tab, browser, find_browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A tab of a browser that has never been used."""
    program = find_browser()
    assert program is not None, NONE_HERE
    with browser(program, tmp_path_factory.mktemp("browser") / "profile") as tab:
        yield tab


@pytest.fixture
def tab(chromium: Tab) -> Iterator[Tab]:
    """The tab, empty, in a window of 1200 x 900."""
    chromium.start_over()
    chromium.resize(1200, 900)
    yield chromium
    chromium.open("about:blank")
