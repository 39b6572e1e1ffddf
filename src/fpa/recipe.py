"""A study described as data: dataclasses that check themselves, and YAML files of the same fields."""

import math
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from fpa.errors import InputError, unknown

AUGMENTATIONS = ("none", "rectangle", "fpa")
WARM = 0.1
"""The share of a training over which the learning rate of the schedule `warm-cosine` rises."""


@dataclass
class DataSettings:
    """The images.

    Attributes:
        name: shapes, digits, cifar10, food101, imagenet, or folder:PATH for class-per-subfolder images.
        root: Folder that holds the data sets that are not embedded.
        size: Side of the images in pixels, for data sets of files.
        train_images: How many training images to use, chosen by a fixed seed; null: all.
        evaluation_images: How many test images to evaluate on; null: the data set's own fixed choice.
        workers: Processes that decode image files.

    """

    name: str = "shapes"
    root: str = "data"
    size: int = 224
    train_images: int | None = None
    evaluation_images: int | None = None
    workers: int = 8

    def __post_init__(self) -> None:
        _at_least("data.size", self.size, 8)
        _at_least("data.workers", self.workers, 0)
        for name in ("train_images", "evaluation_images"):
            if getattr(self, name) is not None:
                _at_least(f"data.{name}", getattr(self, name), 1)

    def check(self) -> None:
        """Refuse, before a training, settings that contradict each other."""
        if self.name in ("shapes", "digits", "cifar10") and self.size not in (32, DataSettings.size):
            raise InputError(f"data.size is for data sets of files: the images of {self.name} are 32 px")


@dataclass
class TrainingSettings:
    """The optimisation: SGD with momentum on the cross-entropy.

    Attributes:
        epochs: Passes over the training set.
        batch_size: Images a step, over all processes together.
        learning_rate: Initial learning rate.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        schedule: steps: multiplied by gamma at every milestone; cosine: annealed to 0 over all epochs;
            warm-cosine: up over the first tenth, then annealed to 0, step by step, for a few epochs.
        milestones: Epochs at which the learning rate is multiplied by gamma.
        gamma: Factor at a milestone.
        warmup_epochs: The learning rate rises linearly to its value over so many epochs at the start.
        precision: auto (bfloat16 on CUDA, else float32), float32, tf32 or bfloat16 (mixed).
        compile: Compile the step and capture it in a CUDA graph, on CUDA.
        test_every: Measure the test accuracy every so many epochs, and after the last.
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
        _at_least("training.epochs", self.epochs, 1)
        _at_least("training.batch_size", self.batch_size, 1)
        _at_least("training.test_every", self.test_every, 1)
        _at_least("training.warmup_epochs", self.warmup_epochs, 0)
        _at_least("training.checkpoint_seconds", self.checkpoint_seconds, 0)
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"training.learning_rate must be positive, got {self.learning_rate}")
        if not 0 <= self.momentum < 1:
            raise InputError(f"training.momentum must be in [0, 1), got {self.momentum}")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"training.weight_decay must not be negative, got {self.weight_decay}")
        if not 0 < self.gamma <= 1:
            raise InputError(f"training.gamma must be in (0, 1], got {self.gamma}")
        if self.milestones != sorted(set(self.milestones)):
            raise InputError(f"training.milestones must rise, got {self.milestones}")
        if self.schedule != "steps" and self.milestones:
            raise InputError(f"training.milestones belong to the schedule 'steps', not to {self.schedule!r}")
        if self.schedule == "warm-cosine" and self.warmup_epochs:
            raise InputError("training.warmup_epochs does not go with 'warm-cosine', which has its own")

    def check(self) -> None:
        """Refuse, before a training, settings that contradict each other."""
        if self.milestones and self.milestones[-1] >= self.epochs:
            raise InputError(
                f"training.milestones {self.milestones} must be below training.epochs {self.epochs}: "
                "choose others, or [] for a learning rate that stays"
            )
        if self.warmup_epochs >= self.epochs:
            raise InputError(
                f"training.warmup_epochs {self.warmup_epochs} must be below training.epochs {self.epochs}"
            )

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


def suggested_fpa(height: int, width: int) -> FPASettings:
    """The settings of FPA for images of this size: the paper's at 32 and 224 px, a power law through both.

    Larger images get larger and fewer squares, so that squares mask about the same share at every size.

    >>> suggested_fpa(32, 32).s_max, suggested_fpa(96, 96).s_max, suggested_fpa(224, 224).s_max
    (3, 6, 10)
    """
    _at_least("height", height, 2)
    _at_least("width", width, 2)
    place = math.log(math.sqrt(height * width) / 32) / math.log(224 / 32)  # 0 at 32 px, 1 at 224 px
    return FPASettings(
        p=0.5,
        p1_max=round(0.25 + 0.05 * min(max(place, 0), 1), 3),
        p2=float(f"{0.1 ** (1 + max(place, 0)):.2g}"),
        s_max=min(max(1, round(3 * (10 / 3) ** place)), min(height, width) - 1),
    )


@dataclass
class RectangleSettings:
    """The rectangle baseline (random erasing), see fpa.Rectangle.

    Attributes:
        p: Probability of being perturbed.
        area: Smallest and largest share of the image covered.
        aspect: Smallest and largest height over width.
        coin: One coin a mini-batch (batch) or an image (image).

    """

    p: float = 0.5
    area: tuple[float, float] = (0.02, 0.4)
    aspect: tuple[float, float] = (0.3, 1 / 0.3)
    coin: Literal["batch", "image"] = "batch"


@dataclass
class EvaluationSettings:
    """Explaining, perturbing and scoring; see fpa.estimators.Settings.

    Attributes:
        estimators: The set paper, or names of estimators, also captum:METHOD and maps:FILE.
        ig_steps: Steps of integrated gradients.
        sg_samples: Noisy copies of SmoothGrad and its squared variant.
        sigma: Standard deviation of their noise, as a share of each image's range.
        reference: Where integrated gradients start, masked (the fully masked image) or black.
        points: Points of a perturbation curve, evenly from 0 to 100 % of the pixels.
        precision: auto, or float32, tf32 or bfloat16 for gradients and forwards alike.
        examples: Images shown with their maps in figures and report.

    """

    estimators: list[str] = field(default_factory=lambda: ["paper"])
    ig_steps: int = 200
    sg_samples: int = 15
    sigma: float = 0.15
    reference: Literal["masked", "black"] = "masked"
    points: int = 21
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    examples: int = 24

    def __post_init__(self) -> None:
        _at_least("evaluation.ig_steps", self.ig_steps, 1)
        _at_least("evaluation.sg_samples", self.sg_samples, 1)
        _at_least("evaluation.points", self.points, 2)
        _at_least("evaluation.examples", self.examples, 1)
        if not 0 <= self.sigma < math.inf:
            raise InputError(f"evaluation.sigma must not be negative, got {self.sigma}")
        if not self.estimators:
            raise InputError("evaluation.estimators must name at least one estimator")


@dataclass
class Recipe:
    """A study.

    Attributes:
        name: Name of the recipe.
        model: resnet-small, resnet18-cifar, any torchvision classifier, or timm:NAME.
        augmentations: The models to train, any of none, rectangle and fpa.
        masking: What removing a pixel means: constant, black, mean, minimum, maximum, uniform, blur, bokeh.
        seed: Seed of everything random.
        data: The images.
        training: The optimisation.
        fpa: Feature perturbation augmentation.
        rectangle: The rectangle baseline.

    """

    name: str = "shapes"
    model: str = "resnet-small"
    augmentations: list[str] = field(default_factory=lambda: list(AUGMENTATIONS))
    masking: str = "constant"
    seed: int = 0
    data: DataSettings = field(default_factory=DataSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    fpa: FPASettings = field(default_factory=FPASettings)
    rectangle: RectangleSettings = field(default_factory=RectangleSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or set(self.name) & {"/", "\\"}:
            raise InputError(f"a recipe's name must not be a path, got {self.name!r}")
        for name in self.augmentations:
            if name not in AUGMENTATIONS:
                raise unknown("augmentation", name, AUGMENTATIONS)
        if not self.augmentations or len(set(self.augmentations)) < len(self.augmentations):
            raise InputError(f"augmentations must be one or more different names, got {self.augmentations}")
        _at_least("seed", self.seed, 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, as in the YAML file."""
        return _plain(asdict(self))  # type: ignore[no-any-return]

    def to_yaml(self) -> str:
        """The recipe as a YAML document that `load_recipe` reads back."""
        import yaml

        text: str = yaml.safe_dump(self.to_dict(), sort_keys=False)
        return text


def recipe_names() -> list[str]:
    """The recipes that ship with the package."""
    folder = resources.files("fpa") / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def recipe_description(name: str) -> str:
    """The sentence a shipped recipe begins with."""
    text = (resources.files("fpa") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    return text.splitlines()[0].removeprefix("# ")


def recipe_values(name: str) -> dict[str, Any]:
    """The fields set in a recipe, by name or by the path of a YAML file; unknown fields are refused."""
    import yaml

    source = Path(name)
    if name in recipe_names():
        text = (resources.files("fpa") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    elif source.suffix in (".yaml", ".yml") or source.is_file():
        try:
            text = source.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise InputError(f"there is no recipe file {source}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the recipe file {source} cannot be read: {error}") from error
    else:
        raise unknown("recipe", name, recipe_names())

    class Unique(yaml.SafeLoader):
        """Refuses a field that is given twice, of which YAML would take the last."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise yaml.YAMLError(f"{key} is given twice")
            return super().construct_mapping(node, deep)

    try:
        values = yaml.load(text, Unique)
    except yaml.YAMLError as error:
        raise InputError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise InputError(f"{name} must be a mapping of recipe fields, got {type(values).__name__}")
    _check_fields(Recipe, values, "")
    return values


def load_recipe(name: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """A recipe by name or path, with single fields changed.

    >>> load_recipe("cifar10", {"training.epochs": 50}).training.epochs
    50
    """
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe)
    values = recipe_values(name)
    for path, value in (overrides or {}).items():
        nested = value
        for key in reversed(path.split(".")):
            nested = {key: nested}
        _check_fields(Recipe, nested, "")
        values = _merged(values, nested)
    try:
        namespace = parser.parse_object(values)
        return recipe_from(parser.instantiate(namespace), namespace.name)
    except ArgumentError as error:
        raise InputError(f"recipe {name!r}: {' '.join(str(error).split())}") from error


def recipe_from(namespace: Any, name: str) -> Recipe:
    """The recipe among parsed arguments."""
    return Recipe(name, **{item.name: namespace[item.name] for item in fields(Recipe) if item.name != "name"})


NO_MATTER = (
    "data.root",
    "data.workers",
    "training.compile",
    "training.test_every",
    "training.checkpoint_seconds",
)
"""Recipe fields that do not change a result."""


def differences(ours: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> list[str]:
    """One line a field that differs between two recipes; fields that change no result are passed over.

    >>> differences({"a": {"b": 1}}, {"a": {"b": 2}})
    ['a.b: 2 -> 1']
    """
    lines = []
    for key in [*ours, *(k for k in theirs if k not in ours)]:
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, dict) and isinstance(other, dict):
            lines += differences(mine, other, f"{prefix}{key}.")
        elif mine != other and f"{prefix}{key}" not in NO_MATTER:
            lines.append(f"{prefix}{key}: {other} -> {mine}")
    return lines


def _check_fields(kind: type, values: dict[str, Any], prefix: str) -> None:
    known = {item.name: item.type for item in fields(kind)}
    for key, value in values.items():
        if key not in known:
            raise unknown("recipe field", f"{prefix}{key}", [f"{prefix}{name}" for name in known])
        inner = known[key]
        if is_dataclass(inner):
            if not isinstance(value, dict):
                raise InputError(f"recipe field {prefix}{key} must be a mapping, got {value!r}")
            _check_fields(inner, value, f"{prefix}{key}.")  # type: ignore[arg-type]


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = _merged(base[key], value) if both else value
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise InputError(f"{name} must be at least {least}, got {value}")
