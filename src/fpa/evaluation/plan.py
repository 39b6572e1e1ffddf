"""The plan of an evaluation: all that determines its numbers, with one check and one JSON form."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

from torch import Tensor

from fpa.data.blocks import Maker
from fpa.data.normalisation import as_normalisation
from fpa.engine.arithmetic import Precision
from fpa.engine.engine import Engine
from fpa.engine.outputs import OUTPUTS, explained_output
from fpa.engine.tasks import Task
from fpa.errors import InputError
from fpa.evaluation.keywords import with_keywords
from fpa.evaluation.options import AuditOptions, PlanOptions
from fpa.evaluation.own_code import own_code, with_code
from fpa.evaluation.plan_values import (
    Targets,
    check_scored,
    checked_outputs,
    checked_precision,
    checked_targets,
    stored_targets,
)
from fpa.evaluation.stored_plan import ScoreFacts, StoredPlan, StoredProtocol
from fpa.explanation import Estimator, Settings, get_estimators, passes
from fpa.explanation.facts import EstimatorFacts
from fpa.masking import Masking, black, get_masking, masking_json
from fpa.models.tokens import TokenGrid
from fpa.notes import Kind, Note, Plain, Severity
from fpa.perturbation import check_fractions, check_left, features_of, segment_count, up_to
from fpa.perturbation.curves import check_between
from fpa.perturbation.dropping import check_patches
from fpa.perturbation.protocols import Protocol, checked_features, choose_protocols, unsuited
from fpa.scores.score import ALL, Given, Passes, Score, get_scores
from fpa.values import check_type


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
    """What is removed together: "pixels", squares of so many pixels a side or of a share of it ("1/8"), or
    "segments:100" of an image."""
    outputs: tuple[str, ...] = ("logit",)
    """What is followed; the first is the one that is scored."""
    maps_of: str = "logit"
    """The output that the maps explain."""
    scores: tuple[Score, ...] = ()
    optional: frozenset[str] = frozenset()
    """The scores that are left out where they cannot be computed, because nobody named them."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The scores that were, and why; see `suited`."""
    score_images: int = 100
    """How many images the scores that explain again are computed for."""
    protocols: Mapping[str, Protocol] = field(default_factory=dict)
    """Further ones by which the same maps are perturbed: other features, or another masking."""
    optional_protocols: frozenset[str] = frozenset()
    """Those that are left out where the images do not allow them, because nobody named them."""
    protocols_left_out: tuple[Note, ...] = ()
    """Those that were, and why; see `suiting`."""
    targets: Targets = "predicted"
    """The class explained of every image: "predicted", "label", "best:K" (the K-th best), one for all, by
    number or by name (see `targets.explaining`), or one for each image of the data."""
    seed: int = 0
    precision: Precision | None = None
    """The arithmetic; None leaves it to the device."""
    code: Mapping[str, Any] = field(default_factory=dict)
    """The identities of what is not fpa's own: see `own_code`."""

    def to_json(self, engine: Engine) -> dict[str, Any]:
        """The one JSON form: plain values that differ where the numbers would, for this engine."""
        return self.stored(engine).to_json()

    def stored(self, engine: Engine, judge: Engine | None = None) -> StoredPlan:
        """The plan as it is stored, for these engines: without the objects that carry it out."""
        every = (self.features, *(each.features for each in self.protocols.values()))
        segments = any(segment_count(features) for features in every)
        stored = StoredPlan(
            estimators={name: self._estimator_facts(name) for name in self.estimators},
            masking=masking_json(self.masking),
            protocols={
                name: StoredProtocol(each.features, masking_json(each.masking))
                for name, each in self.protocols.items()
            },
            features=self.features,
            segmentation=f"scikit-image {version('scikit-image')}" if segments else None,
            fractions=self.fractions,
            outputs=self.outputs,
            maps_of=self.maps_of,
            divided={name: OUTPUTS[name].divided_by_start for name in self.outputs},
            scores={score.name: self._score_facts(score) for score in self.scores},
            seed=self.seed,
            precision=asdict(engine.precision),
            targets=stored_targets(self.targets),
        )
        return with_code(stored, self, {"model": engine, "judge": judge})

    def _estimator_facts(self, name: str) -> EstimatorFacts:
        """The facts of an estimator; whose twin it is, where its map would fit another one as well."""
        estimator = self.estimators[name]
        facts = estimator.facts(name)
        if estimator.twin_of is None:
            return facts
        # Stored only where it is needed: plans without it keep the keys that earlier versions gave them.
        unblurred = replace(estimator, blur=None).described()
        fitting = sum(each.explains and each.described() == unblurred for each in self.estimators.values())
        return replace(facts, twin_of=estimator.twin_of) if fitting > 1 else facts

    def _score_facts(self, score: Score) -> ScoreFacts:
        few = {"images": self.score_images} if "explain" in score.needs else {}
        return ScoreFacts.from_json(
            score.name, {**score.described(), **score.settings_for(self.given), **few}
        )

    def task(
        self,
        engine: Engine,
        images: Tensor,
        targets: Tensor,
        indices: Sequence[int],
        *,
        maker: Maker | None = None,
    ) -> Task:
        """The task of explaining these classes of these images, as the plan has it."""
        return Task(
            engine,
            images,
            targets,
            indices,
            seed=self.seed,
            masking=self.masking,
            output=self.maps_of,
            maker=maker,
        )

    @property
    def followed(self) -> tuple[str, ...]:
        """The outputs, and those that scores need besides."""
        return tuple(dict.fromkeys([*self.outputs, *(name for each in self.scores for name in each.outputs)]))

    @property
    def given(self) -> Given:
        """What its scores are told, as far as the plan knows it: nothing of the images and the model."""
        return Given(self.estimators, self.fractions, self.masking)

    def suited(self, given: Given) -> "Plan":
        """The plan with the scores that can be computed; refuses those that were named and cannot."""
        # What was named is refused, what "all" stands for is left out and told.
        why = {score.name: _unfilled(score, given.masking) or score.missing(given) for score in self.scores}
        for name, reason in why.items():
            if reason is not None and name not in self.optional:
                raise InputError(f"the score {name} {reason}")
        for score in self.scores:
            if score.name in self.optional:
                why[score.name] = why[score.name] or score.only_by_name(given)
        left_out = {name: reason for name, reason in why.items() if reason is not None}
        kept = tuple(score for score in self.scores if score.name not in left_out)
        return replace(self, scores=kept, left_out={**self.left_out, **left_out})

    def token_grid(self, engine: Engine, images: Tensor) -> TokenGrid | None:
        """Where the tokens of images lie; refuses a model whose tokens cannot be left out.

        None where no masking of the plan leaves any out.
        """
        maskings = (self.masking, *(each.masking for each in self.protocols.values()))
        return engine.token_grid(images) if any(each.selects for each in maskings) else None

    def suiting(self, images: Tensor, grid: TokenGrid | None = None) -> "Plan":
        """The plan without those of the usual protocols that make no sense for images of this size."""
        found = {name: unsuited(name, self.protocols[name], images, grid) for name in self.optional_protocols}
        notes = {name: found[name] for name in self.protocols if found.get(name) is not None}
        if not notes:
            return self
        kept = {name: each for name, each in self.protocols.items() if name not in notes}
        left_out = (*self.protocols_left_out, *(note for note in notes.values() if note is not None))
        optional = self.optional_protocols - notes.keys()
        plan = replace(self, protocols=kept, optional_protocols=optional, protocols_left_out=left_out)
        return replace(plan, code=own_code(plan))

    @property
    def passes(self) -> int:
        """Passes an image costs: gradients, and forwards along the curves and for the scores."""
        # All curves of an image begin and end alike: the two ends are passed once, and hardly count.
        inner = sum(0 < fraction < 1 for fraction in self.fractions)
        scores = sum(cost.forwards for cost in self._costs)
        curves = len(self.estimators) + len(self.varied) * len(self.protocols)
        return self.gradients + 2 * inner * curves + scores

    @property
    def gradients(self) -> int:
        """Of these passes, those that are gradients."""
        return passes(self.estimators)

    def work(self, images: int | None) -> list[Note]:
        """What so many images cost in passes, and of that the scores, where they cost any."""
        each: dict[str, Plain] = {
            "gradients": self.gradients,
            "forwards": self.passes - self.gradients,
            "images": images,
        }
        notes = [Note(Kind.PASSES, Severity.INFO, each)]
        for cost, scores in self._costs.items():
            values: dict[str, Plain] = {
                "scores": [score.name for score in scores],
                "forwards": cost.forwards,
                "explanations": cost.explanations,
                "gradients": cost.gradients,
                "images": self.score_images if "explain" in scores[0].needs else None,
            }
            notes.append(Note(Kind.PASSES_OF_SCORES, Severity.INFO, values))
        return notes

    @property
    def explained_again(self) -> Passes:
        """What the scores that explain again cost for each of `score_images`, all together."""
        costs = [cost for cost, scores in self._costs.items() if "explain" in scores[0].needs]
        return Passes(*(sum(each) for each in zip((0, 0, 0), *(cost[:3] for cost in costs), strict=True)))

    def fractions_under(self, masking: Masking) -> Sequence[float]:
        """The fractions, up to the largest that this masking can remove."""
        return self.fractions if self.fractions[-1] <= masking.most else up_to(masking.most, self.fractions)

    def check_features(self, images: Tensor, grid: TokenGrid | None = None) -> None:
        """Refuse features of the images so large that no curve tells maps apart, or nothing is left.

        Where tokens are left out, also those that are no patches of the `grid`.
        """
        parts = features_of(self.features, images)
        if self.masking.selects and grid is not None:
            check_patches(grid, parts)
        check_between(self.fractions, parts)
        check_left(self.masking, self.fractions, parts)
        for score in self.scores:
            if score.masking is not None:
                check_left(score.masking, [score.masking.most], parts)
        for protocol in self.protocols.values():
            own = parts if protocol.features == self.features else features_of(protocol.features, images)
            fractions = self.fractions_under(protocol.masking)
            if protocol.masking.selects and grid is not None:
                check_patches(grid, own)
            check_between(fractions, own)
            check_left(protocol.masking, fractions, own)

    @property
    def knows_truth(self) -> bool:
        """Whether true effects of cues are measured, for scores or for maps."""
        of_maps = any(each.raw.knows_truth for each in self.estimators.values())
        return of_maps or any("world" in score.needs for score in self.scores)

    @property
    def varied(self) -> list[str]:
        """The estimators that are perturbed by the further protocols too.

        Explanations and random maps; where maps of known truth are among them, all, as all are compared.
        """
        known = any(each.raw.knows_truth for each in self.estimators.values())
        return [name for name, each in self.estimators.items() if known or each.explains or each.is_random]

    @property
    def _costs(self) -> dict[Passes, list[Score]]:
        """Scores by the passes they cost; those that share some are together."""
        costs = dict[Passes, list[Score]]()
        for score in self.scores:
            cost = score.passes(self.given)
            if any(cost):
                costs.setdefault(cost._replace(shared=cost.shared or score.name), []).append(score)
        return costs


@with_keywords(PlanOptions)
def make_plan(options: PlanOptions) -> Plan:
    """A plan, or the error that says what is wrong with it, before any work.

    Args:
        options: Each is a keyword.

    >>> plan = make_plan(["ig_sum", "random"], points=3)
    >>> plan.fractions, [score.name for score in plan.scores]
    ((0.0, 0.5, 1.0), ['A'])

    """
    return plan_of(options)


def plan_of(options: PlanOptions) -> Plan:
    """The plan that these options describe, or the error that says what is wrong with them."""
    normalisation = as_normalisation(options.normalisation)
    scale = (normalisation.mean, normalisation.std) if normalisation else (None, None)
    named = get_estimators(options.estimators, settings_of(options))
    outputs = checked_outputs(followed(options))
    maps_of = explained_output(options.maps_of, outputs)
    if outputs[0] == "logit" and "centred" not in outputs:  # shows what a shift of all logits would change
        outputs.append("centred")
    check_type("scores", options.scores, str | Score | Iterable[Any])
    wanted = [options.scores] if isinstance(options.scores, (str, Score)) else list(options.scores)
    chosen = get_scores(["A", *wanted])
    by_name = get_scores(["A", *(each for each in wanted if each != ALL)])
    removal = get_masking(options.masking, *scale)
    features = checked_features(options.features)
    others = {
        name: Protocol(features, get_masking(each, *scale)) for name, each in (options.maskings or {}).items()
    }
    _check_alike(removal, others)
    there = [Protocol(features, removal), *others.values()]
    further = choose_protocols(options.protocols or (), removal, there=there, mean=scale[0], std=scale[1])
    if both := sorted(others.keys() & further.protocols.keys()):
        raise InputError(f"{both[0]} is the name of a masking and of a protocol: give one another name")
    shares = check_fractions(options.points, options.fractions, removal.most)
    check_scored(shares)
    plan = Plan(
        named,
        removal,
        tuple(shares),
        features=features,
        outputs=tuple(outputs),
        maps_of=maps_of,
        scores=chosen,
        optional=frozenset(score.name for score in chosen) - {score.name for score in by_name},
        score_images=options.score_images,
        protocols=others | further.protocols,
        optional_protocols=further.optional,
        protocols_left_out=further.left_out,
        targets=checked_targets(options.targets),
        seed=options.seed,
        precision=checked_precision(options.precision),
    )
    return replace(plan, code=own_code(plan))


def _unfilled(score: Score, masking: Masking) -> str | None:
    """Why a score cannot be computed where nothing is filled; None: it can."""
    fills = "forwards" in score.needs and "world" not in score.needs
    if not masking.selects or not (fills or score.masking is not None):
        return None
    return "needs filled images, and the masking drop fills none: use another masking, or leave it out"


def _check_alike(removal: Masking, others: Mapping[str, Protocol]) -> None:
    """Refuse maskings that fill images beside one that leaves tokens out."""
    filling = [name for name, each in others.items() if not each.masking.selects]
    if removal.selects and filling:
        remedy = "leave them out, or give a protocol, as in protocols=16+blur"
        raise InputError(f"beside the masking drop, {', '.join(filling)} would need filled images: {remedy}")


def settings_of(options: PlanOptions | AuditOptions) -> Settings:
    """The numbers of the families of estimators, given one by one or all in one."""
    single = Settings(options.ig_steps, options.sg_samples, options.sigma, options.reference)
    if options.settings is not None:
        if single != Settings():
            raise InputError("give settings, or ig_steps, sg_samples, sigma and reference, not both")
        return options.settings
    normalisation = as_normalisation(options.normalisation)
    if options.reference == "black" and normalisation is not None:
        return replace(single, reference=black(normalisation.mean, normalisation.std))
    return single


def followed(options: PlanOptions | AuditOptions) -> list[str]:
    """The outputs that these options name; the first is scored."""
    listed = [options.outputs] if isinstance(options.outputs, str) else [*options.outputs]
    if options.output is None:
        return listed
    unset = listed == [*type(options)().outputs]
    return [options.output, *(name for name in listed if not unset and name != options.output)]
