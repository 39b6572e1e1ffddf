"""Can the evaluation of explanations on this model be trusted? A verdict by a fixed rule, with its evidence.

The rule (`judge`) sees only what the model says to images, masked and unmasked, never how it was trained.
Its thresholds are the constants below, and docs/audit.md gives the reasons for them.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from fpa import __version__
from fpa.auditing.evidence import _evidence, _measure
from fpa.auditing.rule import (
    EXIT_CODES,
    FEWEST_IMAGES,
    FEWEST_PAIRS,
    LEAST_KEPT,
    MASKED,
    MEANINGS,
    MOST_OPPOSITE,
    SAME_RANKING,
    Criterion,
    Evidence,
    Verdict,
    _percent,
    _stops,
    criteria,
    judge,
)
from fpa.data.loaders import image_batches
from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.explanation import PAPER, Estimator, Estimators, Settings, get_estimators, needs_numbers
from fpa.files import writable_folder, write_text
from fpa.masking import Constant, Masking, get_masking
from fpa.models.wrap import classifier, input_channels, warn_of_probabilities
from fpa.perturbation.curves import check_fractions
from fpa.perturbation.features import features_of
from fpa.progress import Tell
from fpa.show.names import estimator_name
from fpa.statistics.contradictions import Reliability
from fpa.statistics.intervals import Estimate
from fpa.training.settings import suggested_fpa

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


MASKINGS = ("constant", "mean", "blur", "uniform")


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
        from fpa.show.report.audit_page import write_audit

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
        from fpa.show.report.audit_page import audit_fragment

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
      `fpa.data.image_batches`, which also says what `normalisation` is for. Without labels the agreement
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
    >>> from fpa.data.sets import load_data
    >>> data = load_data("shapes")
    >>> images, labels = data.normalisation(data.test.images[:8]), data.test.labels[:8]
    >>> quick = Settings(ig_steps=5, sg_samples=2)
    >>> found = audit(fpa.load_model("shapes-fpa"), (images, labels), settings=quick, progress=False)
    >>> found.verdict, found.exit_code, found.because[0]
    ('cannot tell', 4, 'Too few images: 8 could be used, at least 100 are needed.')
    """
    named, chosen = _with_random(get_estimators(estimators)), settings or Settings()
    signed = {name: one.signed for name, one in named.items() if one.sign != "baseline"}
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


def _with_random(estimators: Mapping[str, Estimator]) -> dict[str, Estimator]:
    given = estimators.get("random", PAPER["random"])
    if given.sign != "baseline":
        raise InputError(
            "the name 'random' is that of the random baseline: call the estimator something else"
        )
    return {"random": given, **estimators}


def _check_enough(features: str | int, images: Tensor) -> None:
    """Refuse patches so large that the first share of `MASKED` is less than one of them."""
    found, needed = features_of(features, images[:1]).most, 100 // MASKED[0]
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


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return {name: _plain(number) for name, number in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
