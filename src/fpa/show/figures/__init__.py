"""The figures of results, a function each: they take results and return a matplotlib `Figure`.

`all_figures` makes all that results allow, `save_figures` writes them as PNG and PDF.
"""

from fpa.show.figures.images import fpa_examples, sign_fluctuation, sign_panel, truncated
from fpa.show.figures.ranks import rank_slopes
from fpa.show.figures.results import (
    all_figures,
    definition_of_area,
    fidelity_dots,
    lif_over_scores,
    overview,
    perturbation_curves,
    save_figures,
    score_agreement,
)
from fpa.show.figures.style import inline_svg, save
from fpa.show.figures.training import histories, training_history
from fpa.statistics.shares import share_carrying

__all__ = [
    "all_figures", "definition_of_area", "fidelity_dots", "fpa_examples", "histories", "inline_svg",
    "lif_over_scores", "overview", "perturbation_curves", "rank_slopes", "save", "save_figures",
    "score_agreement", "share_carrying", "sign_fluctuation", "sign_panel", "training_history", "truncated",
]  # fmt: skip
