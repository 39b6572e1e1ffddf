"""Results as tables: for a terminal, a notebook, a spreadsheet, a paper."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fpa.auditing.rule import FEWEST_IMAGES
from fpa.errors import counted, percent, printable
from fpa.evaluation.rankings import tied, worse_than_best
from fpa.evaluation.result import Result, Results
from fpa.show import answers, protocols, rivals, scope, summary, truths, words
from fpa.show.cells import Cell, Column, Line, Sheet
from fpa.show.names import estimator_names, model_name
from fpa.show.rendering import rendered

if TYPE_CHECKING:
    import pandas as pd

COUNTED = "Signed-unsigned pairs that MIF and LIF rank in opposite order (in brackets: for sure)"
"""What a headline counts."""


def headline(results: Results) -> str:
    """How often MIF and LIF contradict each other over signed-unsigned pairs, for every model."""
    counts = _counted(results)
    if not counts:
        return "There is no pair of a signed and an unsigned estimator."
    return printable(f"{COUNTED}: {counts}")


def notes(results: Results) -> list[str]:
    """What a reader of the table must know, all of it."""
    lines = [
        f"A is {_area(results)}: mean over images ± half-width of the paired 95 % interval. Bold: "
        "significantly better than every other explanation; =: the best and those that cannot be ordered "
        "against it (paired tests over images, Holm-corrected over all pairs).",
        *truths.sentences(results),
        *truths.explained(results),
        *scope.sentences(results),
        *protocols.sentences(results),
        *protocols.recommended(results),
        *summary.explained_class(results),
        *summary.judges(results),
        *summary.warned(results),
        *scope.heads(results),
        *scope.unchecked(results),
    ]
    for name, score in results.score_titles.items():
        lines.append(f"{name} is {score.title} ({summary.direction(score)}; {score.source}).")
    lines += [*summary.without_value(results, estimator_names(results)), *summary.references(results)]
    return [*map(printable, [*lines, *summary.removed(results), *rivals.beaten(results), *_images(results)])]


def brief_notes(results: Results, *, scores: bool) -> list[str]:
    """What a reader of the table in a terminal must know; of further `scores` only if they are in it."""
    lines = [
        f"A: {_area(results)}, ± half of its 95 % interval. Bold: significantly better than all others; =: "
        "cannot be ordered against the best.",
        *truths.sentences(results),
        *scope.sentences(results, scope.IN_A_TERMINAL),
        *protocols.sentences(results),
        *protocols.recommended(results),
        *summary.explained_class(results),
        *summary.judges(results),
        *summary.warned(results),
        *scope.unchecked(results),
    ]
    if titles := results.score_titles:
        ways = [f"{name}: {summary.direction(about)}" for name, about in titles.items()]
        if scores:
            lines += [f"{', '.join(ways)}.", *summary.without_value(results, estimator_names(results))]
        else:
            lines.append(f"{counted(len(titles), 'further score')}: see the report and table.md.")
    return [*map(printable, [*lines, *summary.removed(results), *rivals.brief(results), *_images(results)])]


def _area(results: Results) -> str:
    output = summary.output_in_words(results)
    unit = "in percent" if results.first.evaluation.divided else "times 100, not divided by its start"
    return f"the area between the LIF and the MIF curve of the {output}{summary.up_to(results)}, {unit}"


def _images(results: Results) -> list[str]:
    """How many images the numbers are over, and whether that is enough."""
    used = results.images_used
    left_out = max(each.left_out for model in results.models.values() for each in model.fidelity.values())
    lines = [f"{counted(used)} used, {left_out} left out."]
    if weak := [model_name(name) for name in results.not_above_chance]:
        models = "models" if len(weak) > 1 else "model"
        lines.append(f"No better than chance: the {models} {', '.join(weak)}. There is nothing to explain.")
    return lines if used >= FEWEST_IMAGES else [*lines, summary.too_few(used)]


def results_table(results: Results) -> "pd.DataFrame":
    """One row per model and estimator, with everything that was measured."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    facts = results.first.description.plan.estimators
    counts = summary.opposite_pairs(results)
    measured = ["area", "interval", "interval_unpaired", "area_mif", "area_lif", "area_mean_then_divide"]
    measured.append("area_robust")
    for name, model in results.models.items():
        scores = {score: summary.measured(model, score) for score in results.score_titles}
        worse = {score: worse_than_best(model, score) for score in scores}
        beats = model.beats
        errors = truths.columns(model)
        for estimator in results.estimators:
            fidelity = model.fidelity[estimator]
            published, _ = results.published.get(name, {}).get(estimator, (None, None))
            row = {
                "model": name,
                "augmentation": summary.trained_with(results, name),
                "accuracy": model.accuracy,
                "signed_unsigned_pairs": counts[name].pairs,
                "ordered_oppositely": counts[name].opposite,
                "contradictions": counts[name].significant,
                "estimator": estimator,
                "kind": facts[estimator].sign,
                **{column: getattr(fidelity, column) for column in measured},
                "images_used": fidelity.used,
                "images_left_out": fidelity.left_out,
                "p_model_free": beats.model_free[estimator].p if estimator in beats.model_free else None,
                "p_twin": beats.twin[estimator].p if estimator in beats.twin else None,
                "head_offset": None if model.head is None else model.head.offset,
                "published_area": published,
                "difference": None if published is None else fidelity.area - published,
            }
            row |= protocols.columns(model, estimator) | errors
            for score, values in scores.items():
                row[f"score_{score}"], row[f"score_{score}_interval"] = values[estimator]
                row[f"score_{score}_p"] = worse[score].get(estimator)
                if score in model.evaluation.units:
                    row[f"score_{score}_over_unit"] = model.comparable(score)[estimator].mean
            rows.append(row)
    return pd.DataFrame(rows)


def csv_text(table: "pd.DataFrame") -> str:
    """A table as CSV; a name that a spreadsheet would take for a formula begins with an apostrophe."""
    formula = ("=", "+", "-", "@", "\t", "\r")

    def safe(cell: Any) -> Any:
        if not isinstance(cell, str):
            return cell
        return f"'{printable(cell)}" if cell.startswith(formula) else printable(cell)

    return str(table.map(safe).rename(columns=safe).to_csv(index=False, float_format="%.6g"))


def markdown(results: Results) -> str:
    """The table in Markdown; a table of its own for every further score where there are several models."""
    return _rendered("table.md.jinja", results)


def latex(results: Results) -> str:
    """The table in LaTeX, ready to paste into a table environment; it needs the package booktabs."""
    return _rendered("table.tex.jinja", results)


def _rendered(template: str, results: Results) -> str:
    return rendered(
        template,
        results=results,
        headline=headline(results),
        sheets=[*_sheets(results), *truths.sheets(results)],
        rows=partial(_rows, [results]),
        notes=notes(results),
        counted=COUNTED,
        scope=scope,
    )


def terminal(results: Results) -> Group:
    """Headline, table and notes in a terminal of 80 columns, with rich.

    A table for each of many scores and several models would fill it: then A is shown alone.
    """
    first = [*map(printable, scope.left_out_for_their_class(results))]
    parts: list[RenderableType] = [*(Text(line, "bold") for line in first), Text(headline(results), "bold")]
    sheets = _sheets(results)
    errors = truths.sheets(results)
    if alone := len(sheets) > 4:
        sheets = [sheets[0]._replace(heading="")]
    for sheet in _narrow([*sheets, *errors]):
        table = Table(sheet.first, box=None, padding=(0, 2, 0, 0))
        for column in sheet.columns:
            table.add_column(Text(column.title), justify="right")
        _add_rows(table, [results], sheet.columns)
        parts += [Text(f"\n{sheet.heading}", style="bold"), table] if sheet.heading else [table]
    if len(results.models) == 1:
        parts += scope.for_terminal(results)
    below = [
        *(Text(note, "dim") for note in brief_notes(results, scores=not alone)),
        *map(Text, _warnings(results, brief=True)),
    ]
    plain = [Text(printable(line), "bold") for line in answers.answer(results)]
    return Group(*parts, *below, *([Text(), *plain] if plain else []))


def notebook(result: Result) -> str:
    """A result as HTML for a notebook, in the notebook's own style."""
    results = result.results
    return rendered(
        "notebook.html.jinja",
        result=result,
        headline=headline(results),
        names=estimator_names(results, style="html"),
        scores={score: column_of(results, result.name, score).cells for score in results.score_titles},
        notes=[*notes(results), *_warnings(results)],
        answer=answers.answer(results),
    )


def comparison_table(several: Sequence[Results]) -> "pd.DataFrame":
    """Several results, one below the other, with their title in the first column."""
    import pandas as pd

    titles = [" ".join(title) for title in summary.titles(several)]
    stacked = pd.concat([*map(results_table, several)], keys=titles, names=["study"])
    return stacked.reset_index("study").reset_index(drop=True)


def comparison(several: Sequence[Results]) -> Group:
    """Several results for a terminal of 80 columns: how often each contradicts itself, then A.

    What is compared stands side by side: one column for each, one block of rows for each training. Other
    scores are in the file, and named below.
    """
    titles = [[*map(printable, title)] for title in summary.titles(several)]
    counts = [_counted(results) or "no such pairs" for results in several]
    lines = [f"{' '.join(title)}: {count}" for title, count in zip(titles, counts, strict=True)]
    table = Table("estimator", box=None, padding=(0, 2, 0, 0))
    few = len(several) <= 4  # 80 columns have room for intervals then; the CSV file always has them
    for title in titles:
        table.add_column(Text("\n".join(title)), justify="right", overflow="fold", min_width=12 if few else 6)
    matched = [(results, summary.by_training(results)) for results in several]
    trainings = dict.fromkeys(training for _, names in matched for training in names)
    for training in trainings:
        table.add_row()
        if training or len(trainings) > 1:
            table.add_row(Text(model_name(training) or "Other models", style="bold"))
        columns = [
            column_of(each, names.get(training), "A", interval=few, beside=several) for each, names in matched
        ]
        _add_rows(table, several, columns)
    parts: list[Table | Text] = [Text("\n".join([f"{COUNTED}:", *lines]), style="bold"), table]
    for title, results in zip(titles, several, strict=True):
        parts.append(Text(f"{' '.join(title)}: {' '.join(rivals.brief(results))}", "dim"))
    others = dict.fromkeys(score for results in several for score in results.score_titles if score != "A")
    if others:
        parts.append(Text(f"Other scores, in comparison.csv: {', '.join(others)}.", "dim"))
    return Group(*parts)


def _sheets(results: Results) -> list[Sheet]:
    """The tables to write, with their headings: models side by side, or the scores of a single one."""
    areas = []
    for name, model in results.models.items():
        areas.append(column_of(results, name))
        if not model.evaluation.divided:
            # A is then in units of the output; divided by the mean start it can be compared between models.
            late = {}
            for key, each in model.fidelity.items():
                mean = each.area_mean_then_divide
                late[key] = Cell(*summary.with_interval(mean, each.interval_mean_then_divide, 1))
            areas.append(Column(f"{model_name(name)}, mean then divide", late, {}))
        if published := results.published.get(name):
            beside = {
                estimator: Cell(f"{area:.1f} ({model.fidelity[estimator].area - area:+.1f})")
                for estimator, (area, _) in published.items()
                if estimator in model.fidelity
            }
            areas.append(Column(f"{model_name(name)}, published (difference)", beside, {}))
    titles = results.score_titles
    scores = {score: [column_of(results, name, score) for name in results.models] for score in titles}
    if len(results.models) > 1 or not scores:
        further = [
            Sheet(f"{key}{summary.over_unit([results], key)} ({summary.direction(titles[key])})", columns)
            for key, columns in scores.items()
        ]
        return [Sheet("A" if scores else "", areas), *further, *protocols.sheets(results)]
    areas[0] = areas[0]._replace(title="A")
    areas += [column._replace(title=score) for score, (column,) in scores.items()]
    return [Sheet(model_name(results.first.name), areas), *protocols.sheets(results)]


def _narrow(sheets: list[Sheet]) -> Iterator[Sheet]:
    """The same in tables of at most four columns: 80 characters have room for no more."""
    for sheet in sheets:
        for start in range(0, len(sheet.columns), 4):
            heading = "" if start else sheet.heading
            yield Sheet(heading, sheet.columns[start : start + 4], sheet.first)


def column_of(
    results: Results,
    name: str | None,
    score: str = "A",
    *,
    interval: bool = True,
    beside: Sequence[Results] = (),
) -> Column:
    """A score of every estimator of a model, the best one marked; empty where there is none.

    Where several models are shown, here or `beside`, it is over its unit.
    """
    if name is None or score not in ("A", *results.score_titles):
        return Column("", {}, {})
    model = results.models[name]
    facts = {}
    if score == "A":
        facts["accuracy"] = percent(model.accuracy)
        trainings = {key: summary.trained_with(results, key) for key in results.models}
        if any(training not in ("", key) for key, training in trainings.items()):
            facts["trained with"] = model_name(trainings[name]) or "unknown"
    leading = tied(model, score)
    alone = len(leading) == 1
    ends = summary.ends_of_shares(model, score) if interval else {}
    cells = {}
    compared = bool(summary.over_unit(beside or [results], score))
    for key, values in summary.measured(model, score, compared=compared).items():
        value, half = summary.with_interval(*values, digits=1 if score == "A" else None)
        best = key in leading
        cells[key] = Cell(
            value,
            half if interval and key not in ends else "",
            best=best and alone,
            tied=best and not alone,
            ends=ends.get(key, ""),
        )
    return Column(model_name(name), cells, facts, name)


def _rows(several: Sequence[Results], columns: Sequence[Column], style: str = "text") -> Iterator[Line]:
    """The lines of a table: facts, headings of groups, estimators; each with its label and its cells."""
    names = estimator_names(*several, style=style)
    for fact in dict.fromkeys(fact for column in columns for fact in column.facts):
        yield "fact", fact, [Cell(column.facts.get(fact, "")) for column in columns]
    for title, group in summary.groups(*several).items():
        shown = [name for name in group if any(name in column.cells for column in columns)]
        if shown and title != "Baseline":
            yield "group", title.lower(), [Cell("")] * len(columns)
        for name in shown:
            yield "estimator", names[name], [column.cells.get(name, Cell("")) for column in columns]


def _add_rows(table: Table, several: Sequence[Results], columns: Sequence[Column]) -> None:
    for kind, label, cells in _rows(several, columns):
        texts = (Text(cell.marked, style="bold" if cell.best else "") for cell in cells)
        table.add_row(Text(label, style="italic" if kind == "group" else ""), *texts)


def _counted(results: Results) -> str:
    counts = summary.opposite_pairs(results)
    return ", ".join(
        f"{model_name(name)} {summary.of_pairs(each)}" for name, each in counts.items() if each.pairs
    )


def _warnings(results: Results, *, brief: bool = False) -> list[str]:
    """What to doubt; what was left out and why, each reason once."""
    fidelities = [each for model in results.models.values() for each in model.fidelity.values()]
    left_out = sorted({words.clause(note) for each in fidelities for note in each.facts})
    return [printable(f"note: {note}") for note in (*summary.doubts(results, brief=brief), *left_out)]
