"""Can the evaluation of explanations on this model be trusted? A verdict by a fixed rule, with its evidence.

The rule (`judge`) sees only what the model says to images, masked and unmasked, never how it was trained.
Its thresholds are the constants below, and docs/audit.md gives the reasons for them.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fpa import __version__
from fpa.blocks import Tell, blocks_of, predicted, telling
from fpa.curves import check_features, check_fractions, curves_of
from fpa.data import Normalisation
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.estimators import (
    PAPER,
    Estimator,
    Estimators,
    Settings,
    get_estimators,
    gradients_per_image,
    maps_of,
    needs_numbers,
)
from fpa.fidelity import Estimate, Fidelity, Reliability, ranking_agreement, reliability, share_kept
from fpa.inputs import (
    ImageBatches,
    as_normalisation,
    classifier,
    image_batches,
    input_channels,
    warn_of_probabilities,
)
from fpa.masking import Constant, Masking, get_masking
from fpa.names import estimator_name
from fpa.recipe import suggested_fpa
from fpa.results import above_chance
from fpa.store import writable_folder, write_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Verdict = Literal["reliable", "unreliable", "cannot tell"]
State = Literal["good", "bad", "unclear"]

EXIT_CODES: dict[Verdict, int] = {"reliable": 0, "unreliable": 3, "cannot tell": 4}

FEWEST_IMAGES = 100
"""Fewer images that can be used: cannot tell."""
FEWEST_PAIRS = 6
"""Fewer pairs of a signed and an unsigned estimator: cannot tell."""
MOST_OPPOSITE = 1 / 4
"""The share of signed-unsigned pairs ordered oppositely by MIF and LIF must lie below."""
LEAST_KEPT = 0.8
"""The share of the logit kept with 10 % of the pixels masked at random must lie above."""
SAME_RANKING = 0.7
"""Spearman's correlation of A with that under another masking: above it, the ranking survives."""

MASKINGS = ("constant", "mean", "blur", "uniform")
MASKED = (10, 25, 50)
"""Percent of the pixels masked at random at which logit and accuracy are reported; the first is judged."""


@dataclass(frozen=True)
class Evidence:
    """Everything the rule sees, and what supports it; intervals are 95 %, from resampling images."""

    images: int
    """Images given."""
    used: int
    """Of them those with finite curves and a positive unmasked logit."""
    classes: int
    accuracy: float | None
    """Of the unmasked images whose label is known; None where none is."""
    labels: int
    """How many labels are known."""
    logit_change: float
    """How much masking everything changes the logit of the predicted class, mean over images."""
    logit_spread: float
    """Standard deviation over images of the unmasked logit of the predicted class."""
    pairs: int = 0
    """Pairs of a signed and an unsigned estimator."""
    opposite: Estimate | None = None
    """Of them those that MIF and LIF order oppositely; None where fewer than two images can be used."""
    contradictions: int = 0
    """Of these, those where both differences are significant."""
    correlation: Estimate | None = None
    """Spearman's correlation of the ranking by MIF with that by LIF, over all estimators."""
    kept: dict[int, Estimate] = field(default_factory=dict)
    """By percent masked at random: the mean logit as a share of the unmasked one."""
    right: dict[int, Estimate] = field(default_factory=dict)
    """By percent masked at random, and 0: the accuracy of images whose label is known; where none is, the
    share predicted as before. Empty where fewer than two labelled images can be used."""
    rise: dict[str, Estimate] = field(default_factory=dict)
    """By signed estimator: LIF over the first 10 % of the pixels, relative to the unmasked logit, minus 1."""
    kept_by_masking: dict[str, Estimate] = field(default_factory=dict)
    """By masking: the share of the logit kept with 10 % of the pixels masked at random."""
    agreement: dict[str, Estimate] = field(default_factory=dict)
    """By other masking: Spearman's correlation of A with that under the masking judged."""


class Criterion(NamedTuple):
    """A number of the evidence with the limit that the rule sets it."""

    found: Estimate
    limit: float
    good: Literal["below", "above"]

    @property
    def state(self) -> State:
        """Whether the whole interval lies on the good side of the limit, on the bad one, or across it."""
        below, above = self.found.high < self.limit, self.found.low > self.limit
        if not below and not above:
            return "unclear"
        return "good" if below == (self.good == "below") else "bad"


def criteria(evidence: Evidence) -> dict[str, Criterion]:
    """What the verdict depends on; empty where too few images could be used to measure it."""
    if evidence.opposite is None:
        return {}
    return {
        "opposite": Criterion(evidence.opposite, MOST_OPPOSITE * evidence.pairs, "below"),
        "kept": Criterion(evidence.kept[MASKED[0]], LEAST_KEPT, "above"),
    }


def judge(evidence: Evidence) -> tuple[Verdict, tuple[str, ...]]:
    """The rule: a verdict, and the sentences that say why.

    In this order:

    1. Nothing to explain (accuracy not above chance, or masking everything changes the logit by no more
       than its spread over images), fewer than `FEWEST_IMAGES` images or `FEWEST_PAIRS` pairs: cannot tell.
    2. A criterion's whole interval on the bad side of its limit: unreliable.
    3. Every criterion's whole interval on the good side: reliable.
    4. Otherwise an interval lies across a limit: cannot tell.

    >>> found = Evidence(
    ...     images=500, used=500, classes=10, accuracy=0.9, labels=500, logit_change=9, logit_spread=2,
    ...     pairs=18, opposite=Estimate(16, 14, 17), contradictions=15, kept={10: Estimate(0.5, 0.48, 0.52)},
    ... )
    >>> judge(found)[0], judge(replace(found, used=80))[0]
    ('unreliable', 'cannot tell')
    """
    stops, judged = _stops(evidence), criteria(evidence)
    states = {criterion.state for criterion in judged.values()}
    verdict: Verdict = "cannot tell"
    if not stops and "bad" in states:
        verdict = "unreliable"
    elif not stops and states == {"good"}:
        verdict = "reliable"
    worst_first = sorted(judged.items(), key=lambda item: ("bad", "unclear", "good").index(item[1].state))
    said = [_SENTENCES[name][criterion.state](evidence) for name, criterion in worst_first]
    return verdict, (*stops, *said)


def _stops(evidence: Evidence) -> list[str]:
    """Why there is no verdict, whatever the criteria say."""
    found = []
    chance = 1 / evidence.classes
    if evidence.accuracy is not None and not above_chance(
        evidence.accuracy, evidence.labels, evidence.classes
    ):
        found.append(
            f"Nothing to explain: the accuracy, {_percent(evidence.accuracy)} of {evidence.labels} images, "
            f"is not above chance ({_percent(chance)})."
        )
    if not abs(evidence.logit_change) > evidence.logit_spread:
        found.append(
            f"Nothing to explain: masking everything changes the logit by {abs(evidence.logit_change):.2g} "
            f"on average, no more than its spread over images ({evidence.logit_spread:.2g})."
        )
    if evidence.used < FEWEST_IMAGES:
        left = evidence.images - evidence.used
        why = f" ({left} of {evidence.images} have no finite curves or no positive logit)" if left else ""
        found.append(
            f"Too few images: {evidence.used} could be used{why}, at least {FEWEST_IMAGES} are needed."
        )
    if evidence.opposite is not None and evidence.pairs < FEWEST_PAIRS:
        found.append(
            f"Too few estimators: {evidence.pairs} pairs of a signed and an unsigned one, "
            f"at least {FEWEST_PAIRS} are needed."
        )
    return found


def _opposite(ending: str) -> Any:
    def sentence(evidence: Evidence) -> str:
        found, limit = evidence.opposite, MOST_OPPOSITE * evidence.pairs
        assert found is not None
        return (
            f"MIF and LIF order {found.value:.0f} of {evidence.pairs} pairs of a signed and an unsigned "
            f"estimator oppositely (95 % interval {found.low:.0f} to {found.high:.0f}, "
            f"{evidence.contradictions} significantly; {ending} {limit:.3g})."
        )

    return sentence


def _kept(ending: str) -> Any:
    def sentence(evidence: Evidence) -> str:
        found = evidence.kept[MASKED[0]]
        return (
            f"With {MASKED[0]} % of the pixels masked at random the logit keeps {_percent(found.value)} of "
            f"its size ({_percent(found.low)} to {_percent(found.high)}; {ending} {_percent(LEAST_KEPT)})."
        )

    return sentence


_SENTENCES = {
    "opposite": {
        "good": _opposite("below the limit of"),
        "bad": _opposite("above the limit of"),
        "unclear": _opposite("across the limit of"),
    },
    "kept": {
        "good": _kept("above the limit of"),
        "bad": _kept("below the limit of"),
        "unclear": _kept("across the limit of"),
    },
}

MEANINGS: dict[Verdict, str] = {
    "reliable": "masking pixels of this model tests the explanations.",
    "unreliable": "masking pixels of this model tests the model, not the explanations.",
    "cannot tell": "it stays open whether masking pixels of this model tests the explanations.",
}


class Row(NamedTuple):
    """A line of the evidence, in words."""

    group: str
    what: str
    found: str
    interval: str
    limit: str
    state: str
    """What it means: good, bad, unclear; for supporting evidence its own word."""


@dataclass(frozen=True, eq=False)
class Audit:
    """What `fpa.audit` found. `print` shows it, `report` writes it as a page, `save` as JSON."""

    verdict: Verdict
    because: tuple[str, ...]
    """The sentences that say why."""
    evidence: Evidence
    advice: tuple[str, ...]
    """What to do about it, in sentences."""
    command: str
    """What the advice says to type; empty where there is nothing to type."""
    maskings: tuple[str, ...]
    """The masking judged, then the others."""
    signed: dict[str, bool]
    """Whether an estimator is signed."""
    fractions: tuple[float, ...]
    """Of the pixels masked, along the curves."""
    kept: tuple[Estimate, ...] = ()
    """The share of the logit kept along random masking, a value a fraction."""
    right: tuple[Estimate, ...] = ()
    """The accuracy (or agreement) along random masking."""
    areas: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    """A by masking and estimator, in percent."""
    reliability: Reliability | None = None
    name: str = ""
    """What was audited, in words."""
    made_with: dict[str, Any] = field(default_factory=dict)
    """Numbers of the estimators, seed, device, precision and versions."""

    @property
    def exit_code(self) -> int:
        """0 reliable, 3 unreliable, 4 cannot tell."""
        return EXIT_CODES[self.verdict]

    @property
    def headline(self) -> str:
        """The verdict in a sentence."""
        return f"{self.verdict.capitalize()}: {MEANINGS[self.verdict]}"

    @property
    def rows(self) -> list[Row]:
        """The evidence as lines of a table."""
        return list(_rows(self))

    def report(self, path: Path | str) -> Path:
        """Write the verdict and its evidence as one HTML file that loads nothing."""
        from fpa.report.trust import write_audit

        return write_audit(self, path)

    def save(self, path: Path | str) -> Path:
        """Write everything as JSON; what is not a number is null."""
        target = Path(path)
        writable_folder(target.parent)
        write_text(target, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")
        return target

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as in audit.json."""
        values = {
            "format": 1,
            "name": self.name,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "headline": self.headline,
            "because": self.because,
            "advice": self.advice,
            "command": self.command,
            "thresholds": {
                "fewest_images": FEWEST_IMAGES,
                "fewest_pairs": FEWEST_PAIRS,
                "most_opposite": MOST_OPPOSITE,
                "least_kept": LEAST_KEPT,
                "same_ranking": SAME_RANKING,
            },
            "evidence": {name: getattr(self.evidence, name) for name in Evidence.__dataclass_fields__},
            "maskings": self.maskings,
            "fractions": self.fractions,
            "kept": self.kept,
            "right": self.right,
            "areas": self.areas,
            "signed": self.signed,
            "made_with": self.made_with,
            "pairs": [] if self.reliability is None else [asdict(pair) for pair in self.reliability.pairs],
        }
        return {name: _plain(value) for name, value in values.items()}

    def __repr__(self) -> str:
        from io import StringIO

        from rich.console import Console

        file = StringIO()
        Console(file=file, width=80, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def _repr_html_(self) -> str:
        from fpa.report.trust import audit_fragment

        return audit_fragment(self)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        yield Text(self.headline, style=f"bold {_COLOURS[self.verdict]}")
        for sentence in self.because:
            yield Padding(Text(sentence), (0, 0, 0, 2), expand=False)
        rows = self.rows
        if rows:
            table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
            table.add_column(f"evidence, {self.evidence.used:,} images")
            for column in ("found", "95 % interval"):
                table.add_column(column, justify="right", no_wrap=True)
            table.add_column("limit", no_wrap=True)
            table.add_column("")
            group = ""
            for row in rows:
                if row.group != group:
                    group = row.group
                    table.add_row(Text(group, style="italic"))
                state = Text(row.state, style=_STATES.get(row.state, ""))
                table.add_row(
                    Text(f"  {estimator_name(row.what)}"), row.found, row.interval, row.limit, state
                )
            yield Text()
            yield table
        yield Text()
        yield Text("What to do", style="bold")
        for sentence in self.advice:
            yield Padding(Text(sentence), (0, 0, 0, 2), expand=False)
        if self.command:
            yield Padding(Text(self.command, style="bold"), (0, 0, 0, 4), expand=False)


_COLOURS = {"reliable": "green", "unreliable": "red", "cannot tell": "yellow"}
_STATES = {"good": "green", "bad": "red", "unclear": "yellow"}


def audit(
    model: nn.Module | Engine,
    loader: Any,
    *,
    estimators: Estimators = "paper",
    count: int | None = None,
    settings: Settings | None = None,
    maskings: Sequence[str | Masking] = MASKINGS,
    points: int = 21,
    features: str | int = "pixels",
    seed: int = 0,
    normalisation: Normalisation | None = None,
    device: torch.device | str | None = None,
    name: str = "",
    progress: bool | Tell = True,
) -> Audit:
    """Can the evaluation of explanations on this model be trusted? See docs/audit.md for the rule.

    - `loader`: images [N, C, H, W], (images, labels), or anything that yields such batches, see
      `fpa.inputs.image_batches`, which also says what `normalisation` is for. Without labels the agreement
      with the unmasked prediction stands in for the accuracy.
    - `estimators`: at least one signed and one unsigned; random masking is measured in any case.
    - `count`: how many images, the first of the loader; default all.
    - `maskings`: what removing a pixel means. The first is judged; the others, with the same maps, tell
      whether the ranking of the estimators survives another one.
    - `points`: of a perturbation curve.
    - `features`: what is removed, "pixels" or the side of square patches (16 for most vision transformers).
    - `device`: where to work; by default where the model is.
    - `name`: what is audited, for the page.

    >>> import fpa
    >>> from fpa.data import load_data
    >>> data = load_data("shapes")
    >>> images, labels = data.normalisation(data.test.images[:8]), data.test.labels[:8]
    >>> quick = Settings(ig_steps=5, sg_samples=2)
    >>> found = audit(fpa.load_model("shapes-fpa"), (images, labels), settings=quick, progress=False)
    >>> found.verdict, found.exit_code, found.because[0]
    ('cannot tell', 4, 'Too few images: 8 could be used, at least 100 are needed.')
    """
    named, chosen = _with_random(get_estimators(estimators)), settings or Settings()
    signed = {name: one.signed for name, one in named.items() if name != "random"}
    if len(set(signed.values())) < 2:
        raise InputError(
            "an audit needs at least one signed and one unsigned estimator (as in the set paper), got "
            + (", ".join(signed) or "none besides random")
        )
    if count is not None and count < 1:
        raise InputError(f"count must be at least 1, got {count}")
    normalisation = as_normalisation(normalisation)
    by_name = _named_maskings(maskings, normalisation)
    fractions = sorted({*check_fractions(points), *(percent / 100 for percent in MASKED)})
    inner = model.model if isinstance(model, Engine) else model
    batches = image_batches(loader, normalisation, input_channels(inner))
    if needs_numbers(named):
        batches.check_numbers()
    _check_enough(features, batches.first)
    engine = model if isinstance(model, Engine) else Engine(classifier(model, batches.first, device))
    warn_of_probabilities(engine.predict(batches.first))
    curves = _measure(engine, batches, named, chosen, by_name, fractions, features, seed, count, progress)
    evidence, figures = _evidence(curves, signed, fractions)
    verdict, because = judge(evidence)
    advice, command = _advice(verdict, evidence, curves.size, next(iter(by_name.values())))
    return Audit(
        verdict=verdict,
        because=because + _scope(verdict, evidence, next(iter(by_name))),
        evidence=evidence,
        advice=advice,
        command=command,
        maskings=tuple(by_name),
        signed=signed,
        fractions=tuple(curves.fractions.tolist()),
        name=name,
        made_with={
            "images": f"{curves.size[0]} x {curves.size[1]} pixels",
            "features": features,
            "ig_steps": chosen.ig_steps,
            "sg_samples": chosen.sg_samples,
            "sigma": chosen.sigma,
            "seed": seed,
            "device": engine.device.type,
            "gradients": engine.precision.gradients,
            "forwards": engine.precision.forwards,
            "fpa": __version__,
            "torch": torch.__version__,
        },
        **figures,
    )


class _Curves(NamedTuple):
    """What the model said of every image; the curves by masking and estimator, [N, K] each."""

    labels: NDArray[Any]
    targets: NDArray[Any]
    unmasked: NDArray[Any]
    mif: dict[str, dict[str, NDArray[Any]]]
    lif: dict[str, dict[str, NDArray[Any]]]
    shares: dict[str, dict[str, NDArray[Any]]]
    """By "mif" and "lif", and estimator, where patches differ in size: the share of the pixels masked."""
    right: NDArray[Any]
    """[N, K]: whether the class is still the right one under random masking, mean of two draws."""
    fractions: NDArray[Any]
    classes: int
    size: tuple[int, int]


def _measure(
    engine: Engine,
    batches: ImageBatches,
    estimators: Mapping[str, Estimator],
    settings: Settings,
    maskings: Mapping[str, Masking],
    fractions: Sequence[float],
    features: str | int,
    seed: int,
    count: int | None,
    progress: bool | Tell,
) -> _Curves:
    """Every image is explained once, under the first masking, and perturbed under each."""
    judged = next(iter(maskings))
    total = count if batches.dataset is None else min(len(batches.dataset), count or len(batches.dataset))
    inner = sum(0 < fraction < 1 for fraction in fractions)
    per_image = gradients_per_image(estimators, settings) + 2 * inner * len(estimators) * len(maskings)
    engine.expected_rows = max(engine.expected_rows, (total or 0) * per_image)
    blocks: list[dict[tuple[str, ...], Tensor]] = []
    with telling(total, progress) as tell:
        for images, labels, indices in blocks_of(_first(batches, count), None, engine, settings):
            images = engine.images(images)
            logits, targets, truth = predicted(engine, images, labels)
            maps = maps_of(engine, images, estimators, targets, indices, seed, settings, maskings[judged])
            block: dict[tuple[str, ...], Tensor] = {("labels",): labels, ("targets",): targets}
            for name, masking in maskings.items():
                curves = curves_of(
                    engine, images, maps, fractions, logits, targets, indices, seed, masking, features,
                    ("accuracy",) if name == judged else (), truth,
                )  # fmt: skip
                for estimator in maps:
                    block["mif", name, estimator] = curves.mif[estimator]
                    block["lif", name, estimator] = curves.lif[estimator]
                if name == judged:
                    accuracy = curves.others["accuracy"]
                    block["unmasked",] = curves.unmasked
                    block["right",] = (accuracy.mif["random"] + accuracy.lif["random"]) / 2
                    for side, exact in (("mif", curves.shares_mif), ("lif", curves.shares_lif)):
                        block |= {("share", side, one): values for one, values in (exact or {}).items()}
            blocks.append({key: values.cpu() for key, values in block.items()})
            tell.advance(len(indices))
    if not blocks:
        raise InputError("there are no images: the data are empty")
    joined = {key: torch.cat([block[key] for block in blocks]).numpy() for key in blocks[0]}

    def by_masking(side: str) -> dict[str, dict[str, NDArray[Any]]]:
        return {name: {one: joined[side, name, one] for one in estimators} for name in maskings}

    return _Curves(
        joined["labels",],
        joined["targets",],
        joined["unmasked",],
        by_masking("mif"),
        by_masking("lif"),
        {
            side: {one: joined["share", side, one] for one in estimators if ("share", side, one) in joined}
            for side in ("mif", "lif")
        },
        joined["right",],
        curves.fractions.numpy(),
        logits.shape[1],
        (images.shape[2], images.shape[3]),
    )


def _evidence(
    curves: _Curves, signed: Mapping[str, bool], fractions: Sequence[float]
) -> tuple[Evidence, dict[str, Any]]:
    """The evidence, and the numbers of the figures."""
    judged, *others = curves.mif
    known = curves.labels >= 0
    finite = np.isfinite(curves.unmasked)
    everything = curves.mif[judged]["random"][:, -1]
    change = (curves.unmasked - everything)[finite & np.isfinite(everything)]
    spread = curves.unmasked[finite]
    evidence = Evidence(
        images=len(curves.labels),
        used=0,
        classes=curves.classes,
        accuracy=float((curves.labels == curves.targets)[known].mean()) if known.any() else None,
        labels=int(known.sum()),
        logit_change=float(change.mean()) if change.size else math.nan,
        logit_spread=float(spread.std(ddof=1)) if spread.size > 1 else math.nan,
    )
    usable = finite & (curves.unmasked > 0)
    for side in (curves.mif, curves.lif):
        for one in side.values():
            usable &= np.all([np.isfinite(values).all(axis=1) for values in one.values()], axis=0)
    if usable.sum() < 2:
        return replace(evidence, used=int(usable.sum())), {}

    fidelity = {
        name: {
            one: Fidelity.from_curves(
                curves.mif[name][one],
                curves.lif[name][one],
                curves.shares["mif"].get(one, curves.fractions),
                fractions_lif=curves.shares["lif"].get(one, curves.fractions),
                keep=usable,
            )
            for one in curves.mif[name]
        }
        for name in curves.mif
    }
    unmasked = curves.unmasked[usable].astype(np.float64)

    def random(name: str) -> list[Estimate]:
        """The share of the logit kept along random masking: MIF and LIF of a random map are two draws."""
        return share_kept((curves.mif[name]["random"] + curves.lif[name]["random"])[usable] / 2, unmasked)

    kept = {name: random(name) for name in curves.mif}
    labelled = usable & known if known.any() else usable
    right = share_kept(curves.right[labelled], np.ones(labelled.sum())) if labelled.sum() > 1 else []
    at = {percent: fractions.index(percent / 100) for percent in MASKED}
    early = [place for place, fraction in enumerate(fractions) if 0 < fraction <= MASKED[0] / 100]
    reliable = reliability(fidelity[judged], signed)
    pairs = [pair for pair in reliable.pairs if pair.kind == "signed-unsigned"]

    def rise(name: str) -> Estimate:
        start = curves.lif[judged][name][usable][:, early].mean(axis=1, keepdims=True)
        return Estimate(*(value - 1 for value in share_kept(start, unmasked)[0]))

    evidence = replace(
        evidence,
        used=int(usable.sum()),
        pairs=len(pairs),
        opposite=reliable.opposite["signed-unsigned"],
        contradictions=sum(pair.contradiction for pair in pairs),
        correlation=reliable.correlation["all"],
        kept={percent: kept[judged][place] for percent, place in at.items()},
        right={percent: right[place] for percent, place in {0: 0, **at}.items() if right},
        rise={name: rise(name) for name, is_signed in signed.items() if is_signed},
        kept_by_masking={name: values[at[MASKED[0]]] for name, values in kept.items()},
        agreement={name: ranking_agreement(fidelity[judged], fidelity[name]) for name in others},
    )
    areas = {
        name: {
            one: Estimate(score.area, score.area - score.interval, score.area + score.interval)
            for one, score in scores.items()
        }
        for name, scores in fidelity.items()
    }
    figures = {"kept": tuple(kept[judged]), "right": tuple(right), "areas": areas, "reliability": reliable}
    return evidence, figures


def _advice(
    verdict: Verdict, evidence: Evidence, size: tuple[int, int], masking: Masking
) -> tuple[tuple[str, ...], str]:
    """What to do, in sentences, and what to type in Python."""
    if verdict == "reliable":
        return ("Evaluate explanations on this model with the masking that was judged here.",), ""
    if verdict == "unreliable":
        fpa = suggested_fpa(*size)
        settings = f"p={fpa.p:g}, p1_max={fpa.p1_max:g}, p2={fpa.p2:g}, s_max={fpa.s_max}"
        same = "" if masking == Constant() else f", masking={masking!r}"
        return (
            "Do not choose between explanations by masking pixels of this model as it is.",
            f"Fine-tune it with FPA for a few epochs and audit it again. Settings for images of "
            f"{size[0]} x {size[1]} pixels: {settings}.",
        ), f"tuned = fpa.finetune(model, data, fpa=fpa.FPA({settings}{same}))"
    stops = " ".join(_stops(evidence))
    advice = []
    if "accuracy" in stops:
        advice.append("Check the labels, the order of the classes and the normalisation; or train the model.")
    if "masking everything" in stops:
        advice.append("Check that the model sees the images, or judge a masking that removes more.")
    if "few images" in stops:
        advice.append(f"Audit at least {FEWEST_IMAGES} images; 1,000 give narrow intervals.")
    if "few estimators" in stops:
        advice.append("Audit with more estimators, such as the set paper.")
    if not stops:
        advice.append("Audit more images: four times as many halve the intervals.")
    return tuple(advice), ""


def _scope(verdict: Verdict, evidence: Evidence, judged: str) -> tuple[str, ...]:
    """For which maskings a good verdict does not hold."""
    differ = [name for name, found in evidence.agreement.items() if not found.low > SAME_RANKING]
    if verdict != "reliable" or not differ:
        return ()
    under = " and ".join(filter(None, (", ".join(differ[:-1]), differ[-1])))
    return (
        f"The verdict holds for the masking {judged}: under {under} the ranking of the estimators may be "
        "another one.",
    )


def _rows(audit: Audit) -> Iterator[Row]:
    evidence, judged = audit.evidence, criteria(audit.evidence)
    if not judged:
        return
    opposite, kept = judged["opposite"], judged["kept"]
    low, high = opposite.found.low, opposite.found.high
    yield Row(
        "The rule", "pairs ordered oppositely", f"{opposite.found.value:.0f} of {evidence.pairs}",
        f"{low:.0f} to {high:.0f}", f"under {opposite.limit:.3g}", opposite.state,
    )  # fmt: skip
    limit = f"over {_percent(kept.limit)}"
    yield Row("The rule", f"logit kept, {MASKED[0]} % masked", *_shares(kept.found), limit, kept.state)
    yield Row("MIF against LIF", "pairs significantly opposite", f"{evidence.contradictions}", "", "", "")
    if evidence.correlation is not None:
        yield Row("MIF against LIF", "rank correlation, all", *_correlation(evidence.correlation), "", "")
    under = "Random masking"
    for percent in MASKED[1:]:
        yield Row(under, f"logit kept, {percent} % masked", *_shares(evidence.kept[percent]), "", "")
    for name in audit.maskings[1:]:
        found = evidence.kept_by_masking[name]
        yield Row(under, f"logit kept, {MASKED[0]} % {name}", *_shares(found), "", "")
    what = "same class" if evidence.accuracy is None else "accuracy"
    for percent, found in evidence.right.items():
        yield Row(under, f"{what}, {percent} % masked", *_shares(found), "", "")
    for name, found in evidence.rise.items():
        word = "rises" if found.low > 0 else "falls" if found.high < 0 else "unclear"
        yield Row(f"LIF over the first {MASKED[0]} %", name, *_shares(found, "+"), "", word)
    for name, found in evidence.agreement.items():
        state = Criterion(found, SAME_RANKING, "above").state
        word = {"good": "survives", "bad": "differs"}.get(state, "unclear")
        limit = f"over {SAME_RANKING:g}"
        yield Row("Ranking under another masking", name, *_correlation(found), limit, word)


def _correlation(found: Estimate) -> tuple[str, str]:
    return f"{found.value:.2f}", f"{found.low:.2f} to {found.high:.2f}"


def _shares(found: Estimate, sign: str = "") -> tuple[str, str]:
    low, high = (_percent(end, sign).removesuffix(" %") for end in found[1:])
    return _percent(found.value, sign), f"{low} to {high} %"


def _percent(share: float, sign: str = "") -> str:
    """A share for people: one digit after the point, no minus sign before a zero.

    >>> _percent(0.8), _percent(-0.0001), _percent(0.051, "+")
    ('80.0 %', '0.0 %', '+5.1 %')
    """
    return f"{round(100 * share, 1) + 0.0:{sign}.1f} %"


def _with_random(estimators: Mapping[str, Estimator]) -> dict[str, Estimator]:
    given = estimators.get("random", PAPER["random"])
    if given.raw != "random":
        raise InputError(
            "the name 'random' is that of the random baseline: call the estimator something else"
        )
    return {"random": given, **estimators}


def _check_enough(features: str | int, images: Tensor) -> None:
    """Refuse patches so large that the first share of `MASKED` is less than one of them."""
    found, needed = check_features(features, images[:1]).most, 100 // MASKED[0]
    if found < needed:
        raise InputError(
            f"an audit masks {MASKED[0]} % of the features of an image, so it needs at least {needed}; "
            f"images of {images.shape[2]} x {images.shape[3]} pixels have {found} (features {features}): "
            "use smaller patches"
        )


def _named_maskings(
    maskings: Sequence[str | Masking], normalisation: Normalisation | None
) -> dict[str, Masking]:
    given = [maskings] if isinstance(maskings, str) else list(maskings)
    names = [
        one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__).lower() for one in given
    ]
    if not given or len(set(names)) < len(names):
        raise InputError(f"maskings must be one or more different ones, got {', '.join(names) or 'none'}")
    scale = (normalisation.mean, normalisation.std) if normalisation else (None, None)
    return {name: get_masking(one, *scale) for name, one in zip(names, given, strict=True)}


def _first(batches: ImageBatches, count: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The batches of the first `count` images."""
    left: float = math.inf if count is None else count
    for images, labels, indices in batches:
        few = int(min(left, len(images)))
        yield images[:few], labels[:few], indices[:few]
        left -= few
        if left <= 0:
            return


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return {name: _plain(number) for name, number in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
