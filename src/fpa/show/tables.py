"""A study's results as tables: for a terminal, for a spreadsheet, for a paper."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fpa.scores.fidelity import Fidelity
from fpa.show.names import augmentation_name, estimator_name
from fpa.study.results import ModelResult, Study

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Group
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


COUNTED = "Signed-unsigned pairs that MIF and LIF order oppositely (of them significantly)"
"""What a headline counts."""


def headline(study: Study) -> str:
    """How often MIF and LIF contradict each other over signed-unsigned pairs, for every augmentation."""
    counts = _counted(study)
    if not counts:
        return "There are no pairs of a signed and an unsigned estimator to compare."
    return f"{COUNTED}: {counts}"


def _counted(study: Study) -> str:
    return ", ".join(
        f"{augmentation_name(name)} {opposite} of {pairs} ({significant})"
        for name, (pairs, opposite, significant) in opposite_pairs(study).items()
        if pairs
    )


def _cells(study: Study) -> list[tuple[str, list[tuple[str, bool, str]]]]:
    """For every estimator, for every model: A ± interval, whether it is the model's best, published."""
    best = {name: _best(model) for name, model in study.models.items()}
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


def _best(model: ModelResult) -> str:
    """The estimator with the largest A; a random order takes no part."""
    names = (name for name in model.fidelity if name != "random")
    return max(names, key=lambda name: model.fidelity[name].area, default="")


def _with_interval(score: Fidelity, interval: bool = True) -> str:
    area = round(score.area, 1) + 0.0  # no minus sign before a zero
    return f"{area:.1f}" + (f" ± {score.interval:.1f}" if interval else "")


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
    """The table in LaTeX, ready to paste into a table environment; it needs the package booktabs."""
    columns = _columns(study)
    lines = ["% For a table environment; needs \\usepackage{booktabs}."]
    if study.published:  # six columns do not fit a page of text otherwise
        lines.append("\\footnotesize\\setlength{\\tabcolsep}{3pt}")
    lines += [f"\\begin{{tabular}}{{l{'r' * len(columns)}}}", "\\toprule"]
    names = ["published" if is_published else name for name, is_published in columns]
    lines.append(" & ".join(["Estimator", *names]) + " \\\\ \\midrule")
    accuracy = [
        (percent(model.accuracy).replace(" %", "\\,\\%"), False, "") for model in study.models.values()
    ]
    lines.append(" & ".join(["Accuracy", *_flat(study, accuracy, "{}")]) + " \\\\")
    counts = [(f"{o} of {p} ({c})", False, "") for p, o, c in opposite_pairs(study).values()]
    lines.append(" & ".join(["MIF against LIF", *_flat(study, counts, "{}")]) + " \\\\")
    for heading, (estimator, cells) in zip(_groups(study), _cells(study), strict=True):
        if heading:
            lines.append(f"\\midrule \\multicolumn{{{len(columns) + 1}}}{{l}}{{\\emph{{{heading}}}}} \\\\")
        texts = _flat(study, cells, "\\mathbf{{{}}}")
        texts = [text.replace(" ± ", " \\pm ").replace(" (", "\\ (") for text in texts]
        values = [f"${text}$" if text else "" for text in texts]
        lines.append(" & ".join([estimator_name(estimator, "latex"), *values]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    said = [
        *notes(study),
        "MIF against LIF: signed-unsigned pairs that they order oppositely (of them significantly).",
        *(["Published: the paper's A (ours minus it)."] if study.published else []),
    ]
    # Below the table and not in it: text in a cell of columns l and r cannot wrap.
    text = "\n".join(said).replace("±", "$\\pm$").replace(" %", "\\,\\%")
    lines += ["\\par\\smallskip", "\\begin{minipage}{\\linewidth}\\footnotesize", text, "\\end{minipage}", ""]
    return "\n".join(lines)


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


def study_titles(studies: Sequence[Study]) -> list[list[str]]:
    """What tells each study from the others: its name, its seed where names repeat, then its folder too."""
    titles = [[study.name] for study in studies]
    seeds = [f"seed {study.recipe.seed}" if study.recipe else "" for study in studies]
    folders = [f"({study.folder})" if study.folder else "" for study in studies]
    for parts in (seeds, folders):
        repeated = [titles.count(title) > 1 for title in titles]
        for title, part, again in zip(titles, parts, repeated, strict=True):
            if again and part:
                title.append(part)
    return titles


def comparison_table(studies: list[Study]) -> "pd.DataFrame":
    """The results of several studies, one below the other, with the study's title in the first column."""
    import pandas as pd

    parts = []
    for title, study in zip(study_titles(studies), studies, strict=True):
        part = results_table(study)
        part.insert(0, "study", " ".join(title))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def comparison(studies: list[Study]) -> "Group":
    """Several studies for a terminal of 80 columns: how often each contradicts itself, then A.

    A column a study, so that what is compared stands side by side, and a block of rows an augmentation.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    titles = study_titles(studies)
    told = [
        f"{' '.join(title)}: {_counted(study) or 'no such pairs'}"
        for title, study in zip(titles, studies, strict=True)
    ]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("estimator")
    few = len(studies) <= 4  # so many have room for intervals in 80 columns; the CSV file has them always
    for title in titles:
        column = Text("\n".join(title))
        table.add_column(column, justify="right", overflow="fold", min_width=12 if few else 6)
    signed = {name: sign for study in studies for name, sign in study.signed.items()}
    names = dict.fromkeys(name for study in studies for name in study.estimators)
    for augmentation in dict.fromkeys(name for study in studies for name in study.models):
        models = [study.models.get(augmentation) for study in studies]
        table.add_row()
        table.add_row(Text(augmentation_name(augmentation), style="bold"))
        table.add_row("accuracy", *("" if model is None else percent(model.accuracy) for model in models))
        best = ["" if model is None else _best(model) for model in models]
        for sign, heading in ((None, ""), (True, "signed"), (False, "unsigned")):
            group = [name for name in names if signed.get(name) is sign]
            if heading and group:
                table.add_row(Text(heading, style="italic"))
            for name in group:
                scores = [None if model is None else model.fidelity.get(name) for model in models]
                cells = [
                    Text(
                        "" if score is None else _with_interval(score, few),
                        style="bold" if name == winner else "",
                    )
                    for score, winner in zip(scores, best, strict=True)
                ]
                table.add_row(Text(estimator_name(name)), *cells)
    return Group(Text("\n".join([f"{COUNTED}:", *told]), style="bold"), table)
