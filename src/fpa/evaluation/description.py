"""What evaluation.json says of an evaluation: typed, read without torch, and written with the same keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fpa.errors import InputError
from fpa.evaluation.answers import Answers, answers_of
from fpa.evaluation.stored_plan import StoredPlan
from fpa.files import values_checksum
from fpa.notes import Note
from fpa.values import besides, check_type, part_of

FORMAT = 2
"""Version of the folder of an evaluation."""


@dataclass(frozen=True)
class Origin:
    """What the numbers of an evaluation come from: where it is the same, blocks belong together."""

    plan: StoredPlan
    model: str
    """The fingerprint of the weights."""

    @cached_property
    def key(self) -> str:
        """A short text that all files of the evaluation carry."""
        return values_checksum([self.plan.to_json(), self.model])


@dataclass(frozen=True)
class SubjectFacts:
    """What was evaluated, for people: it changes no number. None: not said."""

    name: str = ""
    """The model, or the variant of a study."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of the logits."""
    data: str | None = None
    """What the images are called."""
    augmentation: str | None = None
    """What the model was trained with, in the words of its card."""
    training: Mapping[str, Any] | None = None
    """The settings of that augmentation."""
    judge: str | None = None
    """The model whose curves these are, where it is another than the one explained."""
    notes: tuple[str, ...] | None = None
    """What a person was told before the work began, in words."""
    note_facts: tuple[Note, ...] | None = None
    """The same as facts."""
    command: str | None = None
    """What was typed."""

    @property
    def noted(self) -> tuple[Note, ...]:
        """What a person was told before the work began; earlier versions stored the words alone."""
        if self.note_facts is not None:
            return self.note_facts
        return tuple(map(Note.from_json, self.notes or ()))

    def updated(self, newer: "SubjectFacts") -> "SubjectFacts":
        """What the newer one says, and what only this one does."""
        return SubjectFacts.from_json(self.to_json() | newer.to_json())

    def to_json(self) -> dict[str, Any]:
        """What is said, as evaluation.json has it."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}
        if self.note_facts is not None:
            plain["note_facts"] = [note.to_json() for note in self.note_facts]
        return plain

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> "SubjectFacts":
        """What evaluation.json says, or the error that says what is wrong with it."""
        notes = part_of(about, "notes", list[str] | None)
        facts = part_of(about, "note_facts", list[dict[str, Any]] | None)
        return cls(
            name=part_of(about, "name", str),
            classes=tuple(part_of(about, "classes", list[str])),
            data=part_of(about, "data", str | None),
            augmentation=part_of(about, "augmentation", str | None),
            training=part_of(about, "training", dict[str, Any] | None),
            judge=part_of(about, "judge", str | None),
            notes=None if notes is None else tuple(notes),
            note_facts=None if facts is None else tuple(map(_note, facts)),
            command=part_of(about, "command", str | None),
        )


def _note(stored: dict[str, Any]) -> Note:
    try:
        return Note.from_json(stored)
    except (KeyError, ValueError) as error:
        raise InputError(f"note_facts: {stored} is no note: {error}") from error


@dataclass(frozen=True)
class Description:
    """All of evaluation.json."""

    plan: StoredPlan
    """All that determines the numbers, with the weights and the images."""
    model: str
    """The fingerprint of the weights."""
    block_size: int
    """Images in a block; the last one may have fewer."""
    images: int | None
    """Images in all; None until the evaluation is complete."""
    subject: SubjectFacts
    made_with: Mapping[str, Any] | None = None
    """Versions, the device, the forms of the arithmetic: what numbers may depend on beside the plan."""
    scores_left_out: Mapping[str, str] | None = None
    """The scores that could not be computed, and why."""
    answers: Mapping[str, Answers] | None = None
    """What "model" and "judge" answer to a few fixed images; None in files of earlier versions."""
    normalisation: Mapping[str, list[float]] | None = None
    """How photos were normalised; None where they came so, and in files of earlier versions."""
    places: int | None = None
    """Images to be evaluated, those included that cannot be read; None where a stream does not say it."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What a later version stored besides."""

    @cached_property
    def origin(self) -> Origin:
        """What its numbers come from."""
        return Origin(self.plan, self.model)

    @property
    def arithmetic(self) -> Mapping[str, str]:
        """By kind of pass: in which form the model was run (precision, folded, compiled)."""
        return (self.made_with or {}).get("forms") or {}

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the packages that made it."""
        return (self.made_with or {}).get("versions") or {}

    @property
    def numbers(self) -> range:
        """The numbers of its blocks; none where it is not known how many images there are."""
        return range(-(-(self.places or 0) // max(self.block_size, 1)))

    def continuing(self, before: "Description") -> "Description":
        """The same, of an evaluation that was begun before: what only that says stays."""
        return replace(
            self,
            images=before.images,
            subject=before.subject.updated(self.subject),
            # The first blocks were made with it, and a result has one answer.
            made_with=before.made_with or self.made_with,
            scores_left_out=self.scores_left_out or before.scores_left_out,
            # Those of the first run: what is compared must not move from one run to the next.
            answers={**(self.answers or {}), **(before.answers or {})} or None,
            normalisation=before.normalisation or self.normalisation,
            more={**before.more, **self.more},
        )

    def with_arithmetic(self, more: Mapping[str, str]) -> "Description":
        """The same with the arithmetic of further kinds of passes."""
        return replace(self, made_with={**(self.made_with or {}), "forms": {**self.arithmetic, **more}})

    def notes_of_blocks(self) -> dict[str, Any]:
        """What every block says too: with it they can be continued where evaluation.json is lost."""
        answers = {who: each.to_json() for who, each in (self.answers or {}).items()}
        return {
            "block": self.block_size,
            **({} if self.answers is None else {"answers": answers}),
            **({} if self.normalisation is None else {"normalisation": dict(self.normalisation)}),
        }

    def to_json(self) -> dict[str, Any]:
        """As the file has it."""
        return {
            "images": self.images,
            **({} if self.places is None else {"places": self.places}),
            **({} if self.made_with is None else {"made_with": dict(self.made_with)}),
            "plan": self.plan.to_json(),
            "model": self.model,
            **self.subject.to_json(),
            "format": FORMAT,
            **({} if self.scores_left_out is None else {"scores_left_out": dict(self.scores_left_out)}),
            **self.notes_of_blocks(),
            **self.more,
        }

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> "Description":
        """What the file says, or the error that says what is wrong with it."""
        check_type("format", about.get("format"), int)
        others = besides(about, cls, SubjectFacts)
        return cls(
            plan=StoredPlan.from_json(about.get("plan")),
            model=part_of(about, "model", str),
            block_size=part_of(about, "block", int),
            images=part_of(about, "images", int | None),
            places=part_of(about, "places", int | None),
            subject=SubjectFacts.from_json(about),
            made_with=part_of(about, "made_with", dict[str, Any] | None),
            scores_left_out=part_of(about, "scores_left_out", dict[str, str] | None),
            answers=answers_of(part_of(about, "answers", dict[str, Any] | None)),
            normalisation=part_of(about, "normalisation", dict[str, list[float]] | None),
            more={name: value for name, value in others.items() if name not in ("format", "block")},
        )
