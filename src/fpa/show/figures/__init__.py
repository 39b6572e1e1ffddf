"""The figures of a study, a function each: they take results and return a matplotlib `Figure`."""

from fpa.show.figures.images import (
    fpa_examples,
    share_carrying,
    sign_fluctuation,
    sign_panel,
    truncated,
)
from fpa.show.figures.results import (
    definition_of_area,
    fidelity_dots,
    lif_over_scores,
    overview,
    perturbation_curves,
    rank_slopes,
    save_study_figures,
    study_figures,
)
from fpa.show.figures.style import save

__all__ = [
    "definition_of_area",
    "fidelity_dots",
    "fpa_examples",
    "lif_over_scores",
    "overview",
    "perturbation_curves",
    "rank_slopes",
    "save",
    "save_study_figures",
    "share_carrying",
    "sign_fluctuation",
    "sign_panel",
    "study_figures",
    "truncated",
]
