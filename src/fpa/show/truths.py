"""How often each evaluation prefers the worse of two maps, where truth is known: a table and sentences."""

import math
from collections.abc import Iterator
from typing import Any

from fpa.evaluation.result import Result, Results
from fpa.evaluation.truths import SIDES, TruthErrors, error_change, truth_errors
from fpa.notes import Kind, Note, Severity
from fpa.show import protocols, summary, words
from fpa.show.cells import Column, Sheet
from fpa.show.names import estimator_names, model_name
from fpa.show.words.truths import points

HEADING = "How often the evaluation prefers the worse of two maps (a coin: 50 %)"

BY_CUES = "truth_cues"
"""The truth without the background, where it was computed: what holds by one of the two alone is open."""

_SIDES = {"A": "A", "MIF": "MIF alone", "LIF": "LIF alone"}


def found_errors(results: Results) -> dict[str, TruthErrors]:
    """By model; empty where no truth is known of one of them."""
    found = {name: truth_errors(model) for name, model in results.models.items()}
    known = {name: each for name, each in found.items() if each is not None}
    return known if len(known) == len(found) else {}


def sheets(results: Results) -> list[Sheet]:
    """The table: a row for each protocol and side, a column for each model; none where no truth is known."""
    found = found_errors(results)
    if not found:
        return []
    counts = {name: _counts(each) for name, each in found.items()}
    # What happened to no model needs no row.
    shown = [row for row in next(iter(counts.values())) if any(each[row] for each in counts.values())]
    columns = []
    for name, each in found.items():
        facts = dict[str, str]()
        for protocol, sides in each.errors.items():
            facts |= {f"{protocol}, {_SIDES[side]}": points(*sides[side]) for side in SIDES}
            if by_cues := truth_errors(results.models[name], BY_CUES):
                facts[f"{protocol}, A, truth of cues alone"] = points(*by_cues.errors[protocol]["A"])
            opposite = results.models[name].by_protocol[protocol].reliability.counts("signed-unsigned")
            if opposite.pairs:
                facts[f"{protocol}, {protocols.COUNTED}"] = summary.of_pairs(opposite)
        facts |= {row: f"{counts[name][row]:,}" for row in shown}
        columns.append(Column(model_name(name), {}, facts, name))
    return [Sheet(HEADING, columns, "removed, judged by")]


def _counts(found: TruthErrors) -> dict[str, int]:
    return {
        "pairs counted": found.pairs,
        "pairs too close in truth": found.close,
        "pairs without truth": found.missing,
        "images classified wrongly": found.wrong,
        "images with too few cues": found.few_cues,
        "images without any effect": found.ignored,
    }


def outcome(results: Results) -> list[str]:
    """How often each protocol prefers the worse map, and what FPA changes, in sentences, whatever it is."""
    return words.sentences(_outcome(results), _reader(results))


def doubts(results: Results) -> list[str]:
    """Models whose truth says little, and maps that have none, in sentences."""
    return words.sentences(_doubts(results), _reader(results))


def sentences(results: Results) -> list[str]:
    """All of that; nothing where no truth is known."""
    return [*outcome(results), *doubts(results)]


def _reader(results: Results) -> words.Reader:
    models = {name: model_name(name) for name in results.models}
    if "none" in models:
        models["none"] = "no augmentation"  # "None" would read like nobody
    return words.Reader(estimator_names(results) | models)


def explained(results: Results) -> list[str]:
    """What an error is, in a sentence; nothing where no truth is known."""
    if not found_errors(results):
        return []
    twice = any(BY_CUES in model.evaluation.values for model in results.models.values())
    cues = "Truth of cues alone: without the background; what holds by one of the two only is open. "
    return [
        "The truth of a map is the cosine of its sums over cues and background with their true effects on "
        "the model. A pair of maps counts if their truths differ by more than the noise of the image; ± is "
        "half of the 95 % interval over images and does not cover training again. Images that the model gets "
        f"wrong count. {cues if twice else ''}Each model has maps and a truth of its own, so one may have "
        "had the easier pairs."
    ]


def _outcome(results: Results) -> Iterator[Note]:
    found = found_errors(results)
    if not found:
        return
    first = next(iter(found.values()))
    named = {
        name: {"features": each.features, "masking": str(each.masking["name"])}
        for name, each in results.first.by_protocol.items()
    }
    for protocol in first.errors:
        errors = {name: [*each.errors[protocol]["A"]] for name, each in found.items()}
        yield Note(Kind.PREFERS_WORSE, Severity.INFO, {**named[protocol], "errors": errors})
    if compared := summary.compared(results):
        before, after = compared
        for protocol in first.errors:
            change = error_change(found[before], found[after], protocol)
            values = {"reduction": change.value, "interval": change.interval}
            if not math.isnan(change.value):
                models = {"before": before, "after": after}
                yield Note(Kind.ERROR_CHANGES, Severity.INFO, {**named[protocol], **models, **values})


def _doubts(results: Results) -> Iterator[Note]:
    found = found_errors(results)
    if found and (weak := results.not_above_chance):
        yield Note(Kind.TRUTH_AT_CHANCE, Severity.WARNING, {"models": weak})
    for name, each in found.items():
        of = {"model": name} if len(found) > 1 else {}
        yield from (Note(note.kind, note.severity, {**note.values, **of}) for note in each.notes)


def columns(model: Result) -> dict[str, Any]:
    """What table.csv has of a model: its errors by A, and the pairs they are of."""
    found = truth_errors(model)
    if found is None:
        return {}
    row: dict[str, Any] = {}
    for protocol, sides in found.errors.items():
        row[f"error_by_{protocol}"] = sides["A"].value
        row[f"error_interval_by_{protocol}"] = sides["A"].interval
        row[f"error_mif_by_{protocol}"] = sides["MIF"].value
        row[f"error_lif_by_{protocol}"] = sides["LIF"].value
    return row | {"pairs_judged": found.pairs, "pairs_too_close": found.close, "pairs_missing": found.missing}
