"""Estimators: raw maps reduced to two dimensions, by name or made from anything that explains images."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from fpa.errors import InputError, unknown
from fpa.explanation import attention, cam, captum, paper, true_maps
from fpa.explanation.baselines import SIDE_16, blurred
from fpa.explanation.facts import EstimatorFacts, Label, Reduction, Sign
from fpa.explanation.maps import Function, as_raw_map
from fpa.explanation.raw_maps import FAMILIES, GradientMap, RawMap, Settings
from fpa.plugins import load_object
from fpa.values import check_type, checked


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
    """Overrides the sign; the maps stay the same. Evaluations set it for functions, from their first maps."""
    shown: Label | None = field(default=None, compare=False, repr=False)
    """The label it has under the name it was made by."""
    blur: float | str | None = None
    """Of a *blurred twin*: sigma of the Gaussian in pixels, or "side/16", a sixteenth of the shorter side."""
    twin_of: str | None = field(default=None, compare=False, repr=False)
    """Of the twin of a function: the name of the estimator, among those it was made with, whose twin it is.
    Other maps are known by their description; that of two functions may be the same."""
    contains_input: bool | None = None
    """Whether values are what pixels contribute, as input times gradient is, and not gradients: `infidelity`
    asks. None: as the raw map says; evaluations look at what functions do."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw", as_raw_map(self.raw))
        # By type first: an array is neither in a list of words nor not in it.
        check_type("reduction", self.reduction, str)
        check_type("kind", self.kind, str | None)
        check_type("blur", self.blur, float | str | None)
        check_type("times_input", self.times_input, bool)
        if self.kind not in (None, "signed", "unsigned"):
            raise unknown("kind of estimator", str(self.kind), ("signed", "unsigned"))
        if self.reduction not in get_args(Reduction):
            raise unknown("reduction", str(self.reduction), get_args(Reduction))
        number = isinstance(self.blur, (int, float)) and 0 < self.blur < math.inf
        if not number and self.blur is not None and self.blur != SIDE_16:
            raise InputError(f"the blur of a twin is a number of pixels above 0, got {self.blur}")

    @property
    def sign(self) -> Sign:
        """Whether scores can be negative, evidence against the class.

        "baseline" if it explains nothing, "twin" if it is another map, blurred: these are what explanations
        are compared with, and take no part in rankings.
        """
        if self.raw.baseline or self.blur is not None:
            return "baseline" if self.raw.baseline else "twin"
        return "signed" if self.can_be_negative() else "unsigned"

    def can_be_negative(self, *, reduced: bool = True) -> bool:
        """Whether scores of its map can be, or of the raw map before it is `reduced`, blurred or not.

        >>> by_name("vg_abs").can_be_negative(), by_name("vg_abs").can_be_negative(reduced=False)
        (False, True)
        """
        if self.kind is not None:
            return self.kind == "signed"
        squared = self.raw.nonnegative and not self.times_input
        # A twin is blurred after the absolute value was taken: its raw map has no sign left.
        absolute = self.reduction == "abs" and (reduced or self.blur is not None)
        return not squared and not absolute

    @property
    def signed(self) -> bool:
        """Whether scores can be negative, evidence against the class."""
        return self.sign == "signed"

    @property
    def is_gradient(self) -> bool:
        """Whether values are what a change of the image by 1 does, and not what a pixel contributes.

        >>> by_name("vg_sum").is_gradient, by_name("vgx_sum").is_gradient, by_name("ig_sum").is_gradient
        (True, False, False)
        """
        gradient = self.raw.is_gradient if self.contains_input is None else not self.contains_input
        return gradient and not self.times_input

    @property
    def undecided(self) -> bool:
        """Whether only its maps can tell its sign: a function counts as signed until they are looked at."""
        return self.signed and self.kind is None and isinstance(self.raw, Function)

    @property
    def explains(self) -> bool:
        """Whether it is an explanation, and not what explanations are compared with."""
        return not self.raw.baseline and self.blur is None

    @property
    def is_random(self) -> bool:
        """Whether it is a random map, whatever it is called."""
        return isinstance(self.raw, paper.Random) and self.blur is None

    def twin(self, sigma: float | None = None) -> "Estimator":
        """The same map, blurred by a Gaussian of `sigma` pixels; by default a sixteenth of the shorter side.

        >>> by_name("vgx_sum").twin().shown.text, by_name("vgx_sum").twin(2).shown.text
        ("blurred VG'_sum", "blurred (2 px) VG'_sum")
        """
        if self.blur is not None:
            raise InputError("a blurred twin has no twin of its own")
        width = "" if sigma is None else f" ({sigma:g} px)"
        shown = self.shown
        if shown is not None:
            shown = replace(shown, key=shown.key + _tilde(sigma), name=f"blurred{width} {shown.name}")
        return replace(self, blur=SIDE_16 if sigma is None else sigma, shown=shown)

    def label(self, key: str) -> Label:
        """How to show it under this name: as its family does if the name is the family's own, else as is."""
        return self.shown if self.shown is not None and self.shown.key == key else Label(key, key)

    def described(self) -> dict[str, Any]:
        """JSON that differs where the maps would; of functions it has the names, the plan has their code."""
        raw = self.raw.configured(Settings()).described()
        described = {"raw": raw, "reduction": self.reduction, "times_input": self.times_input}
        if self.contains_input is not None:
            described["contains_input"] = self.contains_input
        return described if self.blur is None else {**described, "blur": self.blur}

    def facts(self, name: str) -> EstimatorFacts:
        """What a plan says of it under this name."""
        shown = {"sign": self.sign, "label": asdict(self.label(name))}
        return EstimatorFacts.from_json(name, {**self.described(), **shown})

    def scaled(self, raw: Tensor, images: Tensor) -> Tensor:
        """The raw map, times the input and blurred where the estimator wants it, [N, C, H, W]."""
        values = raw * images if self.times_input else raw
        if self.blur is None:
            return values
        # Blurred first, neighbouring scores of opposite sign would cancel: not the same map any more.
        return blurred(values.abs() if self.reduction == "abs" else values, self.blur)

    def reduce(self, raw: Tensor) -> Tensor:
        """The map [N, H, W] of a raw map [N, C, H, W] that is `scaled`."""
        return (raw.abs() if self.reduction == "abs" else raw).sum(1)


def by_name(name: str) -> Estimator:
    """The estimator of a name: `FAMILY_sum`, `FAMILYx_abs` (times input), a baseline, or `FAMILY:ARGUMENT`.

    `module:function` is a function of one's own, or another object that explains images. `NAME~` is the
    blurred twin of any of them, `NAME~2` that of a Gaussian of 2 pixels.

    >>> by_name("captum:LayerGradCam_abs@layer4").raw.layer
    'layer4'
    >>> by_name("sg_abs~2").blur
    2.0
    """
    twin = _twin_of(name)
    if twin is not None and twin[0] != TWINS:
        return by_name(twin[0]).twin(twin[1])
    family, colon, argument = name.partition(":")
    reduction: Reduction | None = None
    times = False
    if colon and family in FAMILIES:
        raw, reduction = FAMILIES[family].from_argument(argument)
    elif family in FAMILIES and FAMILIES[family].baseline:
        raw = FAMILIES[family]()
    elif colon and (Path(f"{family}.py").exists() or not get_close_matches(family, FAMILIES)):
        # A word close to a family's, as in `captm:DeepLift`, is a slip and no module, unless there is one.
        made = load_object(name, "estimator")
        made = made if isinstance(made, Estimator) else Estimator(made)
        return replace(made, shown=Label(name, argument))
    else:
        base, _, ending = name.rpartition("_")
        times = base not in FAMILIES and base.endswith("x")
        kind = FAMILIES.get(base.removesuffix("x") if times else base)
        if not kind or kind.baseline or (times and kind.input_inside) or ending not in get_args(Reduction):
            if meant := _called_elsewhere(name):
                raise InputError(f"unknown estimator {name!r}: did you mean {' or '.join(map(repr, meant))}?")
            named = "captum:METHOD", "maps:FILE", "module:function"
            near = name.lower() if "cam" in name.lower() else name
            raise unknown("estimator", near, (*PAPER, *BASELINES, *CAMS, *SETS, TWINS, *named))
        raw = kind()
        reduction = "abs" if ending == "abs" else "sum"
    return Estimator(raw, reduction or "sum", times, shown=Label(name, raw.label, times, reduction))


_ELSEWHERE = {
    "ig": "integratedgradients", "vg": "saliency gradient gradients vanilla vanillagradient vanillagradients",
    "vgx": "inputxgradient gradientxinput gradxinput inputgradient", "sg": "smoothgrad",
    "sqsg": "smoothgradsquared squaredsmoothgrad smoothgrad2",
}  # fmt: skip
"""Families by the names that other packages give them, without capitals and signs."""


def _called_elsewhere(name: str) -> list[str]:
    """The estimators that people mean by the name of a method in other packages."""
    plain = "".join(filter(str.isalnum, name.lower()))
    for family, others in _ELSEWHERE.items():
        if plain in others.split():
            return (
                ["sqsg_sum"]
                if family == "sqsg"
                else [name for name in PAPER if name.startswith(f"{family}_")]
            )
    methods = captum.captum_methods() if find_spec("captum") else []
    return [f"captum:{method}" for method in methods if plain == method.lower()]


def _twin_of(name: str) -> tuple[str, float | None] | None:
    """Whose twin a name stands for, and its sigma where it says one; None if it is no twin's."""
    # The word alone stands for twins of the usual width, as `NAME~` does.
    base, tilde, sigma = (name + "~" * (name == TWINS)).rpartition("~")
    try:
        return (base, float(sigma) if sigma else None) if base and tilde else None
    except ValueError:  # a path may have a tilde in it
        return None


def _tilde(sigma: float | None) -> str:
    return "~" if sigma is None else f"~{sigma:g}"


TWINS = "twins"
"""Stands for the blurred twins of all explanations named beside it."""


_NAMES = "random ig_sum ig_abs vg_abs vgx_sum vgx_abs sg_abs sgx_sum sgx_abs sqsg_sum"
PAPER = {name: by_name(name) for name in _NAMES.split()}
"""The ten of the paper's tables."""


BASELINES = {name: by_name(name) for name in ("centre", "edges", "input")}
"""The maps that know no model; `random` is another."""


CAMS = {f"cam:{method}": by_name(f"cam:{method}") for method in cam.METHODS}
"""Class activation maps."""


ATTENTIONS = {f"attention:{method}": by_name(f"attention:{method}") for method in attention.METHODS}
"""Those of vision transformers."""


TRUTHS = {name: by_name(name) for name in true_maps.NAMES}
"""Maps of the truth and damaged ones, for images of a world."""


SETS = {"paper": PAPER, "baselines": BASELINES, "cam": CAMS, "attention": ATTENTIONS, "truths": TRUTHS}


Estimators = str | Iterable[Any] | Mapping[str, Any]
"""What `get_estimators` accepts."""


@checked
def get_estimators(
    estimators: Estimators = "paper", settings: Settings | None = None
) -> dict[str, Estimator]:
    """Estimators by name: a set, a name, several of them, or a mapping of names to whatever explains images.

    Besides the ten of the set "paper" every `vg`, `ig`, `sg`, `sqsg`, with an `x` for times input where
    it makes sense, can be had as `_sum` and as `_abs`. `captum:DeepLift` is a method of Captum's (also
    `captum:DeepLift_abs`, `captum:LayerGradCam@layer4`), `maps:FILE` or `maps:FILE#ARRAY` precomputed maps,
    `module:function` a function of your own; `cam:gradcam`, `cam:gradcam++` and `cam:layercam` (also
    `cam:gradcam@layer4`, and all three as the set "cam") are class activation maps; `attention:rollout` and
    `attention:relevance` (both as the set "attention") are maps of vision transformers. Sets can stand among
    names, and functions, which then go by their own names. The set "baselines" has the maps that know no
    model, the set "truths" those of the true effects, damaged and not, for images of a world (`true:flat`,
    `true:noise-0.5`, see `fpa.worlds.ladder`); `sg_abs~2` is the blurred twin of `sg_abs`, and "twins" (or
    "twins~2") those of all explanations in the list. With `settings`, what the raw maps leave open is taken
    from there, and nothing else carries these numbers afterwards.

    >>> list(get_estimators(["vg_sum", "random"]))
    ['vg_sum', 'random']
    >>> list(get_estimators(["vg_sum", "random", "twins"]))
    ['vg_sum', 'random', 'vg_sum~']
    >>> get_estimators({"mine": "ig_sum"}, Settings(ig_steps=50))["mine"].raw.steps
    50
    """
    if isinstance(estimators, Mapping):
        entries = [(str(name), source) for name, source in estimators.items()]
    else:
        sources = [estimators] if isinstance(estimators, str) else estimators
        entries = [(_name_of(source), source) for source in sources]
    members: list[tuple[str, Any]] = []
    widths: list[float | None] = []
    for name, source in entries:
        twin = _twin_of(source) if isinstance(source, str) else None
        if twin is not None and twin[0] == TWINS:
            widths.append(twin[1])
        else:
            known = isinstance(source, str) and source in SETS
            members += SETS[source].items() if known else [(name, source)]
    if not members:
        raise InputError("no estimators were given")
    for name, _ in members:
        check_name(name)
    if repeated := sorted(name for name, count in Counter(name for name, _ in members).items() if count > 1):
        raise InputError(f"estimators named twice: {', '.join(repeated)}")
    named = {name: _estimator(source, settings) for name, source in members}
    # Only where it matters: files of maps are read to know whether they explain.
    explanations = {name: each for name, each in named.items() if widths and each.explains}
    twins = {
        f"{name}{_tilde(width)}": replace(each.twin(width), twin_of=name)
        for width in widths
        for name, each in explanations.items()
    }
    # A twin that is named beside the word "twins" is there once, as it was named.
    every = {**named, **{name: twin for name, twin in twins.items() if name not in named}}
    return {
        name: each if each.blur is None else replace(each, twin_of=_owner(each, every))
        for name, each in every.items()
    }


def check_name(name: str) -> None:
    """Refuse a name by which an estimator could be neither stored nor found again."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the name of an estimator must be text that can be stored, got {name!r}") from error
    if not name.strip():
        raise InputError(f"an estimator must have a name, got {name!r}")


def _owner(twin: Estimator, estimators: Mapping[str, Estimator]) -> str | None:
    """The name of the estimator whose function the twin calls too; None where that is not one alone."""
    if not isinstance(twin.raw, Function):
        return None
    same = [
        name
        for name, each in estimators.items()
        if each.blur is None
        and isinstance(each.raw, Function)
        and each.raw.function is twin.raw.function
        and (each.reduction, each.times_input) == (twin.reduction, twin.times_input)
    ]
    if twin.twin_of in same:
        return twin.twin_of
    return same[0] if len(same) == 1 else None


def _estimator(source: Any, settings: Settings | None) -> Estimator:
    made = by_name(source) if isinstance(source, str) else source
    # Settings are put in here, once: afterwards an estimator says all that its maps depend on.
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
    # Raw maps with equal points share their passes, and equal raw maps are made once.
    by_points = {raw.points if isinstance(raw, GradientMap) else raw: raw.gradients for raw in raws}
    return sum(by_points.values())
