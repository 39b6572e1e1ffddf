"""The figures of results, a function each: they take results and return a matplotlib `Figure`.

`all_figures` makes all that results allow, `save_figures` writes them as PNG and PDF.
"""

from fpa.show.figures.images import fpa_examples, share_carrying, sign_fluctuation, sign_panel, truncated
from fpa.show.figures.results import (
    all_figures,
    definition_of_area,
    fidelity_dots,
    lif_over_scores,
    overview,
    perturbation_curves,
    rank_slopes,
    save_figures,
    score_agreement,
)
from fpa.show.figures.style import save

__all__ = [
    "all_figures", "definition_of_area", "fidelity_dots", "fpa_examples", "lif_over_scores", "overview",
    "perturbation_curves", "rank_slopes", "save", "save_figures", "score_agreement", "share_carrying",
    "sign_fluctuation", "sign_panel", "truncated",
]  # fmt: skip
