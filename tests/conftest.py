"""Fixtures that tests of several rooms share."""

import fcntl
import os
import pickle
from functools import cache
from io import BytesIO, StringIO

import numpy as np
import pytest
from matplotlib.figure import Figure

from browsers import browser
from fpa.show import figures

__all__ = ["browser"]

savefig = Figure.savefig


@cache
def blank_page(kind):
    """The bytes of an empty figure in a format."""
    page = BytesIO()
    savefig(Figure(figsize=(1, 1)), page, format=kind)
    return page.getvalue()


def save_blank(figure, file, *, format, **how):  # noqa: A002 (as Matplotlib calls it)
    page = blank_page(format)
    file.write(page.decode() if isinstance(file, StringIO) else page)


@pytest.fixture(autouse=True)
def _blank_figures(request, monkeypatch):
    """Figures are made, but come out as blank pages: to draw them would take most of the time.

    Tests that look at them, or at text inside them, have the mark `drawn`. What a fixture of a module or of
    the session makes is drawn in any case.
    """
    if request.node.get_closest_marker("drawn") is None:
        monkeypatch.setattr(Figure, "draw_without_rendering", lambda figure: None)
        monkeypatch.setattr(Figure, "savefig", save_blank)
        curves = CurvesOnce()
        monkeypatch.setattr("fpa.show.figures.results.perturbation_curves", curves)
        monkeypatch.setattr("fpa.show.report.page.perturbation_curves", curves)


class CurvesOnce:
    """The curves of results, the largest figure of all, are made for their files and serve the report too."""

    def __init__(self):
        self.made = {}

    def __call__(self, results, signed=True):
        if signed not in self.made or self.made[signed][0] is not results:
            self.made[signed] = results, figures.perturbation_curves(results, signed)
        return self.made[signed][1]


@pytest.fixture(scope="session", autouse=True)
def _shapes_drawn_once():
    """The embedded data are the same every time: each process draws them once."""
    from fpa.data import shapes

    drawn = cache(shapes.draw_shapes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "draw_shapes", lambda count, seed: tuple(map(np.copy, drawn(count, seed))))
        yield


@pytest.fixture(scope="session")
def tiny_study(tmp_path_factory):
    """A finished study of the recipe `tiny`, and its results: made by the first process that asks.

    All processes share its folder: tests read it, and run or change copies.
    """
    from fpa.running import run_study
    from fpa.study.recipe import load_recipe

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # the folder of all processes
    folder = shared / "tiny-study"
    results = shared / "tiny-study.pickle"
    with open(shared / "tiny-study.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not results.exists():
            results.write_bytes(
                pickle.dumps(run_study(load_recipe("tiny"), folder, device="cpu", progress=False))
            )
    return folder, pickle.loads(results.read_bytes())
