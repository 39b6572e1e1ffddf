"""Results as tables: for a terminal, a notebook, a spreadsheet, a paper."""

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fpa.evaluation.result import Result, Results
from fpa.show.names import estimator_names, model_name
from fpa.show.summary import (
    FEWEST,
    best,
    by_training,
    direction,
    groups,
    opposite_pairs,
    percent,
    references,
    removed_unit,
    titles,
    trained_with,
    with_interval,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, Group


COUNTED = "Signed-unsigned pairs that MIF and LIF rank in opposite order (significant ones in brackets)"
"""What a headline counts."""


def headline(results: Results) -> str:
    """How often MIF and LIF contradict each other over signed-unsigned pairs, for every model."""
    counts = _counted(results)
    return f"{COUNTED}: {counts}" if counts else "There is no pair of a signed and an unsigned estimator."


def notes(results: Results) -> list[str]:
    """What a reader of the table must know."""
    starts = {
        "masked": "the fully masked image; the paper uses black",
        "black": "black, as in the paper",
    }
    used = results.images_used
    left_out = max(each.left_out for model in results.models.values() for each in model.fidelity.values())
    patches = removed_unit(results) == "patches"
    return [
        "A is the area between the LIF and the MIF curve in percent: mean over images ± half-width of the "
        "paired 95 % interval.",
        *(
            f"{name} is {score['title']} ({direction(score)}; {score['source']})."
            for name, score in results.score_titles.items()
        ),
        *(
            f"Integrated gradients start from {starts.get(str(start), start)}."
            for start in references(results)
        ),
        *([f"Patches of {results.first.plan['features']} px are removed, not pixels."] if patches else []),
        f"{used} images used, {left_out} left out.",
        *(
            f"The model {model_name(name)} is no better than chance: there is nothing to explain."
            for name in results.not_above_chance
        ),
        *([] if used >= FEWEST else [f"{used} images are too few for conclusions: use {FEWEST} or more."]),
    ]


def results_table(results: Results) -> "pd.DataFrame":
    """One row per model and estimator, with everything that was measured."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    counts = opposite_pairs(results)
    for name, model in results.models.items():
        scores = {score: model.scores[score] for score in results.score_titles}
        for estimator in results.estimators:
            fidelity, signed = model.fidelity[estimator], results.signed.get(estimator)
            published, _ = results.published.get(name, {}).get(estimator, (None, None))
            row = {
                "model": name,
                "augmentation": trained_with(results, name),
                "accuracy": model.accuracy,
                "signed_unsigned_pairs": counts[name].pairs,
                "ordered_oppositely": counts[name].opposite,
                "contradictions": counts[name].significant,
                "estimator": estimator,
                "kind": "baseline" if signed is None else "signed" if signed else "unsigned",
                "area": fidelity.area,
                "interval": fidelity.interval,
                "interval_unpaired": fidelity.interval_unpaired,
                "area_mif": fidelity.area_mif,
                "area_lif": fidelity.area_lif,
                "area_mean_then_divide": fidelity.area_mean_then_divide,
                "images_used": fidelity.used,
                "images_left_out": fidelity.left_out,
                "published_area": published,
                "difference": None if published is None else fidelity.area - published,
            }
            for score, summaries in scores.items():
                row[f"score_{score}"] = summaries[estimator].mean
                row[f"score_{score}_interval"] = summaries[estimator].interval
            rows.append(row)
    return pd.DataFrame(rows)


def markdown(results: Results) -> str:
    """The table in Markdown; a table of its own for every further score where there are several models."""
    names = estimator_names(results)
    lines = [f"# {results.name}", "", f"**{headline(results)}.**", ""]
    for heading, columns in _sheets(results):
        lines += [f"## {heading}", ""] if heading else []
        lines += [
            _piped("estimator", *(column.title for column in columns)),
            "|---" * (len(columns) + 1) + "|",
        ]
        for kind, label, cells in _rows(results, columns):
            if kind == "group":
                lines.append(f"| *{label}* |" + " |" * len(columns))
            elif label != "opposite order":  # they are in the headline
                texts = (f"**{cell.text}**" if cell.best else cell.text for cell in cells)
                lines.append(_piped(names.get(label, label), *texts))
        lines.append("")
    return "\n".join([*lines, " ".join(notes(results)), ""])


def latex(results: Results) -> str:
    """The table in LaTeX, ready to paste into a table environment; it needs the package booktabs."""
    names = estimator_names(results, style="latex")
    lines = ["% For a table environment; needs \\usepackage{booktabs}."]
    if results.published:  # six columns do not fit a page of text otherwise
        lines.append("\\footnotesize\\setlength{\\tabcolsep}{3pt}")
    for heading, columns in _sheets(results):
        width = len(columns) + 1
        lines += [f"\\begin{{tabular}}{{l{'r' * len(columns)}}}", "\\toprule"]
        lines += [f"\\multicolumn{{{width}}}{{l}}{{{_in_latex(heading)}}} \\\\"] if heading else []
        shown = ["published" if column.published else _in_latex(column.title) for column in columns]
        lines.append(" & ".join(["Estimator", *shown]) + " \\\\ \\midrule")
        for kind, label, cells in _rows(results, columns):
            if kind == "group":
                lines.append(f"\\midrule \\multicolumn{{{width}}}{{l}}{{\\emph{{{label}}}}} \\\\")
            elif kind == "fact":
                lines.append(
                    " & ".join([label.capitalize(), *(_in_latex(cell.text) for cell in cells)]) + " \\\\"
                )
            else:
                texts = [cell.text.replace(" ± ", " \\pm ").replace(" (", "\\ (") for cell in cells]
                bold = [
                    f"\\mathbf{{{text}}}" if cell.best else text
                    for text, cell in zip(texts, cells, strict=True)
                ]
                lines.append(
                    " & ".join([names[label], *(f"${text}$" if text else "" for text in bold)]) + " \\\\"
                )
        lines += ["\\bottomrule", "\\end{tabular}", "\\par\\smallskip"]
    below = [
        *notes(results),
        f"Opposite order: {COUNTED[0].lower()}{COUNTED[1:]}.",
        *(["Published: the paper's A (ours minus the paper's)."] if results.published else []),
    ]
    # Below the table and not in it: text in a cell of columns l and r cannot wrap.
    lines += ["\\begin{minipage}{\\linewidth}\\footnotesize", *map(_in_latex, below), "\\end{minipage}", ""]
    return "\n".join(lines)


def terminal(results: Results) -> "Group":
    """The table for a terminal of 80 columns, with rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    names, parts = estimator_names(results), []
    for heading, columns in _sheets(results):
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("estimator")
        for column in columns:
            table.add_column(Text(column.title), justify="right")
        for kind, label, cells in _rows(results, columns):
            if kind == "group":
                table.add_row(Text(label, style="italic"))
            elif label != "opposite order":  # they are in the headline
                texts = (Text(cell.text, style="bold" if cell.best else "") for cell in cells)
                table.add_row(Text(names.get(label, label)), *texts)
        parts += [Text(f"\n{heading}", style="bold")] if heading else []
        parts.append(table)
    return Group(*parts)


def print_results(results: Results, console: "Console") -> None:
    """Headline, table and notes in a terminal."""
    console.print(headline(results), style="bold", highlight=False, markup=False)
    console.print(terminal(results))
    for line in notes(results):
        console.print(line, style="dim", highlight=False, markup=False)
    for line in _warnings(results):
        console.print(line, highlight=False, markup=False)


def notebook(result: Result) -> str:
    """A result as HTML for a notebook, in the notebook's own style."""
    results = result.results
    names = estimator_names(results, style="html")
    columns = [_cells(results, result, score) for score in results.score_titles]

    def line(first: str, *cells: str, tag: str = "td") -> str:
        return f"<tr><th>{first}</th>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"

    extra = [html.escape(score) for score in results.score_titles]
    lines = [line("accuracy", "", percent(result.accuracy), *[""] * (2 + len(extra)))]
    for name, row in result.table().iterrows():
        areas = f"{row.area:.1f} ± {row.interval:.1f}", f"{row.area_mif:.1f}", f"{row.area_lif:.1f}"
        lines.append(line(names[str(name)], row.kind, *areas, *(cells[str(name)].text for cells in columns)))
    head = line(html.escape(result.name), "", "A", "MIF", "LIF", *extra, tag="th")
    below = "<br>".join(html.escape(text) for text in [*notes(results), *_warnings(results)])
    return (
        f"<p><b>{html.escape(headline(results))}</b></p><table><thead>{head}</thead>"
        f"<tbody>{''.join(lines)}</tbody></table><p><small>{below}</small></p>"
    )


def comparison_table(several: Sequence[Results]) -> "pd.DataFrame":
    """Several results, one below the other, with their title in the first column."""
    import pandas as pd

    parts = []
    for title, results in zip(titles(several), several, strict=True):
        part = results_table(results)
        part.insert(0, "study", " ".join(title))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def comparison(several: Sequence[Results]) -> "Group":
    """Several results for a terminal of 80 columns: how often each contradicts itself, then A and the scores.

    What is compared stands side by side: one column for each, one block of rows for each training.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    counted = [
        f"{' '.join(title)}: {_counted(results) or 'no such pairs'}"
        for title, results in zip(titles(several), several, strict=True)
    ]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("estimator")
    few = len(several) <= 4  # 80 columns have room for intervals then; the CSV file always has them
    for title in titles(several):
        table.add_column(Text("\n".join(title)), justify="right", overflow="fold", min_width=12 if few else 6)
    names = estimator_names(*several)
    matched = [by_training(results) for results in several]
    scores = dict.fromkeys(["A", *(score for results in several for score in results.score_titles)])
    trainings = dict.fromkeys(key for keys in matched for key in keys)
    for training in trainings:
        pairs = [(results, keys.get(training)) for results, keys in zip(several, matched, strict=True)]
        models = [(results, None if name is None else results.models[name]) for results, name in pairs]
        table.add_row()
        if training or len(trainings) > 1:
            table.add_row(Text(model_name(training) or "Other models", style="bold"))
        table.add_row("accuracy", *("" if model is None else percent(model.accuracy) for _, model in models))
        for score in scores:
            cells = [{} if model is None else _cells(results, model, score, few) for results, model in models]
            if score != "A" and any(cells):
                table.add_row(Text(score, style="bold"))
            for heading in ("Baseline", "Signed", "Unsigned"):
                group = dict.fromkeys(name for each in several for name in groups(each).get(heading, []))
                rows = [name for name in group if any(name in column for column in cells)]
                if heading != "Baseline" and rows:
                    table.add_row(Text(heading.lower(), style="italic"))
                for name in rows:
                    shown = [column.get(name, Cell("")) for column in cells]
                    texts = (Text(cell.text, style="bold" if cell.best else "") for cell in shown)
                    table.add_row(Text(names[name]), *texts)
    return Group(Text("\n".join([f"{COUNTED}:", *counted]), style="bold"), table)


class Cell(NamedTuple):
    """What a table says in one place, and whether it is the best of its column."""

    text: str
    best: bool = False


class Column(NamedTuple):
    """A column of a table, whatever the table is written in."""

    title: str
    cells: dict[str, Cell]
    """By estimator."""
    facts: dict[str, str]
    """What is above the estimators: the accuracy, ..."""
    published: bool = False


def _sheets(results: Results) -> list[tuple[str, list[Column]]]:
    """The tables to write, with their headings: models side by side, or the scores of a single one."""
    scores = list(results.score_titles)
    if len(results.models) == 1 and scores:
        ((name, model),) = results.models.items()
        areas, *more = _area_columns(results, name)
        further = [Column(score, _cells(results, model, score), {}) for score in scores]
        return [(model_name(name), [areas._replace(title="A"), *more, *further])]
    areas = [column for name in results.models for column in _area_columns(results, name)]
    return [
        ("A" if scores else "", areas),
        *(
            (
                f"{score} ({direction(results.score_titles[score])})",
                [
                    Column(model_name(name), _cells(results, model, score), {})
                    for name, model in results.models.items()
                ],
            )
            for score in scores
        ),
    ]


def _area_columns(results: Results, name: str) -> list[Column]:
    """A of a model and, where there are any, the published values beside it."""
    model, counts = results.models[name], opposite_pairs(results)[name]
    facts = {"accuracy": percent(model.accuracy)}
    if any(trained_with(results, other) not in ("", other) for other in results.models):
        facts["trained with"] = model_name(trained_with(results, name)) or "unknown"
    facts["opposite order"] = f"{counts.opposite} of {counts.pairs} ({counts.significant})"
    columns = [Column(model_name(name), _cells(results, model), facts)]
    if published := results.published.get(name):
        beside = {
            estimator: Cell(f"{area:.1f} ({model.fidelity[estimator].area - area:+.1f})")
            for estimator, (area, _) in published.items()
            if estimator in model.fidelity
        }
        columns.append(Column(f"{model_name(name)}, published (difference)", beside, {}, published=True))
    return columns


def _cells(results: Results, model: Result, score: str = "A", interval: bool = True) -> dict[str, Cell]:
    """A score of every estimator of a model, the best one marked; nothing where the model lacks it."""
    if score == "A":
        areas = model.fidelity.items()
        values = {name: (f"{round(each.area, 1) + 0.0:.1f}", f"{each.interval:.1f}") for name, each in areas}
    elif score in results.score_titles:
        summaries = model.scores[score].items()
        values = {name: with_interval(each.mean, each.interval) for name, each in summaries}
    else:
        return {}
    winner = best(results, model, score)
    return {
        name: Cell(f"{value} ± {half}" if interval else value, name == winner)
        for name, (value, half) in values.items()
    }


def _rows(results: Results, columns: Sequence[Column]) -> Iterator[tuple[str, str, list[Cell]]]:
    """The lines of a table: facts, headings of groups, estimators; each with its label and its cells."""
    for fact in columns[0].facts:
        yield "fact", fact, [Cell(column.facts.get(fact, "")) for column in columns]
    for title, estimators in groups(results).items():
        if title != "Baseline":
            yield "group", title.lower(), []
        for name in estimators:
            yield "estimator", name, [column.cells.get(name, Cell("")) for column in columns]


def _counted(results: Results) -> str:
    return ", ".join(
        f"{model_name(name)} {counts.opposite} of {counts.pairs} ({counts.significant})"
        for name, counts in opposite_pairs(results).items()
        if counts.pairs
    )


def _warnings(results: Results) -> list[str]:
    """What was left out and why, each reason once."""
    fidelities = [each for model in results.models.values() for each in model.fidelity.values()]
    return [f"note: {note}" for note in sorted({note for each in fidelities for note in each.notes})]


def _piped(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _in_latex(text: str) -> str:
    for plain, escaped in ((" %", "\\,\\%"), ("±", "$\\pm$"), ("_", "\\_"), ("&", "\\&"), ("#", "\\#")):
        text = text.replace(plain, escaped)
    return text
