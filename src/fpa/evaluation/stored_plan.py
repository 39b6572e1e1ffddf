"""The plan of an evaluation as it is stored: typed, with one JSON form, and read without torch."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fpa.explanation.facts import EstimatorFacts
from fpa.values import besides, check_type, part_of

GIVEN = "given:"
"""What begins the targets of a plan where there is one for every image; a hash of them follows."""


@dataclass(frozen=True)
class ScoreFacts:
    """What is known of a score without the score."""

    title: str
    """What it is, in a line."""
    source: str
    """Where it was published."""
    higher_is_better: bool
    images: int | None = None
    """How many images it is computed for; None: for all."""
    unit: str | None = None
    """What its means are divided by where models are compared; None: by nothing."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its own attributes."""

    def to_json(self) -> dict[str, Any]:
        """As a plan stores it."""
        facts = {"title": self.title, "source": self.source, "higher_is_better": self.higher_is_better}
        few = {} if self.images is None else {"images": self.images}
        unit = {} if self.unit is None else {"unit": self.unit}
        return {**facts, **unit, **self.settings, **few}

    @classmethod
    def from_json(cls, name: str, parts: Any) -> "ScoreFacts":
        """The facts that a plan stores for the score `name`, or the error that says what is wrong."""
        check_type(f"scores: {name}", parts, dict[str, Any])
        return cls(
            title=part_of(parts, "title", str, of=f"the score {name}"),
            source=part_of(parts, "source", str, of=f"the score {name}"),
            higher_is_better=part_of(parts, "higher_is_better", bool, of=f"the score {name}"),
            images=part_of(parts, "images", int | None, of=f"the score {name}"),
            unit=part_of(parts, "unit", str | None, of=f"the score {name}"),
            settings=besides(parts, cls),
        )


@dataclass(frozen=True)
class StoredProtocol:
    """What is removed together, and what removing it means, as plain values."""

    features: str | int
    masking: Mapping[str, Any]
    """A name and its settings."""

    @classmethod
    def from_json(cls, name: str, parts: Any) -> "StoredProtocol":
        """The protocol that a plan stores under this name, or the error that says what is wrong."""
        return cls(
            features=part_of(parts, "features", str | int, of=f"the protocol {name}"),
            masking=part_of(parts, "masking", dict[str, Any], of=f"the protocol {name}"),
        )


@dataclass(frozen=True)
class StoredPlan:
    """All that determines the numbers of an evaluation, as plain values; `Plan.stored` makes it.

    >>> json = {"estimators": {}, "masking": {"name": "mean"}, "maskings": {}, "features": "pixels"}
    >>> json |= {"fractions": [0.0, 1.0], "outputs": ["logit"], "divided": {"logit": True}, "scores": {}}
    >>> plan = StoredPlan.from_json(json | {"seed": 0, "new": 1})
    >>> plan.outputs, plan.targets, plan.to_json()["new"]
    (('logit',), 'predicted', 1)
    """

    estimators: Mapping[str, EstimatorFacts]
    masking: Mapping[str, Any]
    """What removing a pixel means: a name and its settings."""
    protocols: Mapping[str, StoredProtocol]
    """Further ones by which the same maps were perturbed, by name."""
    features: str | int
    fractions: tuple[float, ...]
    outputs: tuple[str, ...]
    """What was followed; the first is scored."""
    divided: Mapping[str, bool]
    """By output, whether a curve is divided by its own start."""
    scores: Mapping[str, ScoreFacts]
    seed: int
    maps_of: str | None = None
    """The output that the maps explain; None in files that do not say it."""
    precision: Mapping[str, str] | None = None
    """The arithmetic; None in files that do not say it."""
    segmentation: str | None = None
    """What made the segments, where there are some."""
    targets: str | int = "predicted"
    """The class explained of every image."""
    code: Mapping[str, Any] = field(default_factory=dict)
    """The identities of the user's own code, by what it is for; empty without any."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What a later version stored besides: it determines the numbers too, so it is kept."""

    @property
    def output(self) -> str:
        """What is scored."""
        return self.outputs[0]

    @property
    def protocol(self) -> str:
        """The name of the plan's own protocol; the usual masking goes without saying."""
        masking = str(self.masking["name"])
        return str(self.features) if masking == "constant" else f"{self.features}+{masking}"

    @property
    def protocol_names(self) -> dict[str, str]:
        """The further protocols by the names that people see, none of them twice.

        A masking beside the plan's own removes the same features; features that were named alone, the plan's
        masking, which goes without saying only if it is the usual one.
        """
        shown = {self.protocol: ""}
        for key, each in self.protocols.items():
            features = str(each.features)
            masking = str(each.masking["name"])
            name = key
            if key == features and masking != "constant":
                name = f"{features}+{masking}"
            elif each.features == self.features and not key.startswith(features):
                name = f"{features}+{key}"
            while name in shown:
                name = f"{name} ({key})"
            shown[name] = key
        return {key: name for name, key in shown.items() if key}

    @property
    def with_own_features(self) -> frozenset[str]:
        """The further protocols that remove other features than the plan's own."""
        return frozenset(name for name, each in self.protocols.items() if each.features != self.features)

    @cached_property
    def signed(self) -> dict[str, bool]:
        """For every explanation whether it is signed; baselines and twins are not in here."""
        return {name: each.sign == "signed" for name, each in self.estimators.items() if each.explains}

    @property
    def families(self) -> dict[str, Hashable | None]:
        """What every estimator is apart from its settings; None where only its areas can tell."""
        return {name: each.family for name, each in self.estimators.items()}

    @property
    def random(self) -> str | None:
        """The name of the first random map, if there is one."""
        return next((name for name, each in self.estimators.items() if each.is_random), None)

    @property
    def model_free(self) -> list[str]:
        """The maps that know no model."""
        baselines = {name: each for name, each in self.estimators.items() if each.sign == "baseline"}
        return [name for name, each in baselines.items() if not each.knows_truth]

    @property
    def twins(self) -> dict[str, list[str]]:
        """By explanation the blurred twins of its map, where it has any."""
        found: dict[str, list[str]] = {}
        for name in self.signed:
            own = self.estimators[name]
            twins = [twin for twin, each in self.estimators.items() if each.is_twin_of(own)]
            if twins:
                found[name] = twins
        return found

    def to_json(self) -> dict[str, Any]:
        """The one JSON form: plain values that differ where the numbers would."""
        # What is not said is left out, not null: blocks are found by the text of their plan, and those of
        # earlier versions must be found too.
        own_features = {
            name: {"features": each.features, "masking": dict(each.masking)}
            for name, each in self.protocols.items()
            if each.features != self.features
        }
        return {
            "estimators": {name: each.to_json() for name, each in self.estimators.items()},
            "masking": dict(self.masking),
            "maskings": {
                name: dict(each.masking) for name, each in self.protocols.items() if name not in own_features
            },
            **({"protocols": own_features} if own_features else {}),
            "features": self.features,
            **({} if self.segmentation is None else {"segmentation": self.segmentation}),
            "fractions": list(self.fractions),
            "outputs": list(self.outputs),
            **({} if self.maps_of is None else {"maps_of": self.maps_of}),
            "divided": dict(self.divided),
            "scores": {name: each.to_json() for name, each in self.scores.items()},
            "seed": self.seed,
            **({} if self.precision is None else {"precision": dict(self.precision)}),
            **({} if self.targets == "predicted" else {"targets": self.targets}),
            **({"code": dict(self.code)} if self.code else {}),
            **self.more,
        }

    @classmethod
    def from_json(cls, plan: Any) -> "StoredPlan":
        """The plan that `to_json` made, or the error that says what is wrong with it."""
        check_type("plan", plan, dict[str, Any])
        estimators = part_of(plan, "estimators", dict[str, dict[str, Any]])
        scores = part_of(plan, "scores", dict[str, dict[str, Any]])
        features = part_of(plan, "features", str | int)
        maskings = part_of(plan, "maskings", dict[str, dict[str, Any]])
        protocols = part_of({"protocols": {}} | plan, "protocols", dict[str, dict[str, Any]])
        return cls(
            estimators={name: EstimatorFacts.from_json(name, each) for name, each in estimators.items()},
            masking=part_of(plan, "masking", dict[str, Any]),
            protocols={
                **{name: StoredProtocol(features, each) for name, each in maskings.items()},
                **{name: StoredProtocol.from_json(name, each) for name, each in protocols.items()},
            },
            features=features,
            fractions=tuple(part_of(plan, "fractions", list[float])),
            outputs=tuple(part_of(plan, "outputs", list[str])),
            divided=part_of(plan, "divided", dict[str, bool]),
            scores={name: ScoreFacts.from_json(name, each) for name, each in scores.items()},
            seed=part_of(plan, "seed", int),
            maps_of=part_of(plan, "maps_of", str | None),
            precision=part_of(plan, "precision", dict[str, str] | None),
            segmentation=part_of(plan, "segmentation", str | None),
            targets=part_of({"targets": "predicted"} | plan, "targets", str | int),
            code=part_of({"code": {}} | plan, "code", dict[str, dict[str, Any]]),
            more={key: value for key, value in besides(plan, cls).items() if key != "maskings"},
        )
