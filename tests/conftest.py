"""Fixtures that tests of several rooms share."""

from functools import cache
from io import BytesIO, StringIO

import pytest
from matplotlib.figure import Figure

from browsers import browser

__all__ = ["browser"]

UNSEEN = ("cli", "evaluation", "training")
"""Rooms whose tests run whole commands and look at no figure: to draw them would take most of the time."""

drawn = Figure.savefig


@cache
def blank_page(kind):
    """The bytes of an empty figure in a format."""
    page = BytesIO()
    drawn(Figure(figsize=(1, 1)), page, format=kind)
    return page.getvalue()


def save_blank(figure, file, *, format, **how):  # noqa: A002 (as Matplotlib calls it)
    page = blank_page(format)
    file.write(page.decode() if isinstance(file, StringIO) else page)


@pytest.fixture(autouse=True)
def _blank_figures(request, monkeypatch):
    """Figures are made, but come out as blank pages; tests of `show` and of `study` draw them."""
    if request.path.parent.name in UNSEEN:
        monkeypatch.setattr(Figure, "draw_without_rendering", lambda figure: None)
        monkeypatch.setattr(Figure, "savefig", save_blank)
