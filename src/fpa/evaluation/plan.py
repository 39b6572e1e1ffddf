"""The plan of an evaluation: all that determines its numbers, with one check and one JSON form."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.engine.engine import Engine
from fpa.engine.forms import Precision, PrecisionName
from fpa.errors import InputError, one_of
from fpa.explanation import Estimator, Estimators, Settings, get_estimators, passes
from fpa.masking import Masking, get_masking, masking_json
from fpa.perturbation import OUTPUTS, check_fractions, check_outputs
from fpa.schema import checked
from fpa.scores.score import Score, get_scores


@dataclass(frozen=True)
class Plan:
    """What to explain, perturb and score; made by `make_plan`, which checks it.

    Two evaluations with equal plans, weights and images have equal numbers.
    """

    estimators: Mapping[str, Estimator]
    """By name, each with its own settings."""
    masking: Masking
    """What removing a pixel means."""
    fractions: tuple[float, ...]
    """Of the features removed, along a curve."""
    features: str | int = "pixels"
    """What is removed together: "pixels", or squares of so many pixels a side."""
    outputs: tuple[str, ...] = ("logit",)
    """What is followed; the first is the one that is scored."""
    scores: tuple[Score, ...] = ()
    maskings: Mapping[str, Masking] = field(default_factory=dict)
    """Further maskings under which the same maps are perturbed."""
    seed: int = 0
    precision: Precision | None = None
    """The arithmetic; None leaves it to the device."""

    def to_json(self, engine: Engine) -> dict[str, Any]:
        """The one JSON form: plain values that differ where the numbers would, for this engine."""
        return {
            "estimators": {
                name: {**each.described(), "sign": each.sign, "label": asdict(each.label(name))}
                for name, each in self.estimators.items()
            },
            "masking": masking_json(self.masking),
            "maskings": {name: masking_json(each) for name, each in self.maskings.items()},
            "features": self.features,
            "fractions": list(self.fractions),
            "outputs": list(self.outputs),
            "divided": {name: OUTPUTS[name].divided_by_start for name in self.outputs},
            "scores": {score.name: score.described() for score in self.scores},
            "seed": self.seed,
            "precision": asdict(engine.precision),
        }

    @property
    def passes(self) -> int:
        """Passes an image costs: gradients, and forwards along the curves."""
        inner = sum(0 < fraction < 1 for fraction in self.fractions)
        return passes(self.estimators) + 2 * inner * len(self.estimators) * (1 + len(self.maskings))


@checked
def make_plan(
    estimators: Estimators = "paper",
    *,
    settings: Settings | None = None,
    masking: Any = None,
    maskings: Mapping[str, Any] | None = None,
    points: int = 21,
    fractions: Sequence[float] | None = None,
    features: str | int = "pixels",
    outputs: str | Sequence[str] = ("logit",),
    scores: str | Score | Iterable[Any] = ("A",),
    seed: int = 0,
    precision: str | Precision | None = None,
    normalisation: Normalisation | None = None,
) -> Plan:
    """A plan, or the error that says what is wrong with it, before any work.

    - `estimators`, `settings`: see `fpa.explain`.
    - `masking`: a name, `{"name": "blur", "sigma": 4}`, `module:Class`, a masking or a function; default: 0
      after normalisation. "black" needs the `normalisation` of the images.
    - `points`: how many fractions of the features are removed, evenly from 0 to 1; or `fractions` themselves.
    - `features`: "pixels", or the side of square patches in pixels.
    - `outputs`: what is followed, the first is scored: "logit", "probability", "margin", "accuracy".
    - `scores`: names of scores; A is always among them.
    - `precision`: "auto", "float32", "tf32" or "bfloat16".

    >>> plan = make_plan(["ig_sum", "random"], points=3)
    >>> plan.fractions, [score.name for score in plan.scores]
    ((0.0, 0.5, 1.0), ['A'])
    """
    normalisation = as_normalisation(normalisation)
    scale = (normalisation.mean, normalisation.std) if normalisation else (None, None)
    named = get_estimators(estimators, settings)
    outputs = [outputs] if isinstance(outputs, str) else list(outputs)
    if not outputs or len(set(outputs)) < len(outputs):
        raise InputError(f"outputs must be one or more different names, got {outputs}")
    check_outputs(outputs)
    chosen = get_scores(["A", *([scores] if isinstance(scores, (str, Score)) else scores)])
    for score in chosen:
        score.check(named)
    if isinstance(features, str) and features.isdigit():
        features = int(features)
    if isinstance(precision, str):
        one_of("precision", precision, ("auto", *get_args(PrecisionName)))
        precision = None if precision == "auto" else Precision(precision, precision)  # type: ignore[arg-type]
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed must be a whole number of at least 0, got {seed!r}")
    shares = check_fractions(points, fractions)
    if len(shares) < 2 or shares[0] != 0:
        raise InputError(f"fractions must be two or more and begin with 0, the whole image; got {shares}")
    return Plan(
        named,
        get_masking("constant" if masking is None else masking, *scale),
        tuple(shares),
        features=features,
        outputs=tuple(outputs),
        scores=chosen,
        maskings={name: get_masking(each, *scale) for name, each in (maskings or {}).items()},
        seed=seed,
        precision=precision,
    )
