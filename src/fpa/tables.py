"""A study's results as tables: for a terminal, for a spreadsheet, for a paper."""

from typing import TYPE_CHECKING

from fpa.fidelity import Fidelity
from fpa.names import augmentation_name, estimator_name
from fpa.results import Study

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


FEWEST = 100
"""Images under which a table says that they are few; an audit asks for as many."""


def notes(study: Study) -> list[str]:
    """What a reader of the table must know."""
    settings = study.manifest.get("settings", {})
    reference = study.recipe.evaluation.reference if study.recipe else settings.get("reference")
    scores = [score for model in study.models.values() for score in model.fidelity.values()]
    used, left = study.images_used, max(score.left_out for score in scores)
    start = {
        "masked": "Integrated gradients start from the fully masked image; the paper says black.",
        "black": "Integrated gradients start from black, as the paper says.",
    }
    begun = start.get(str(reference), f"Integrated gradients start from {reference}.")
    return [
        "A: area between the LIF and the MIF curve in percent, mean over images, "
        "± half-width of the paired 95 % interval.",
        *([begun] if {"ig_sum", "ig_abs"} & set(study.estimators) else []),
        f"{used} images used, {left} left out."
        + "".join(
            f" The model {augmentation_name(name)} does not classify better than chance: nothing to explain."
            for name in study.not_above_chance
        ),
        *([] if used >= FEWEST else [f"{used} images are too few to conclude from: take {FEWEST} or more."]),
    ]


def percent(accuracy: float | None) -> str:
    """An accuracy in front of people.

    >>> percent(0.934), percent(None)
    ('93.4 %', 'unknown')
    """
    return "unknown" if accuracy is None else f"{100 * accuracy:.1f} %"


def opposite_pairs(study: Study) -> dict[str, tuple[int, int, int]]:
    """For every augmentation: signed-unsigned pairs, those ordered oppositely, those significantly so."""
    counts = {}
    for name, model in study.models.items():
        pairs = [pair for pair in model.reliability.pairs if pair.kind == "signed-unsigned"]
        opposite = sum(pair.opposite for pair in pairs)
        counts[name] = len(pairs), opposite, sum(pair.contradiction for pair in pairs)
    return counts


def results_table(study: Study) -> "pd.DataFrame":
    """A row for every augmentation and estimator, with everything that was measured."""
    import pandas as pd

    rows = []
    counts = opposite_pairs(study)
    for name, model in study.models.items():
        pairs, opposite, significant = counts[name]
        for estimator in study.estimators:
            score = model.fidelity[estimator]
            published, _ = study.published.get(name, {}).get(estimator, (None, None))
            signed = study.signed.get(estimator)
            rows.append(
                {
                    "augmentation": name,
                    "accuracy": model.accuracy,
                    "signed_unsigned_pairs": pairs,
                    "ordered_oppositely": opposite,
                    "contradictions": significant,
                    "estimator": estimator,
                    "kind": "baseline" if signed is None else "signed" if signed else "unsigned",
                    "area": score.area,
                    "interval": score.interval,
                    "interval_unpaired": score.interval_unpaired,
                    "area_mif": score.area_mif,
                    "area_lif": score.area_lif,
                    "area_mean_then_divide": score.area_mean_then_divide,
                    "images_used": score.used,
                    "images_left_out": score.left_out,
                    "published_area": published,
                    "difference": None if published is None else score.area - published,
                }
            )
    return pd.DataFrame(rows)


def headline(study: Study) -> str:
    """How often MIF and LIF contradict each other over signed-unsigned pairs, for every augmentation."""
    counts = [
        f"{augmentation_name(name)} {opposite} of {pairs} ({significant})"
        for name, (pairs, opposite, significant) in opposite_pairs(study).items()
        if pairs
    ]
    if not counts:
        return "There are no pairs of a signed and an unsigned estimator to compare."
    return "Signed-unsigned pairs that MIF and LIF order oppositely (of them significantly): " + ", ".join(
        counts
    )


def _cells(study: Study) -> list[tuple[str, list[tuple[str, bool, str]]]]:
    """For every estimator, for every model: A ± interval, whether it is the model's best, published."""
    best = {
        name: max(
            (e for e in model.fidelity if e != "random"), key=lambda e: model.fidelity[e].area, default=""
        )
        for name, model in study.models.items()
    }
    lines = []
    for estimator in study.estimators:
        cells = []
        for name, model in study.models.items():
            score = model.fidelity[estimator]
            published = study.published.get(name, {}).get(estimator)
            beside = "" if published is None else f"{published[0]:.1f} ({score.area - published[0]:+.1f})"
            cells.append((_with_interval(score), best[name] == estimator, beside))
        lines.append((estimator, cells))
    return lines


def _with_interval(score: Fidelity) -> str:
    area = round(score.area, 1) + 0.0  # no minus sign before a zero
    return f"{area:.1f} ± {score.interval:.1f}"


def _columns(study: Study) -> list[tuple[str, bool]]:
    """The models' columns, each followed by a published one where there are published values."""
    columns = []
    for name in study.models:
        columns.append((f"{augmentation_name(name)}", False))
        if name in study.published:
            columns.append((f"{augmentation_name(name)}, published (difference)", True))
    return columns


def _flat(study: Study, cells: list[tuple[str, bool, str]], bold: str) -> list[str]:
    flat = []
    for name, (text, best, published) in zip(study.models, cells, strict=True):
        flat.append(bold.format(text) if best else text)
        if name in study.published:
            flat.append(published)
    return flat


def _groups(study: Study) -> list[str]:
    """For every line of the table, in order: the heading it begins, or nothing."""
    headings, last = [], None
    for estimator in study.estimators:
        signed = study.signed.get(estimator)
        group = "" if signed is None else "signed" if signed else "unsigned"
        headings.append(group if group != last else "")
        last = group
    return headings


def markdown(study: Study) -> str:
    """The table in Markdown."""
    names = [name for name, _ in _columns(study)]
    lines = [f"# {study.name}", "", f"**{headline(study)}.**", ""]
    lines += ["| estimator | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    accuracy = [(percent(model.accuracy), False, "") for model in study.models.values()]
    lines.append("| accuracy | " + " | ".join(_flat(study, accuracy, "{}")) + " |")
    for heading, (estimator, cells) in zip(_groups(study), _cells(study), strict=True):
        if heading:
            lines.append(f"| *{heading}* |" + " |" * len(names))
        lines.append(f"| {estimator_name(estimator)} | " + " | ".join(_flat(study, cells, "**{}**")) + " |")
    lines += ["", " ".join(notes(study)), ""]
    return "\n".join(lines)


def latex(study: Study) -> str:
    """The table in LaTeX, ready to paste; it needs the package booktabs."""
    columns = _columns(study)
    lines = [f"\\begin{{tabular}}{{l{'r' * len(columns)}}}", "\\toprule"]
    lines.append(" & ".join(["Estimator", *(name for name, _ in columns)]) + " \\\\ \\midrule")
    accuracy = [
        (percent(model.accuracy).replace(" %", "\\,\\%"), False, "") for model in study.models.values()
    ]
    lines.append(" & ".join(["Accuracy", *_flat(study, accuracy, "{}")]) + " \\\\")
    counts = [(f"{o} of {p} ({c})", False, "") for p, o, c in opposite_pairs(study).values()]
    lines.append(" & ".join(["MIF against LIF (significant)", *_flat(study, counts, "{}")]) + " \\\\")
    for heading, (estimator, cells) in zip(_groups(study), _cells(study), strict=True):
        if heading:
            lines.append(f"\\midrule \\multicolumn{{{len(columns) + 1}}}{{l}}{{\\emph{{{heading}}}}} \\\\")
        values = [text.replace(" ± ", " \\pm ") for text in _flat(study, cells, "\\mathbf{{{}}}")]
        values = [f"${text}$" if "pm" in text else text for text in values]
        lines.append(" & ".join([estimator_name(estimator, "latex"), *values]) + " \\\\")
    lines.append("\\bottomrule")
    for note in notes(study):
        text = note.replace("±", "$\\pm$").replace("%", "\\%")
        lines.append(f"\\multicolumn{{{len(columns) + 1}}}{{l}}{{\\footnotesize {text}}} \\\\")
    return "\n".join([*lines, "\\end{tabular}", ""])


def terminal(study: Study) -> "Table":
    """The table for a terminal of 80 columns, with rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("estimator")
    for name, _ in _columns(study):
        table.add_column(name, justify="right")
    accuracy = [(percent(model.accuracy), False, "") for model in study.models.values()]
    table.add_row("accuracy", *_flat(study, accuracy, "{}"))
    for heading, (estimator, cells) in zip(_groups(study), _cells(study), strict=True):
        if heading:
            table.add_row(Text(heading, style="italic"))
        flat = [
            Text(text[1:], style="bold") if text[:1] == "\0" else Text(text)
            for text in _flat(study, cells, "\0{}")
        ]
        table.add_row(Text(estimator_name(estimator)), *flat)
    return table


def _titles(studies: list[Study]) -> list[str]:
    """A name a study, with its seed where names repeat."""
    names = [study.name for study in studies]
    return [
        f"{study.name} seed {study.recipe.seed}"
        if study.recipe and names.count(study.name) > 1
        else study.name
        for study in studies
    ]


def comparison_table(studies: list[Study]) -> "pd.DataFrame":
    """The results of several studies, one below the other, with the study's name in the first column."""
    import pandas as pd

    parts = []
    for title, study in zip(_titles(studies), studies, strict=True):
        part = results_table(study)
        part.insert(0, "study", title)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def comparison(studies: list[Study]) -> "Table":
    """Several studies side by side for a terminal: a column a study and augmentation."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("estimator")
    columns = []
    for title, study in zip(_titles(studies), studies, strict=True):
        for name, model in study.models.items():
            table.add_column(f"{title}\n{augmentation_name(name)}", justify="right")
            columns.append(model)
    # Intervals fit 80 columns beside up to four models; the CSV file has them always.
    shown = _with_interval if len(columns) <= 4 else lambda score: _with_interval(score).split(" ")[0]
    names = list(dict.fromkeys(name for study in studies for name in study.estimators))
    table.add_row("accuracy", *(percent(model.accuracy) for model in columns))
    for name in names:
        scores = [model.fidelity.get(name) for model in columns]
        cells = ["" if score is None else shown(score) for score in scores]
        table.add_row(estimator_name(name), *cells)
    return table
