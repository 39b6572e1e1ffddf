"""What the numbers of a table cover: where MIF and LIF contradict each other, which pairs can be ordered."""

from collections.abc import Collection

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from fpa.errors import percent
from fpa.evaluation.result import Results
from fpa.notes import Kind
from fpa.show import words
from fpa.show.names import estimator_names, model_name

TITLE = "A of the row minus A of the column"
MARKS = (
    "Paired t-tests over images, Holm-corrected over all pairs; the marks of the table come from the same. "
    "=: no significant difference; !: surely in opposite order by MIF and LIF. Neither kind of pair can be "
    "ordered."
)
_MOST = 10  # columns that a terminal of 80 characters has room for


def matrix(
    results: Results, model: str, style: str = "text", most: int | None = None
) -> list[tuple[str, list[str]]]:
    """For every explanation, best first: its name, and its A minus that of each before it, with a mark."""
    agreement = results.models[model].reliability
    names = estimator_names(results, style=style, most=most)
    differences = agreement.matrix()
    marks = agreement.marks()
    lines = []
    for place, row in enumerate(agreement.by_area):
        before = agreement.by_area[:place]
        cells = [f"{differences.loc[row, other]:+.1f}{marks.loc[row, other]}" for other in before]
        lines.append((names[row], cells))
    return lines


def for_terminal(results: Results) -> list[RenderableType]:
    """The matrix of the first model with its heading; nothing where there are no pairs."""
    if not results.first.reliability.pairs:
        return []
    lines = matrix(results, results.first.name, most=20)
    if len(lines) > _MOST:
        return [Text(f"\nThe report has the matrix of {len(lines)} x {len(lines)} paired tests.", "dim")]
    columns = (Column(str(place), justify="right") for place in range(1, len(lines)))
    table = Table("", *columns, box=None, padding=(0, 1, 0, 0))
    for place, (name, cells) in enumerate(lines, 1):
        table.add_row(Text(f"{place} {name}"), *cells)
    return [Text(f"\n{TITLE}", "bold"), table, Text(MARKS, "dim")]


IN_A_TERMINAL = (Kind.NOT_CONSISTENT, Kind.NEAR_DUPLICATES)
"""What a terminal has room for: no long lists of pairs."""


BY_KIND = (Kind.CONSISTENT, Kind.NOT_CONSISTENT)
"""Where MIF and LIF contradict each other, by kind of pair."""


def sentences(results: Results, kinds: Collection[Kind] | None = None) -> list[str]:
    """For every model: where MIF and LIF contradict each other, and which pairs cannot be ordered.

    With `kinds`, only notes of these.
    """
    several = len(results.models) > 1
    reader = words.Reader(estimator_names(results))
    lines: list[str] = []
    for name, model in results.models.items():
        of = f"{model_name(name)}: " if several else ""
        notes = model.reliability.facts(most=3 if several else 6)
        lines += [of + words.sentence(note, reader) for note in notes if kinds is None or note.kind in kinds]
    return lines


def unchecked(results: Results) -> list[str]:
    """Whose accuracy could not be compared with chance, in a sentence."""
    names = [
        model_name(name)
        for name, model in results.models.items()
        if model.accuracy is not None and model.evaluation.chance is None
    ]
    of = f" of {', '.join(names)}" if len(results.models) > 1 else ""
    return [f"The accuracy{of} was not compared with chance: all labels are of one class."] if names else []


def heads(results: Results) -> list[str]:
    """How far the heads of the models are from centred, in a sentence."""
    shown = {name: model.head.offset for name, model in results.models.items() if model.head is not None}
    what = "Offset of the head (the mean of all logits as a share of the centred logit)"
    names = {name: f"{model_name(name)} " if len(shown) > 1 else "" for name in shown}
    each = (f"{names[name]}{percent(offset)}" for name, offset in shown.items())
    return [f"{what}: {', '.join(each)}."] if shown else []
