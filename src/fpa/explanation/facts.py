"""What is known of an estimator without the estimator: how it is shown, what it is, and what it is not.

Plans keep these facts as JSON, and results are read with them, without torch.
"""

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fpa.values import besides, check_type, part_of

Sign = Literal["signed", "unsigned", "baseline", "twin"]
"""Whether scores can be negative; "baseline" if it explains nothing, "twin" if it is another map, blurred."""

Reduction = Literal["sum", "abs"]
"""From [N, C, H, W] to [N, H, W]: the sum over the channels, or the sum of absolute values."""

RANDOM = "random"
"""The family of random maps."""

TRUE = "true"
"""The family of maps of the truth."""

_ALIKE = ("ig", "vg", "sg", "sqsg")
"""Families of which two estimators say nearly the same where only their settings differ."""


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

    @classmethod
    def from_json(cls, key: str, parts: Any) -> "Label":
        """The label that a plan stores for the estimator `key`, or the error that says what is wrong."""
        whole = f"the label of {key}"
        check_type(whole, parts, dict[str, Any])
        return cls(
            key=part_of({"key": key, **parts}, "key", str, of=whole),
            name=part_of(parts, "name", str, of=whole),
            prime=part_of({"prime": False, **parts}, "prime", bool, of=whole),
            reduction=part_of(parts, "reduction", Reduction | None, of=whole),
        )


@dataclass(frozen=True)
class EstimatorFacts:
    """An estimator as a plan describes it: equal where the maps are, different where they would be.

    >>> plain = EstimatorFacts("unsigned", Label("vg_abs", "VG"), {"name": "vg"}, "abs", False)
    >>> twin = EstimatorFacts("twin", Label("soft", "soft"), {"name": "vg"}, "abs", False, blur=2.0)
    >>> plain.explains, twin.explains, twin.is_twin_of(plain)
    (True, False, True)
    """

    sign: Sign
    label: Label
    raw: Mapping[str, Any] | None = None
    """Family and settings of the raw map; None in results of another origin: the name is all there is."""
    reduction: Reduction | None = None
    times_input: bool | None = None
    blur: float | str | None = None
    """Of a blurred twin: sigma of the Gaussian in pixels, or "side/16"."""
    twin_of: str | None = None
    """Of a blurred twin: the name of the estimator whose twin it is, where its map does not tell that."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What a later version stored besides."""

    @property
    def kind(self) -> str | None:
        """The name of the raw map's family; None where it is not known."""
        return None if self.raw is None else str(self.raw.get("name"))

    @property
    def explains(self) -> bool:
        """Whether it is an explanation, and not what explanations are compared with."""
        return self.sign in ("signed", "unsigned")

    @property
    def is_random(self) -> bool:
        """Whether it is a random map, whatever it is called."""
        return self.kind == RANDOM and self.blur is None

    @property
    def knows_truth(self) -> bool:
        """Whether it is made of the true effects of cues: see `fpa.explanation.true_maps`."""
        return self.kind == TRUE

    @property
    def family(self) -> Hashable | None:
        """What it is apart from its settings; None where only its areas can tell."""
        # Two settings of SmoothGrad say the same; two functions, or two files of maps, need not.
        if self.raw is None:
            return (self.label.key, None, None)
        return (self.kind, self.reduction, self.times_input) if self.kind in _ALIKE else None

    def is_twin_of(self, other: "EstimatorFacts") -> bool:
        """Whether its map is that of the other, blurred."""
        if self.sign != "twin":
            return False
        ours = (self.raw, self.reduction, self.times_input)
        theirs = (other.raw, other.reduction, other.times_input)
        # Two functions may be described alike: then it is stored whose twin it is.
        return ours == theirs and self.twin_of in (None, other.label.key)

    def to_json(self) -> dict[str, Any]:
        """As a plan stores it; what is not known is left out."""
        known = {
            "raw": self.raw,
            "reduction": self.reduction,
            "times_input": self.times_input,
            "blur": self.blur,
            "twin_of": self.twin_of,
        }
        stored = {name: value for name, value in known.items() if value is not None}
        return {**stored, "sign": self.sign, "label": asdict(self.label), **self.more}

    @classmethod
    def from_json(cls, name: str, parts: Any) -> "EstimatorFacts":
        """The facts that a plan stores for the estimator `name`, or the error that says what is wrong."""
        check_type(f"estimator {name}", parts, dict[str, Any])
        return cls(
            sign=part_of(parts, "sign", Sign, of=name),
            label=Label.from_json(name, parts.get("label")),
            raw=part_of(parts, "raw", dict[str, Any] | None, of=name),
            reduction=part_of(parts, "reduction", Reduction | None, of=name),
            times_input=part_of(parts, "times_input", bool | None, of=name),
            blur=part_of(parts, "blur", float | str | None, of=name),
            twin_of=part_of(parts, "twin_of", str | None, of=name),
            more=besides(parts, cls),
        )
