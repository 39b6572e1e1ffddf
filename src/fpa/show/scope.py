"""What the numbers of a table cover: where MIF and LIF contradict each other, which pairs can be ordered."""

from collections.abc import Collection

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from fpa.errors import counted, percent
from fpa.evaluation.result import Results
from fpa.notes import Kind
from fpa.show import summary, words
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


BY_PAIR = (Kind.CONTRADICTIONS, Kind.TIES, Kind.NEAR_DUPLICATES, Kind.IN_ALL_OPPOSITE)
"""Which pairs cannot be ordered, and which maps are in none."""


def sentences(results: Results, kinds: Collection[Kind] | None = None) -> list[str]:
    """For every model: where MIF and LIF contradict each other, and which pairs cannot be ordered.

    With `kinds`, only notes of these.
    """
    several = len(results.models) > 1
    lines: list[str] = []
    for name in results.models:
        of = f"{model_name(name)}: " if several else ""
        lines += [of + line for line in of_model(results, name, kinds)]
    return lines


def of_model(results: Results, name: str, kinds: Collection[Kind] | None = None) -> list[str]:
    """The same of one model, without its name."""
    reader = words.Reader(estimator_names(results))
    notes = results.models[name].reliability.facts(most=3 if len(results.models) > 1 else 6)
    return [words.sentence(note, reader) for note in notes if kinds is None or note.kind in kinds]


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


def left_out_for_their_class(results: Results) -> list[str]:
    """How many images do not count because the class explained, another than predicted, has no evidence."""
    plan = results.first.description.plan
    if plan.targets == "predicted" or not results.first.evaluation.divided:
        return []
    why = f"left out: the {summary.output_in_words(results)} of the class explained is not positive"
    lines = []
    for name, model in results.models.items():
        unmasked = model.evaluation.unmasked
        if count := int((unmasked <= 0).sum()):
            whose = "" if len(results.models) == 1 else f"{model_name(name)}: "
            lines.append(f"{whose}{count:,} of {counted(len(unmasked))} {why}.")
    return lines


def left_out(results: Results) -> list[str]:
    """How many images do not count, and why, in sentences; those of several models for one reason in one."""
    if lines := left_out_for_their_class(results):
        return lines
    by_reason: dict[str, list[str]] = {}
    for name, model in results.models.items():
        notes = [note for each in model.fidelity.values() for note in each.facts]
        # What another model of the study left out, that one says itself.
        own = [note for note in notes if note.kind is Kind.LEFT_OUT and note.values["reason"] != "excluded"]
        for reason in dict.fromkeys(map(words.clause, own)):
            by_reason.setdefault(reason, []).append(model_name(name))
    several = len(results.models) > 1
    return [f"{', '.join(names) + ': ' if several else ''}{why}." for why, names in by_reason.items()]
