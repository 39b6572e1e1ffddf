"""Estimators: raw maps reduced to two dimensions, by name or made from anything that explains images."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from torch import Tensor

from fpa.errors import InputError, unknown
from fpa.explanation import captum, paper  # noqa: F401 (they fill FAMILIES)
from fpa.explanation.maps import as_raw_map
from fpa.explanation.raw import FAMILIES, GradientMap, RawMap, Reduction, Settings
from fpa.schema import checked

Sign = Literal["signed", "unsigned", "baseline"]


@dataclass(frozen=True)
class Label:
    """How an estimator is shown to people, in parts that JSON can hold."""

    key: str
    """The name it has in results."""
    name: str
    prime: bool = False
    """Whether it is multiplied with the input, the paper's prime."""
    reduction: Reduction | None = None
    """Shown as an index; None: not shown."""

    @property
    def text(self) -> str:
        """In plain letters.

        >>> Label("vgx_sum", "VG", True, "sum").text
        "VG'_sum"
        """
        return self.name + "'" * self.prime + (f"_{self.reduction}" if self.reduction else "")


@dataclass(frozen=True)
class Estimator:
    """A raw map and how it is reduced to two dimensions.

    `raw` is a family's name ("vg", "ig", "sg", "sqsg", "random"), a `RawMap`, a callable
    `(model, images, targets) -> [N, C, H, W]` (or already [N, H, W]), a Captum attribution object,
    precomputed maps (an array, a tensor, a path), or a Quantus-style function.

    >>> Estimator("vg", "sum", times_input=True).sign, Estimator("vg", "abs").sign, Estimator("random").sign
    ('signed', 'unsigned', 'baseline')
    """

    raw: RawMap | Any
    reduction: Reduction = "sum"
    times_input: bool = False
    kind: Literal["signed", "unsigned"] | None = field(default=None, compare=False)
    """Overrides the sign; the maps stay the same."""
    shown: Label | None = field(default=None, compare=False, repr=False)
    """The label it has under the name it was made by."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw", as_raw_map(self.raw))
        if self.kind not in (None, "signed", "unsigned"):
            raise unknown("kind of estimator", str(self.kind), ("signed", "unsigned"))
        if self.reduction not in get_args(Reduction):
            raise unknown("reduction", str(self.reduction), get_args(Reduction))

    @property
    def sign(self) -> Sign:
        """Whether scores can be negative, evidence against the class; "baseline" if it explains nothing."""
        if self.raw.baseline:
            return "baseline"
        if self.kind is not None:
            return self.kind
        nonnegative = self.raw.nonnegative and not self.times_input
        return "unsigned" if self.reduction == "abs" or nonnegative else "signed"

    @property
    def signed(self) -> bool:
        """Whether scores can be negative, evidence against the class."""
        return self.sign == "signed"

    def label(self, key: str) -> Label:
        """How to show it under this name: as its family does if the name is the family's own, else as is."""
        return self.shown if self.shown is not None and self.shown.key == key else Label(key, key)

    def described(self) -> dict[str, Any]:
        """JSON that differs where the maps would."""
        raw = self.raw.configured(Settings()).described()
        return {"raw": raw, "reduction": self.reduction, "times_input": self.times_input}

    def scaled(self, raw: Tensor, images: Tensor) -> Tensor:
        """The raw map times the input where the estimator wants it, [N, C, H, W]."""
        return raw * images if self.times_input else raw

    def reduce(self, raw: Tensor) -> Tensor:
        """The map [N, H, W] of a raw map [N, C, H, W] that is `scaled`."""
        return (raw.abs() if self.reduction == "abs" else raw).sum(1)


def by_name(name: str) -> Estimator:
    """The estimator of a name: `FAMILY_sum`, `FAMILYx_abs` (times input), a baseline, or `FAMILY:ARGUMENT`.

    >>> by_name("captum:LayerGradCam_abs@layer4").raw.layer
    'layer4'
    """
    family, colon, argument = name.partition(":")
    reduction: Reduction | None = None
    times = False
    if colon and family in FAMILIES:
        raw, reduction = FAMILIES[family].from_argument(argument)
    elif family in FAMILIES and FAMILIES[family].baseline:
        raw = FAMILIES[family]()
    else:
        base, _, ending = name.rpartition("_")
        times = base not in FAMILIES and base.endswith("x")
        kind = FAMILIES.get(base.removesuffix("x") if times else base)
        if not kind or kind.baseline or (times and kind.input_inside) or ending not in get_args(Reduction):
            raise unknown("estimator", name, (*PAPER, *SETS, "captum:METHOD", "maps:FILE"))
        raw, reduction = kind(), "abs" if ending == "abs" else "sum"
    return Estimator(raw, reduction or "sum", times, shown=Label(name, raw.label, times, reduction))


_NAMES = "random ig_sum ig_abs vg_abs vgx_sum vgx_abs sg_abs sgx_sum sgx_abs sqsg_sum"
PAPER = {name: by_name(name) for name in _NAMES.split()}
"""The ten of the paper's tables."""


SETS = {"paper": PAPER}


Estimators = str | Iterable[Any] | Mapping[str, Any]
"""What `get_estimators` accepts."""


@checked
def get_estimators(
    estimators: Estimators = "paper", settings: Settings | None = None
) -> dict[str, Estimator]:
    """Estimators by name: a set, a name, several of them, or a mapping of names to whatever explains images.

    Besides the ten of the set "paper" every `vg`, `ig`, `sg`, `sqsg`, with an `x` for times input where
    it makes sense, can be had as `_sum` and as `_abs`. `captum:DeepLift` is a method of Captum's (also
    `captum:DeepLift_abs`, `captum:LayerGradCam@layer4`), `maps:FILE` or `maps:FILE#ARRAY` precomputed maps.
    Sets can stand among names, and functions, which then go by their own names. With `settings`, what the
    raw maps leave open is taken from there, and nothing else carries these numbers afterwards.

    >>> list(get_estimators(["vg_sum", "random"]))
    ['vg_sum', 'random']
    >>> get_estimators({"mine": "ig_sum"}, Settings(ig_steps=50))["mine"].raw.steps
    50
    """
    if isinstance(estimators, Mapping):
        entries = [(str(name), source) for name, source in estimators.items()]
    else:
        sources = [estimators] if isinstance(estimators, str) else estimators
        entries = [(_name_of(source), source) for source in sources]
    members: list[tuple[str, Any]] = []
    for name, source in entries:
        members += SETS[source].items() if isinstance(source, str) and source in SETS else [(name, source)]
    if not members:
        raise InputError("no estimators were given")
    if repeated := sorted(name for name, count in Counter(name for name, _ in members).items() if count > 1):
        raise InputError(f"estimators named twice: {', '.join(repeated)}")
    return {name: _estimator(source, settings) for name, source in members}


def _estimator(source: Any, settings: Settings | None) -> Estimator:
    made = by_name(source) if isinstance(source, str) else source
    made = made if isinstance(made, Estimator) else Estimator(made)
    return made if settings is None else replace(made, raw=made.raw.configured(settings))


def _name_of(source: Any) -> str:
    """The name of an estimator that stands in a list."""
    if isinstance(source, Estimator):
        source = source.shown.key if source.shown else getattr(source.raw, "function", source.raw)
    name = source if isinstance(source, str) else getattr(source, "__name__", "")
    if not name and hasattr(source, "attribute"):
        name = type(source).__name__
    if not name or name == "<lambda>":
        problem = f"an estimator in a list must have a name, this {type(source).__name__} has none"
        raise InputError(problem + ': give a mapping {"name": estimator}')
    return name


def passes(estimators: Estimators = "paper", settings: Settings | None = None) -> int:
    """Gradient passes per image, not counting those that functions and Captum's methods make themselves.

    >>> passes("paper")
    216
    """
    raws = [estimator.raw for estimator in get_estimators(estimators, settings or Settings()).values()]
    by_points = {raw.points if isinstance(raw, GradientMap) else raw: raw.gradients for raw in raws}
    return sum(by_points.values())
