"""The first screen: the best explanation of every model on example images, and its two curves."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fpa.errors import percent
from fpa.evaluation.examples import Examples
from fpa.evaluation.leading import Leading, leading
from fpa.evaluation.rankings import mean_of_curves
from fpa.evaluation.result import Result, Results
from fpa.show import answers, summary
from fpa.show.names import estimator_names, model_name
from fpa.show.report.pictures import SMALL, heat, inline, rgb
from fpa.show.truths import found_errors
from fpa.show.words.protocols import in_words

ALONE = 5
"""Example images of a single model, for which there is the whole width."""

BESIDE = 3
"""Of one of several."""


class Shown(NamedTuple):
    """An example image with the map of the best explanation."""

    picture: str
    heat: str
    says: str
    """The class explained."""
    wrong: bool


class Label(NamedTuple):
    """A text at a place of the chart, in percent of its width and height."""

    text: str
    x: float
    y: float


class Chart(NamedTuple):
    """The two mean curves of an explanation, as paths in a square of 100 by 100."""

    mif: str
    lif: str
    between: str
    """The area between them."""
    rows: list[Label]
    columns: list[Label]
    names: list[tuple[str, Label]]
    """MIF and LIF, beside their curves: the classes of first.css, and where."""
    spoken: str


class Fact(NamedTuple):
    """A number of a model; what else is known of it is shown on demand."""

    name: str
    value: str
    more: str = ""


class Group(NamedTuple):
    """Models that have the same best explanations."""

    models: list[str]
    names: list[Markup]
    others: int


class Leader(NamedTuple):
    """A model and its best explanation."""

    key: str
    model: str
    names: list[Markup]
    """The best explanations, at most `answers.FEW`."""
    others: int
    """How many more cannot be told apart from the first."""
    none: str
    """Why there is none, in a sentence."""
    area: str
    half: str
    removed: str
    """What the curves remove, in words."""
    output: str
    """What they show, in words."""
    examples: list[Shown]
    small: bool
    """Whether the images are so small that their pixels are shown."""
    chart: Chart | None
    facts: list[Fact]


def leaders(results: Results) -> list[Leader]:
    """One for every model."""
    said = answers.parts(results).best
    count = ALONE if len(results.models) == 1 else BESIDE
    return [_leader(results, key, said.get(key, ""), count) for key in results.models]


def grouped(found: Sequence[Leader]) -> list[Group]:
    """The models with the same best explanations together; those without any are left out."""
    groups: dict[tuple[object, ...], Group] = {}
    for leader in found:
        if leader.names:
            same = (*leader.names, leader.others)
            groups.setdefault(same, Group([], leader.names, leader.others)).models.append(leader.model)
    return list(groups.values())


def leader_of(result: Result) -> Leader:
    """That of a single model, without its facts: whoever shows it has said them."""
    return _leader(result.results, result.name, "", BESIDE)._replace(facts=[])


def _leader(results: Results, key: str, said: str, count: int) -> Leader:
    model = results.models[key]
    found = leading(model)
    explained = bool(found.names) and key not in results.not_above_chance
    names = {name: Markup(text) for name, text in estimator_names(results, style="html").items()}
    few = len(found.names) <= answers.FEW
    area = found.areas[found.names[0]] if found.names else None
    shown = summary.with_interval(area.area, area.interval, digits=1) if area else ("", "")
    examples = model.examples if explained else None
    plan = model.description.plan
    protocol = found.protocol
    features = plan.features if protocol is None else protocol.features
    masking = plan.masking if protocol is None else protocol.masking
    return Leader(
        key=key,
        model="without augmentation" if key == "none" else model_name(key),
        names=[names[name] for name in (found.names if few else found.names[:1])] if explained else [],
        others=0 if few else len(found.names) - 1,
        none="" if explained else said,
        area=shown[0].replace("-", "−"),
        half=shown[1],
        removed=in_words(features, str(masking["name"])),
        output=summary.output_in_words(results),
        examples=[] if examples is None else list(_examples(model, examples, found.names[0], count)),
        small=examples is not None and max(examples.images.shape[2:]) <= SMALL,
        chart=_chart(found) if explained else None,
        facts=list(_facts(results, key, found)),
    )


def _facts(results: Results, key: str, found: Leading) -> Iterator[Fact]:
    """Accuracy, opposite pairs and, where the truth is known, how often the worse map is preferred."""
    model = results.models[key]
    if model.accuracy is not None:
        yield Fact("accuracy", percent(model.accuracy))
    kind, pairs = summary.pairs_counted(results)
    if pairs:
        count = model.reliability.opposite[kind]
        which = "signed–unsigned pairs of explanations" if kind == "signed-unsigned" else "pairs"
        ends = f"95 % interval {count.low:.0f} to {count.high:.0f}"
        more = f"{which} that the two curves rank in opposite order; {ends}"
        yield Fact("opposite pairs", f"{count.value:.0f} of {pairs}", more)
    errors = found_errors(results).get(key)
    if errors is not None:
        protocol = model.description.plan.protocol
        if found.protocol is not None:
            protocol = next(name for name, each in model.by_protocol.items() if each is found.protocol)
        share, half = errors.errors[protocol]["A"]
        if not math.isnan(share):
            more = "" if math.isnan(half) else f"± {100 * half:.1f}, half of its 95 % interval"
            yield Fact("prefers the worse map", percent(share), more)


def _examples(model: Result, examples: Examples, estimator: str, count: int) -> Iterator[Shown]:
    """The first examples with a finite map, of as many classes as there are."""
    maps = examples.maps.get(estimator)
    if maps is None:
        return
    rows = [row for row in range(len(examples.targets)) if np.isfinite(maps[row]).all()]
    seen: dict[int, list[int]] = {}
    for row in rows:
        seen.setdefault(int(examples.targets[row]), []).append(row)
    repeated = {row: place for of_class in seen.values() for place, row in enumerate(of_class)}
    for row in sorted(sorted(rows, key=repeated.__getitem__)[:count]):
        target = int(examples.targets[row])
        label = int(examples.labels[row])
        predicted = model.description.plan.targets == "predicted"
        classes = model.classes
        yield Shown(
            picture=inline(rgb(examples.images[row])),
            heat=inline(heat(maps[row])),
            says=classes[target] if target < len(classes) else f"class {target}",
            wrong=predicted and label >= 0 and label != target,
        )


def _chart(found: Leading) -> Chart:
    """The mean curves of the best explanation by the protocol that decides."""
    name = found.names[0]
    part = found.curves
    x = np.asarray(part.fractions, dtype=np.float64)
    area = found.areas[name]
    mif = mean_of_curves(part, area, "mif", name)[0]
    lif = mean_of_curves(part, area, "lif", name)[0]
    low, high = _range(mif, lif)
    across = 100 * (x - x[0]) / ((x[-1] - x[0]) or 1)
    heights = {side: 100 * (high - values) / (high - low) for side, values in (("mif", mif), ("lif", lif))}
    points = {side: [*zip(across, values, strict=True)] for side, values in heights.items()}
    percents = part.divided
    steps = [value for value in _ticks(low, high) if low <= value <= high]
    shown = [float(x[0]), float(x[-1]) / 2, float(x[-1])]
    return Chart(
        mif=_path(points["mif"]),
        lif=_path(points["lif"]),
        between=_path([*points["lif"], *reversed(points["mif"])]) + "Z",
        rows=[Label(_tick(value, percents), 0, 100 * (high - value) / (high - low)) for value in steps],
        columns=[
            Label(f"{100 * value:.3g} %{' removed' if place == 1 else ''}", 50.0 * place, 100)
            for place, value in enumerate(shown)
        ],
        names=_named(across, heights["mif"], heights["lif"]),
        spoken=f"Mean curves: halfway MIF is at {_tick(_half(mif), percents)}, "
        f"LIF at {_tick(_half(lif), percents)}",
    )


def _half(values: NDArray[np.float64]) -> float:
    return float(values[len(values) // 2])


def _range(*curves: NDArray[np.float64]) -> tuple[float, float]:
    """From the lowest value to the highest, 0 among them, with a little room."""
    known = [0.0, *np.concatenate(curves)[np.isfinite(np.concatenate(curves))].tolist()]
    low = min(known)
    high = max(known)
    room = 0.14 * ((high - low) or 1)
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """Two to five round values."""
    raw = (high - low) / 3
    power = 10 ** math.floor(math.log10(raw))
    step = power * next(each for each in (1, 2, 5, 10) if each * power >= raw * 0.999)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _tick(value: float, percents: bool) -> str:
    text = f"{100 * value:.0f} %" if percents else f"{value:.3g}"
    return text.replace("-", "−")


def _path(points: Sequence[tuple[float, float]]) -> str:
    known = [(x, y) for x, y in points if math.isfinite(y)]
    return "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in known) if known else ""


def _named(
    across: NDArray[np.float64], mif: NDArray[np.float64], lif: NDArray[np.float64]
) -> list[tuple[str, Label]]:
    """The names of the curves where these are far apart, each on the far side of the other curve."""
    inner = slice(1, -1) if len(across) > 2 else slice(None)
    gap = np.nan_to_num(mif - lif)[inner]  # heights grow downwards
    at = int(np.abs(gap).argmax()) + (1 if len(across) > 2 else 0)
    x = float(min(max(across[at], 12), 88))
    below = "mif" if mif[at] >= lif[at] else "lif"
    return [
        (f"{side} {'below' if side == below else 'above'}", Label(side.upper(), x, float(values[at])))
        for side, values in (("mif", mif), ("lif", lif))
    ]
