"""The files of the page, as they lie beside this module; none comes from elsewhere."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

__all__ = ["ASSETS", "FORM", "PAGE", "contents"]

#: The page itself, and the form that asks for the key.
PAGE: Final = "page.html"
FORM: Final = "form.html"

#: Path -> (file, media type) of what both load. None of them tells anything of a run.
ASSETS: Final = {
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/form.js": ("form.js", "text/javascript; charset=utf-8"),
    "/uplot.css": ("vendor/uPlot.min.css", "text/css; charset=utf-8"),
    "/uplot.js": ("vendor/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
}


@cache
def contents(name: str) -> bytes:
    """The contents of a file of the page."""
    return files(__package__).joinpath(name).read_bytes()
