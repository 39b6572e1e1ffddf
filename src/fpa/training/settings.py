"""The numbers of a training, as dataclasses that check themselves."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from fpa.errors import InputError, at_least
from fpa.values import check_types, checked

WARM = 0.1
"""The share of a training over which the learning rate of the schedule `warm-cosine` rises."""


def check_rate(name: str, rate: float | None) -> None:
    """Refuse a learning rate that cannot be meant; above 1e30, a step would overflow float32."""
    if rate is not None and not 0 < rate <= 1e30:
        raise InputError(f"{name} must be positive, and no more than 1e30, got {rate}")


def check_probability(name: str, value: float) -> None:
    """Refuse what is not a probability."""
    if not 0 <= value <= 1:
        raise InputError(f"{name} must be a probability in [0, 1], got {value!r}")


def check_rising(name: str, ends: tuple[float, float], most: float = math.inf) -> None:
    """Refuse what are not two positive numbers, the larger one last and finite."""
    low, high = ends
    if not 0 < low <= high <= most or not math.isfinite(high):
        kind = "shares in (0, 1]" if most == 1 else "positive numbers"
        raise InputError(f"{name} must be two rising {kind}, got {tuple(ends)}")


@dataclass
class TrainingSettings:
    """The optimisation: SGD with momentum on the cross-entropy.

    Attributes:
        epochs: Passes over the training set.
        batch_size: Images per step, over all processes together.
        learning_rate: Initial learning rate.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        schedule: steps: multiplied by gamma at every milestone; cosine: annealed to 0 over all epochs;
            warm-cosine: rises over the first tenth, then annealed to 0, step by step, for a few epochs.
        milestones: Epochs at which the learning rate is multiplied by gamma.
        gamma: Factor at a milestone.
        warmup_epochs: The learning rate rises linearly to its value over this many epochs at the start.
        precision: auto (bfloat16 on CUDA, else float32), float32, tf32 or bfloat16 (mixed).
        compile: Compile the step and capture it in a CUDA graph, on CUDA.
        test_every: Measure the test accuracy every this many epochs, and after the last.
        checkpoint_seconds: Write a checkpoint when the last one is older than this.

    """

    epochs: int = 12
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["steps", "cosine", "warm-cosine"] = "cosine"
    milestones: list[int] = field(default_factory=list)
    gamma: float = 0.1
    warmup_epochs: int = 0
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    compile: bool = True
    test_every: int = 1
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        check_types(self, "training.")
        counts = dict.fromkeys(("epochs", "batch_size", "test_every"), 1)
        for name, least in {**counts, "warmup_epochs": 0, "checkpoint_seconds": 0}.items():
            at_least(f"training.{name}", getattr(self, name), least)
        check_rate("training.learning_rate", self.learning_rate)
        for name, fits, wanted in (
            ("momentum", 0 <= self.momentum < 1, "be in [0, 1)"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "not be negative"),
            ("gamma", 0 < self.gamma <= 1, "be in (0, 1]"),
            ("milestones", self.milestones == sorted(set(self.milestones)), "rise"),
        ):
            if not fits:
                raise InputError(f"training.{name} must {wanted}, got {getattr(self, name)}")
        if self.schedule != "steps" and self.milestones:
            raise InputError(f"training.milestones belong to the schedule 'steps', not to {self.schedule!r}")
        if self.schedule == "warm-cosine" and self.warmup_epochs:
            raise InputError("training.warmup_epochs does not go with 'warm-cosine': it has its own warm-up")

    def check(self) -> None:
        """Refuse, before a training, settings that contradict each other."""
        others = ": choose others, or [] for a constant learning rate"
        for name, last, remedy in (
            ("milestones", max(self.milestones, default=0), others),
            ("warmup_epochs", self.warmup_epochs, ""),
        ):
            if last >= self.epochs:
                below = f"must be below training.epochs {self.epochs}{remedy}"
                raise InputError(f"training.{name} {getattr(self, name)} {below}")

    def adapted(self, recipe: "TrainingSettings") -> "TrainingSettings":
        """With the recipe's warm-up and milestones in proportion, where its epochs are cut below them.

        >>> recipe = TrainingSettings(epochs=40, schedule="steps", milestones=[20, 30], warmup_epochs=4)
        >>> short = replace(recipe, epochs=4).adapted(recipe)
        >>> short.milestones, short.warmup_epochs
        ([2, 3], 0)
        """
        share = self.epochs / recipe.epochs
        warmup = self.warmup_epochs
        milestones = self.milestones
        if share < 1 and self.warmup_epochs == recipe.warmup_epochs >= self.epochs:
            warmup = int(share * self.warmup_epochs)
        last = max(self.milestones, default=0)
        if share < 1 and self.milestones == recipe.milestones and last >= self.epochs:
            scaled = {round(share * milestone) for milestone in self.milestones}
            milestones = sorted(each for each in scaled if 0 < each < self.epochs)
        return replace(self, warmup_epochs=warmup, milestones=milestones)

    def learning_rate_at(self, epoch: float) -> float:
        """The learning rate of an epoch (the first is 0); with `warm-cosine`, at a moment inside it.

        >>> steps = TrainingSettings(epochs=40, learning_rate=0.1, schedule="steps", milestones=[30])
        >>> steps.learning_rate_at(29), round(steps.learning_rate_at(30), 6)
        (0.1, 0.01)
        >>> tuning = TrainingSettings(epochs=2, learning_rate=0.1, schedule="warm-cosine")
        >>> tuple(round(tuning.learning_rate_at(epoch), 3) for epoch in (0.1, 0.2, 1.1, 2))
        (0.05, 0.1, 0.05, 0.0)
        """
        if self.schedule == "warm-cosine":
            done = epoch / self.epochs
            fall = (1 + math.cos(math.pi * (done - WARM) / (1 - WARM))) / 2
            return self.learning_rate * (done / WARM if done < WARM else fall)
        epoch = math.floor(epoch)
        rate = self.learning_rate * min(1, (epoch + 1) / (self.warmup_epochs + 1))
        if self.schedule == "cosine":
            return rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return rate * self.gamma ** sum(epoch >= milestone for milestone in self.milestones)


@dataclass
class FPASettings:
    """Feature perturbation augmentation, see fpa.FPA.

    Attributes:
        p: Probability that a mini-batch is perturbed.
        p1_max: The share of selected pixels is uniform between 0 and this.
        p2: Probability that a selected pixel starts a square.
        s_max: Largest side of a square in pixels.
        squares: Pixels that may start a square: selected, or everywhere (Algorithm 1 as printed).

    """

    p: float = 0.5
    p1_max: float = 0.25
    p2: float = 0.1
    s_max: int = 3
    squares: Literal["selected", "everywhere"] = "selected"

    def __post_init__(self) -> None:
        prefix = "fpa."
        check_types(self, prefix)
        for name in ("p", "p1_max", "p2"):
            check_probability(prefix + name, getattr(self, name))
        at_least(prefix + "s_max", self.s_max, 1)


@checked
def suggested_fpa(height: int, width: int, targets: Literal["labels", "model"] = "labels") -> FPASettings:
    """The settings of FPA for images of this size: the paper's at 32 and 224 px.

    Larger images get larger and fewer squares, along a power law through both sizes, so that squares mask
    about the same share at every size; `p1_max` rises with the logarithm of the side from 32 to 224 px. A
    model that learns its own predictions (targets "model", see `finetune`) has every batch perturbed, since
    its teacher sees the images whole, and more pixels of large images selected: p1_max is 0.25 up to 32 px,
    as in the paper, and rises to 0.5 at 224 px and above.

    >>> suggested_fpa(32, 32).s_max, suggested_fpa(96, 96).s_max, suggested_fpa(224, 224).s_max
    (3, 6, 10)
    >>> suggested_fpa(224, 224).p1_max, suggested_fpa(224, 224, "model").p1_max
    (0.3, 0.5)
    """
    at_least("height", height, 2)
    at_least("width", width, 2)
    place = math.log(math.sqrt(height * width) / 32) / math.log(224 / 32)  # 0 at 32 px, 1 at 224 px
    return FPASettings(
        p=1.0 if targets == "model" else 0.5,
        p1_max=round(0.25 + (0.25 if targets == "model" else 0.05) * min(max(place, 0), 1), 3),
        p2=float(f"{0.1 ** (1 + max(place, 0)):.2g}"),
        s_max=min(max(1, round(3 * (10 / 3) ** place)), min(height, width) - 1),
    )


@dataclass
class RectangleSettings:
    """The rectangle baseline (random erasing), see fpa.Rectangle.

    Attributes:
        p: Probability of being perturbed.
        area: Smallest and largest share of the image covered.
        aspect: Smallest and largest ratio of height to width.
        coin: Toss one coin per mini-batch (batch) or per image (image).

    """

    p: float = 0.5
    area: tuple[float, float] = (0.02, 0.4)
    aspect: tuple[float, float] = (0.3, 1 / 0.3)
    coin: Literal["batch", "image"] = "batch"

    def __post_init__(self) -> None:
        check_types(self, "rectangle.")
        check_probability("rectangle.p", self.p)
        check_rising("rectangle.area", self.area, most=1)
        check_rising("rectangle.aspect", self.aspect)
