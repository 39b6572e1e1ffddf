"""Does an explanation beat what explains nothing: maps that know no model, and its own map, blurred?"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fpa.statistics.intervals import Areas, holm, paired_test

ALPHA = 0.05


class Rival(NamedTuple):
    """The hardest to beat of several maps, for one explanation."""

    name: str
    """The one with the largest p."""
    p: float
    """One-sided, of a paired t-test over images that A is larger, Holm-corrected over explanations."""

    @property
    def beaten(self) -> bool:
        """Whether the explanation has a larger A than all of them."""
        return self.p < ALPHA


class Beats(NamedTuple):
    """By explanation, the hardest rival of each kind."""

    model_free: dict[str, Rival]
    twin: dict[str, Rival]
    """Only explanations that have a blurred twin."""


def beats(
    fidelities: Mapping[str, Areas],
    explanations: Collection[str],
    model_free: Sequence[str],
    twins: Mapping[str, Sequence[str]],
) -> Beats:
    """Which explanations have a larger A than every model-free map, and which than their blurred twins?

    To beat *every* map of several is shown by the largest of the p-values, which needs no correction for
    their number; Holm's correction is for the number of explanations that are asked about. Both are empty
    where fewer than two images are used by all.

    >>> from fpa import Fidelity
    >>> noise = np.random.default_rng(0).normal(0, 0.1, 50)
    >>> def with_area(level):
    ...     mif, lif = (np.stack([np.ones(50), end + noise], 1) for end in (0.1, level))
    ...     return Fidelity.from_curves(mif, lif, [0, 1])
    >>> areas = {"vg_abs": with_area(0.5), "centre": with_area(0.7), "random": with_area(0.1)}
    >>> beats(areas, ["vg_abs"], ["random", "centre"], {}).model_free["vg_abs"]
    Rival(name='centre', p=1.0)
    """

    def hardest(rivals: Mapping[str, Sequence[str]]) -> dict[str, Rival]:
        found = {
            name: max((paired_test(fidelities[name], fidelities[rival]).p_larger, rival) for rival in own)
            for name, own in rivals.items()
        }
        corrected = holm([p for p, _ in found.values()]).tolist()
        return {name: Rival(rival, p) for (name, (_, rival)), p in zip(found.items(), corrected, strict=True)}

    if np.logical_and.reduce([each.kept for each in fidelities.values()]).sum() < 2:
        return Beats({}, {})
    known = [name for name in explanations if name in fidelities]  # others were never finite
    free = [name for name in model_free if name in fidelities]
    own = {name: [twin for twin in twins.get(name, ()) if twin in fidelities] for name in known}
    beaten = hardest(dict.fromkeys(known, free) if free else {})
    return Beats(beaten, hardest({name: rivals for name, rivals in own.items() if rivals}))
