"""The sentences that say whether explanations beat model-free maps and their blurred twins."""

from collections.abc import Mapping, Sequence

from fpa.evaluation.result import Results
from fpa.show.names import estimator_names, model_name
from fpa.statistics.baselines import ALPHA, Beats, Rival

_WEAK = "Random is a weak rival: the estimators baselines and twins add stronger ones."


def sentences(beats: Beats, model_free: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Which explanations beat every model-free map and which their own twin, and what that means."""
    return [*outcomes(beats, model_free, names), *rules(beats, model_free)]


def outcomes(beats: Beats, model_free: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Which explanations beat every model-free map and which their own twin, by the names people see.

    >>> found = Beats({"ig_sum": Rival("centre", 0.001), "vg_abs": Rival("centre", 0.4)}, {})
    >>> outcomes(found, ["random", "centre"], {})
    ['1 of 2 estimators beat every model-free map (random, centre); not vg_abs (centre: p = 0.4).']
    """
    listed = ", ".join(names.get(name, name) for name in model_free)
    against = {name: f"{names.get(each.name, each.name)}: " for name, each in beats.model_free.items()}
    lines = []
    if beats.model_free:
        lines.append(_sentence(beats.model_free, f"every model-free map ({listed})", names, against))
    if beats.twin:
        lines.append(_sentence(beats.twin, "the blurred twin of their own map", names, {}))
    return lines


def rules(beats: Beats, model_free: Sequence[str]) -> list[str]:
    """What it means to beat others, where any are compared."""
    if not any(beats):
        return []
    tested = (
        f"An estimator beats others if its A is larger, with p below {ALPHA}: the largest p of one-sided "
        "paired tests over images, Holm-corrected over estimators."
    )
    return [tested, _WEAK] if len(model_free) < 2 and not beats.twin else [tested]


def _sentence(
    found: Mapping[str, Rival], what: str, names: Mapping[str, str], against: Mapping[str, str]
) -> str:
    lost = {name: rival for name, rival in found.items() if not rival.beaten}
    shown = (f"{names.get(key, key)} ({against.get(key, '')}p = {each.p:.2g})" for key, each in lost.items())
    if not lost:
        return f"All {len(found)} estimators beat {what}."
    start = f"{len(found) - len(lost) or 'None'} of {len(found)} estimators beat {what}"
    return f"{start}; not {', '.join(shown)}."


def best_model_free(results: Results) -> list[str]:
    """Which of the maps that know no model has the highest A, for every model; nothing where they are few."""
    names = estimator_names(results)
    found = []
    for key, model in results.models.items():
        free = [name for name in model.description.plan.model_free if name in model.fidelity]
        if len(free) > 1:
            best = max(free, key=lambda name: model.fidelity[name].area)
            of = f"{model_name(key)}, " if len(results.models) > 1 else ""
            found.append(f"{names[best]} ({of}A = {model.fidelity[best].area:.1f})")
    return [f"The best model-free map: {', '.join(found)}."] if found else []


def brief(results: Results) -> list[str]:
    """How many explanations beat model-free maps and their own twins, in a line each."""
    names = estimator_names(results)
    lines = best_model_free(results)
    free = ", ".join(names.get(name, name) for name in results.first.description.plan.model_free)
    kinds = {"model_free": f"every model-free map ({free})", "twin": "their own blurred twin"}
    for kind, what in kinds.items():
        counts: list[str] = []
        for key, model in results.models.items():
            compared = getattr(model.beats, kind).values()
            if compared:
                whose = f"{model_name(key)} " if len(results.models) > 1 else ""
                counts.append(f"{whose}{sum(rival.beaten for rival in compared)} of {len(compared)}")
        if counts:
            lines.append(f"Estimators that beat {what}: {', '.join(counts)}.")
    return lines


def beaten(results: Results) -> list[str]:
    """The sentences of every model of the results, those that are about all of them once."""
    names = estimator_names(results)
    lines = best_model_free(results)
    shared: dict[str, None] = {}
    for key, model in results.models.items():
        free = model.description.plan.model_free
        whose = f"{model_name(key)}: " if len(results.models) > 1 else ""
        lines += [whose + line for line in outcomes(model.beats, free, names)]
        shared |= dict.fromkeys(rules(model.beats, free))
    return [*lines, *shared]
