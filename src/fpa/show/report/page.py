"""The HTML report: one self-contained file that loads nothing and opens with a double click."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fpa.evaluation.leading import leading
from fpa.evaluation.rankings import best, rank_correlations, worse_than_best
from fpa.evaluation.result import Result, Results
from fpa.notes import Kind, Note
from fpa.progress import duration
from fpa.show import answers, protocols, rivals, scope, summary, truths, words
from fpa.show.families import estimator_rows, symbols
from fpa.show.figures import histories, inline_svg, perturbation_curves, training_history
from fpa.show.names import estimator_looks, estimator_names, model_looks, model_name
from fpa.show.rendering import rendered, write_page
from fpa.show.report.explorer import explorer_data, numbers
from fpa.show.report.leaders import grouped, leaders
from fpa.show.report.scenes import scenes
from fpa.show.report.verdict import meaning, verdict
from fpa.show.tables import column_of
from fpa.statistics.contradictions import KINDS
from fpa.statistics.orders import ALPHA
from fpa.study.folder import SHOWN

_MADE_WITH = ("versions", "device", "precision", "threads", "seeds")


def write_report(results: Results, path: str | Path, command: str | None = None) -> Path:
    """Write the report to `path`, an HTML file, in one piece; the same results give the same bytes.

    `command` repeats the work when typed in a shell; without it the report says how to use the recipe of a
    study, or the settings of an evaluation.
    """
    import yaml
    from jinja2.utils import htmlsafe_json_dumps
    from markupsafe import Markup

    models = results.models
    explorer = explorer_data(results)
    first = leaders(results)
    scores = {key: [column_of(results, name, key).cells for name in models] for key in results.score_titles}
    # The template escapes all but Markup, which is HTML already: names in it are escaped where it is made.
    page = rendered(
        "report.html.jinja",
        results=results,
        names={name: Markup(text) for name, text in estimator_names(results, style="html").items()},
        plain_names=estimator_names(results),
        answer=answers.parts(results),
        leaders=first,
        groups_of_leaders=grouped(first),
        by_protocol_in_words=answers.by_protocol(leading(results.first)),
        left_out=scope.left_out(results),
        meaning=meaning(results),
        verdict=verdict(results),
        shown_first=_shown_first(results, explorer),
        published=any(map(results.published.get, models)),
        scores=scores,
        leading={key: [best(model, key) for model in models.values()] for key in scores},
        surer={key: _surer(results, key) for key in scores},
        agreement={name: _agreement(model) for name, model in models.items()} if len(scores) > 1 else {},
        areas={name: column_of(results, name).cells for name in models},
        scope={name: scope.of_model(results, name, scope.BY_PAIR) for name in models},
        matrices=_matrices(results),
        marks=scope.MARKS,
        explained={
            name: row._replace(formula=Markup(row.formula)) for name, row in estimator_rows(results).items()
        },
        symbols={Markup(symbol): text for symbol, text in symbols(results).items()},
        disagreements=_disagreements(results),
        notes=_notes(results),
        rivals=rivals.beaten(results),
        by_protocol=protocols.sheets(results),
        consistent=protocols.sentences(results),
        right=truths.outcome(results),
        errors=truths.sheets(results),
        error_notes=[*truths.doubts(results), *truths.explained(results)],
        scenes=scenes(results),
        model_looks=model_looks(models),
        estimator_looks=estimator_looks(results),
        curves={title: Markup(drawing) for title, drawing in _curves(results).items()},
        history=Markup(_history(results)),
        explorer=explorer,
        facts=list(_facts(_made_with(results))),
        timings=_timings(results),
        command=command or results.about.get("command"),
        recipe=results.recipe and yaml.safe_dump(dict(results.recipe), sort_keys=False),
        # Read by a script in the page: a class called </script> must not end it, and JSON knows no NaN.
        data=htmlsafe_json_dumps(_data(results, explorer), allow_nan=False, separators=(",", ":")),
    )
    return write_page(path, page)


def _data(results: Results, explorer: dict[str, Any] | None) -> dict[str, Any]:
    """What the script of the page reads."""
    return {
        "fractions": numbers(results.first.evaluation.fractions),
        "unit": summary.removed_unit(results),
        "output": summary.output_name(results),
        "explorer": explorer,
    }


def _shown_first(results: Results, explorer: dict[str, Any] | None) -> str:
    """The explanation that the explorer begins with: the best of the model that it begins with."""
    if explorer is None:
        return ""
    there = [results.estimators[place] for place in explorer["estimators"]]
    model = [*results.models.values()][explorer["models"][-1]["model"]]
    return next((name for name in leading(model).names if name in there), there[0])


def _timings(results: Results) -> list[tuple[str, str]]:
    """How long each stage took, without those that show results: they take another time in every report."""
    timings = _facts(results.about.get("timings", {}))
    return [(stage, _duration(took)) for stage, took in timings if stage not in SHOWN]


def _matrices(results: Results) -> dict[str, list[tuple[Any, list[str]]]]:
    """For every model that has pairs the matrix of its paired tests."""
    from markupsafe import Markup

    return {
        name: [(Markup(label), cells) for label, cells in scope.matrix(results, name, "html")]
        for name, model in results.models.items()
        if model.reliability.pairs
    }


def _made_with(results: Results) -> dict[str, Any]:
    """What the numbers depend on besides the model and the images: versions, device, arithmetic, the plan."""
    plan = results.first.description.plan
    first = results.first.description.made_with or {}
    facts = {key: about[key] for about in (first, results.about) for key in _MADE_WITH if key in about}
    arithmetic = {model_name(name): model.description.arithmetic for name, model in results.models.items()}
    # Most models of a study ran alike: then it stands there once.
    differ = len(set(map(str, arithmetic.values()))) > 1
    facts["arithmetic"] = arithmetic if differ else results.first.description.arithmetic
    if results.recipe is None:  # a recipe says these itself
        settings: dict[str, Any] = {
            "masking": plan.masking,
            "features": plan.features,
            "outputs": plan.outputs,
            "seed": plan.seed,
            "points": len(results.first.evaluation.fractions),
        }
        for raw in (estimator.raw for estimator in plan.estimators.values()):
            if raw is not None and len(raw) > 1:
                settings[raw["name"]] = {key: value for key, value in raw.items() if key != "name"}
        facts["plan"] = {key: summary.in_words(value) for key, value in settings.items()}
    return facts


def _surer(results: Results, score: str) -> list[str]:
    """How surely the best explanation of every model is better than the others by a score."""
    names = estimator_names(results)
    lines = []
    for name, model in results.models.items():
        if worse := worse_than_best(model, score):
            first = names[best(model, score)]
            surely = sum(p < ALPHA for p in worse.values())
            lines.append(
                f"{model_name(name)}: {first} is surely better than {surely} of {len(worse)} others."
            )
    return [*lines, "(Paired tests over images, Holm-corrected over all pairs, level 0.05.)"] if lines else []


def _agreement(model: Result) -> tuple[list[str], list[list[float | None]]]:
    names, matrix = rank_correlations(model)
    return names, [numbers(row) for row in matrix]


def _curves(results: Results) -> dict[str, str]:
    """By group of estimators: their mean curves as SVG; all in one where they are of no kind."""
    groups = summary.groups(results)
    kinds = {"Signed": True, "Unsigned": False}
    shown: dict[str, bool | None] = {title: sign for title, sign in kinds.items() if title in groups}
    unit = summary.removed_unit(results)
    return {
        title: inline_svg(perturbation_curves(results, sign), f"Mean curves along which {unit} are removed")
        for title, sign in (shown or {"All": None}).items()
    }


def _history(results: Results) -> str:
    """Loss and accuracies of the trainings as SVG; empty where the models were trained elsewhere."""
    if not histories(results):
        return ""
    return inline_svg(training_history(results), "Loss and accuracy after every epoch of training")


def _disagreements(results: Results) -> dict[str, tuple[list[str], dict[tuple[str, str], dict[str, str]]]]:
    """By kind of pair: how many are in opposite order for each model, and which, and how surely."""
    found = {}
    for kind in KINDS:
        states: dict[tuple[str, str], dict[str, str]] = {}
        counts = list[str]()
        for name, model in results.models.items():
            pairs = [pair for pair in model.reliability.pairs if pair.kind == kind]
            for pair in pairs:
                state = ""
                if pair.opposite:
                    state = "surely opposite" if pair.contradiction else "opposite"
                states.setdefault((pair.first, pair.second), {})[name] = state
            counts.append(summary.of_pairs(model.reliability.counts(kind)))
        if states:
            found[kind] = counts, {pair: by for pair, by in states.items() if any(by.values())}
    return found


def _notes(results: Results) -> list[str]:
    """What a reader must know, and what was left out and why, each reason once."""
    shown = estimator_names(results)
    where: dict[str, list[str]] = {}
    for name, model in results.models.items():
        for reason, estimators in _reasons(model).items():
            some = f" ({', '.join(shown[each] for each in estimators)})" if estimators else ""
            where.setdefault(reason, []).append(f"{model_name(name)}{some}")
    return [
        *protocols.recommended(results),
        *summary.judges(results),
        *summary.warned(results),
        *scope.heads(results),
        *scope.unchecked(results),
        *summary.without_value(results, shown),
        *(f"{', '.join(places)}: {reason}." for reason, places in where.items()),
    ]


def _reasons(model: Result) -> dict[str, list[str]]:
    """What was left out of a model's scores, or is doubtful, with the estimators; none where it is all."""
    found: dict[str, list[str]] = {}
    for estimator, fidelity in model.fidelity.items():
        for note in fidelity.facts:
            found.setdefault(words.clause(note), []).append(estimator)
    found = {reason: names if len(names) < len(model.fidelity) else [] for reason, names in found.items()}
    notes = [*model.facts, *model.evaluation.left_out]
    if not model.evaluation.complete:
        notes.append(Note(Kind.INCOMPLETE))
    return found | {words.clause(note): [] for note in notes}


def _facts(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested mapping as lines: "arithmetic · gradients", "float32"; versions and seeds need no heading."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            plain = prefix in ("", "versions", "seeds", "plan")
            yield from _facts(value, str(key) if plain else f"{prefix} · {key}")
    else:
        yield prefix, values if isinstance(values, int | float) else summary.in_words(values)


def _duration(seconds: Any) -> str:
    """Seconds for people; anything else as it is.

    >>> _duration(0.42), _duration("later")
    ('0.4 s', 'later')
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return str(seconds)
    return duration(float(seconds))
