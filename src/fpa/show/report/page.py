"""The HTML report: one self-contained file that loads nothing and opens with a double click."""

import math
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpa.files import writable_folder, write_text
from fpa.scores.fidelity import Fidelity
from fpa.show.names import augmentation_name, estimator_name
from fpa.show.report.explorer import explorer_data, numbers
from fpa.show.report.verdict import pairs_counted, verdict
from fpa.show.tables import percent
from fpa.statistics.contradictions import KINDS
from fpa.study.results import SHOWN, ModelResult, Study

if TYPE_CHECKING:
    from jinja2 import Environment


# Colour (c) and line style (d) classes of report.css, so that lines differ in more than colour; those of
# augmentations and the order of the estimators' colours are those of figures.py.
_AUGMENTATION_LINES = {"none": "c0 d1", "rectangle": "c1 d3", "fpa": "c2 d0"}


_OTHER_LINES = ("c5 d0", "c2 d1", "c3 d3", "c4 d2")


_ESTIMATOR_COLOURS = ("c5", "c2", "c3", "c4", "c6", "c1", "c0")


_HISTORY = {"loss": "Training loss", "accuracy": "Training accuracy", "test_accuracy": "Test accuracy"}


_MADE_WITH = ("versions", "device", "precision", "threads", "seeds", "settings")


def write_report(study: Study, path: str | Path, command: str | None = None) -> Path:
    """Write the report of a study to `path`, an HTML file, in one piece; the same study gives the same bytes.

    `command` repeats the study when typed in a shell; without it the report says how to use its recipe.
    """
    target = Path(path)
    writable_folder(target.parent)
    write_text(target, _page(study, command))
    return target


def page_environment() -> "Environment":
    """The templates of the package's pages, with the filters they use; text from data is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("fpa.show.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": _number,
        "augmentation": augmentation_name,
        "estimator": lambda name: Markup(estimator_name(name, "html")),
        "estimator_text": estimator_name,
    }
    return environment


def _page(study: Study, command: str | None) -> str:
    from jinja2.utils import htmlsafe_json_dumps
    from markupsafe import Markup

    environment = page_environment()
    files = resources.files("fpa.show.report")
    explorer = explorer_data(study)
    data = {
        "fractions": numbers(next(iter(study.models.values())).evaluation.fractions),
        "curves": [
            [_mean_curves(model, name) for name in study.estimators] for model in study.models.values()
        ],
        "history": [
            {
                column: numbers(values)
                for column, values in model.history.items()
                if column in {"epoch", *_HISTORY}
            }
            for model in study.models.values()
        ],
        "explorer": explorer,
    }
    kind, pairs = pairs_counted(next(iter(study.models.values())).reliability)
    return environment.get_template("report.html.jinja").render(
        study=study,
        verdict=verdict(study),
        kind=kind,
        kinds=KINDS,
        pairs=pairs,
        groups=_groups(study),
        best={name: _best(study, model) for name, model in study.models.items()},
        disagreements=_disagreements(study),
        notes=_notes(study),
        published=any(study.published.get(name) for name in study.models),
        masked_reference=_reference(study) == "masked",
        percent=percent,
        augmentation_lines=_augmentation_lines(study),
        estimator_lines=_estimator_lines(study),
        shown_first=_shown_first(study),
        history=[(c, t) for c, t in _HISTORY.items() if any(m.history.get(c) for m in study.models.values())],
        explorer=explorer,
        facts=list(_facts({key: study.manifest[key] for key in _MADE_WITH if key in study.manifest})),
        timings=[(what, _duration(value)) for what, value in _facts(_timings(study))],
        command=command,
        css=Markup((files / "report.css").read_text(encoding="utf-8")),
        js=Markup((files / "report.js").read_text(encoding="utf-8")),
        data=htmlsafe_json_dumps(data, allow_nan=False, separators=(",", ":")),
    )


def _mean_curves(model: ModelResult, estimator: str) -> dict[str, list[list[float | None]]]:
    """For MIF and LIF the mean of the normalised curves of the images used, and half its 95 % interval."""
    fidelity, found = model.fidelity[estimator], {}
    for side, curves in (("mif", model.evaluation.mif), ("lif", model.evaluation.lif)):
        kept = curves[estimator][fidelity.kept]
        if fidelity.normalise == "each":
            kept = kept / kept[:, :1]
        spread = kept.std(axis=0, ddof=1) if len(kept) > 1 else np.full(kept.shape[1], np.nan)
        found[side] = [numbers(kept.mean(axis=0)), numbers(1.96 * spread / math.sqrt(len(kept)))]
    return found


def _groups(study: Study) -> list[tuple[str, list[str]]]:
    """The estimators in the groups of the table, without empty ones."""
    titles = {None: "Baseline", True: "Signed", False: "Unsigned"}
    groups = {
        title: [name for name in study.estimators if study.signed.get(name) is signed]
        for signed, title in titles.items()
    }
    return [(title, names) for title, names in groups.items() if names]


def _best(study: Study, model: ModelResult) -> str:
    """The estimator with the largest A; "random" and the like take no part."""
    names = [name for name in study.estimators if name in study.signed] or study.estimators
    return max(names, key=lambda name: model.fidelity[name].area)


def _disagreements(study: Study) -> list[tuple[str, str, list[str]]]:
    """Pairs that some model's MIF and LIF order oppositely, and for every model whether, and how surely."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name, model in study.models.items():
        for pair in model.reliability.pairs:
            said = "significant" if pair.contradiction else "opposite" if pair.opposite else ""
            found.setdefault((pair.first, pair.second), {})[name] = said
    return [
        (first, second, [said.get(name, "") for name in study.models])
        for (first, second), said in found.items()
        if any(said.values())
    ]


def _notes(study: Study) -> list[str]:
    """What was left out and why, each reason once, with the models and estimators it holds for."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, model in study.models.items():
        fidelities: Mapping[str, Fidelity] = model.fidelity
        for estimator, fidelity in fidelities.items():
            for note in fidelity.notes:
                found.setdefault(note, {}).setdefault(name, []).append(estimator_name(estimator))
        for problem in model.evaluation.problems:
            found.setdefault(problem, {})[name] = list(fidelities)
        if not model.evaluation.complete:
            found.setdefault("the evaluation did not come to its end", {})[name] = list(fidelities)
    lines = []
    for note, where in found.items():
        places = [
            augmentation_name(name)
            + (f" ({', '.join(names)})" if len(names) < len(study.models[name].fidelity) else "")
            for name, names in where.items()
        ]
        lines.append(f"{', '.join(places)}: {note}.")
    return lines


def _augmentation_lines(study: Study) -> dict[str, str]:
    others = [name for name in study.models if name not in _AUGMENTATION_LINES]
    return _AUGMENTATION_LINES | {name: _OTHER_LINES[i % len(_OTHER_LINES)] for i, name in enumerate(others)}


def _estimator_lines(study: Study) -> dict[str, str]:
    """Signed ones are solid, unsigned ones dashed, the others dotted."""
    lines: dict[str, str] = {}
    for style, signed in (("d2", None), ("d0", True), ("d1", False)):
        names = [name for name in study.estimators if study.signed.get(name) is signed]
        colours = ("c7", *_ESTIMATOR_COLOURS) if signed is None else _ESTIMATOR_COLOURS
        lines |= {name: f"{colours[i % len(colours)]} {style}" for i, name in enumerate(names)}
    return lines


def _shown_first(study: Study) -> set[str]:
    """The estimators that the page starts with: the first signed and the first unsigned one."""
    first = [
        next((name for name in study.estimators if study.signed.get(name) is signed), None)
        for signed in (True, False)
    ]
    return {name for name in first if name is not None} or set(study.estimators[:2])


def _timings(study: Study) -> dict[str, Any]:
    """The seconds of the stages that made the results; those that show them differ from report to report."""
    timings: Mapping[str, Any] = study.manifest.get("timings", {})
    return {stage: seconds for stage, seconds in timings.items() if stage not in SHOWN}


def _facts(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested mapping as lines: "settings · points", 21; versions and seeds speak for themselves."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            plain = prefix in ("", "versions", "seeds")
            yield from _facts(value, str(key) if plain else f"{prefix} · {key}")
    else:
        yield prefix, ", ".join(map(str, values)) if isinstance(values, list | tuple) else values


def _reference(study: Study) -> Any:
    """Where integrated gradients start."""
    if study.recipe is None:
        return study.manifest.get("settings", {}).get("reference")
    return study.recipe.evaluation.reference


def _number(value: float, digits: int = 1, sign: bool = False) -> str:
    """A number with a real minus sign; a dash where there is none.

    >>> _number(-3.14), _number(2, sign=True), _number(-0.01), _number(float("nan"))
    ('−3.1', '+2.0', '0.0', '–')
    """
    if not math.isfinite(value):
        return "–"
    rounded = round(value, digits) + 0.0  # no negative zero
    return f"{rounded:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def _duration(seconds: Any) -> str:
    """Seconds for people; anything else as it is.

    >>> _duration(0.42), _duration(75), _duration(7260), _duration("later")
    ('0.4 s', '1 min 15 s', '2 h 1 min', 'later')
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return str(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
