"""A study described as data: dataclasses that check themselves, and YAML files of the same fields."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from fpa.errors import LARGEST_SIDE, MOST_WORKERS, InputError, at_least, one_of, printable, shortened, unknown
from fpa.evaluation.options import (
    MOST_EXAMPLES,
    CurveOptions,
    ExampleOptions,
    PlanOptions,
    ProtocolOptions,
    ScoreOptions,
)
from fpa.files.documents import LARGEST, yaml_values
from fpa.training.settings import FPASettings, RectangleSettings, TrainingSettings
from fpa.typed import typed, typed_fields
from fpa.values import check_type, check_types, checked

if TYPE_CHECKING:
    from fpa.data.normalisation import Normalisation

T = TypeVar("T")

Augmentation = Literal["none", "rectangle", "fpa"]
AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)

RECIPES = resources.files("fpa.study") / "recipes"

SMALL = ("shapes", "digits", "cifar10")
"""Data sets whose images are 32 px a side."""

RESERVED = ("curves", "figures", "variations")
"""Names of other folders, which no training may have."""


@dataclass
class DataSettings:
    """The images.

    Attributes:
        name: shapes, cues, cues-redundant, cues-joint, cues-small, pets, digits, cifar10, food101, imagenet,
            or folder:PATH (one subfolder per class).
        root: Folder that holds the data sets that are not embedded.
        size: Side of the images in pixels, for data sets of files and for cues.
        train_images: How many training images to use, chosen by a fixed seed; null: all.
        evaluation_images: How many test images to evaluate on; null: the data set's own fixed choice.
        workers: Processes that read and decode image files.

    """

    name: str = "shapes"
    root: str = "data"
    size: int = 224
    train_images: int | None = None
    evaluation_images: int | None = None
    workers: int = 8

    def __post_init__(self) -> None:
        check_types(self, "data.")
        at_least("data.size", self.size, 8, LARGEST_SIDE)
        at_least("data.workers", self.workers, 0, MOST_WORKERS)
        at_least("data.train_images", self.train_images, 1)
        at_least("data.evaluation_images", self.evaluation_images, 1)

    def check(self) -> None:
        """Refuse, before a training, settings that contradict each other."""
        if self.name in SMALL and self.size not in (32, DataSettings.size):
            raise InputError(f"data.size is for data sets of files: the images of {self.name} are 32 px")


@dataclass(kw_only=True)
class EvaluationSettings(ExampleOptions, ProtocolOptions, ScoreOptions, CurveOptions):
    """Explaining, perturbing and scoring."""

    prefix: ClassVar[str] = "evaluation."

    examples: int = field(default=24, metadata={"least": 1, "most": MOST_EXAMPLES})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in typed_fields(self).items():
            check_type(f"{self.prefix}{name}", getattr(self, name), kind)
        if not self.estimators:
            raise InputError("evaluation.estimators must name at least one estimator")


@dataclass
class Variant:
    """A training of a study, with settings of its own.

    Attributes:
        augmentation: none, rectangle or fpa.
        seed: Seed of everything random about the training; null: the recipe's.
        fpa: Settings of fpa; null: the recipe's.
        rectangle: Settings of rectangle; null: the recipe's.
        masking: What removing a pixel means in this training; null: as in the recipe.

    """

    augmentation: Augmentation = "fpa"
    seed: int | None = None
    fpa: FPASettings | None = None
    rectangle: RectangleSettings | None = None
    masking: dict[str, Any] | str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        at_least("seed", self.seed, 0)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its augmentation, as plain values."""
        settings = {"fpa": self.fpa, "rectangle": self.rectangle}.get(self.augmentation)
        return {} if settings is None else asdict(settings)


@dataclass
class Recipe:
    """A study.

    Attributes:
        name: Name of the recipe.
        model: resnet-small, resnet18-cifar, resnet50-64px, any torchvision classifier, timm:NAME or hf:NAME.
        weights: What the trainings start from: a file of weights of the model, or DEFAULT, those that
            torchvision or timm publish; the layer of the classes starts anew. null: random weights.
        augmentations: The models to train, any of none, rectangle and fpa.
        variants: Further models to train, by name: an augmentation with settings or a seed of its own.
        masking: What removing a pixel means: constant, black, mean, minimum, maximum, uniform, blur, bokeh;
            with parameters, a mapping such as {name: blur, sigma: 4}; drop: a vision transformer is not given
            the patches, in training neither: of fpa's settings p and p1_max count.
        seed: Seed of everything random.
        data: The images.
        training: The optimisation.
        fpa: Feature perturbation augmentation.
        rectangle: The rectangle baseline.

    """

    name: str = "shapes"
    model: str = "resnet-small"
    weights: str | None = None
    augmentations: list[str] = field(default_factory=lambda: list(AUGMENTATIONS))
    variants: dict[str, Variant] = field(default_factory=dict)
    masking: dict[str, Any] | str = "constant"
    seed: int = 0
    data: DataSettings = field(default_factory=DataSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    fpa: FPASettings = field(default_factory=FPASettings)
    rectangle: RectangleSettings = field(default_factory=RectangleSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        check_types(self)
        if self.name in ("", ".", "..") or set(self.name) & {"/", "\\"} or printable(self.name) != self.name:
            raise InputError(f"a recipe's name must be printable and not a path, got {self.name!r}")
        for name in self.augmentations:
            one_of("augmentation", name, AUGMENTATIONS)
        names = [*self.augmentations, *self.variants]
        if not names or len(set(self.augmentations)) < len(self.augmentations):
            raise InputError(f"augmentations must be one or more different names, got {self.augmentations}")
        for name in self.variants:
            if not re.fullmatch(r"\w[\w.+=-]*", name) or name.casefold() in RESERVED:
                allowed = f"letters, digits and _ . + = -, but none of {', '.join(RESERVED)}"
                raise InputError(f"a variant's name is also that of its folder: {allowed}; got {name!r}")
            # Some file systems take FPA and fpa for one folder.
            if [other.casefold() for other in names].count(name.casefold()) > 1:
                raise InputError(f"two trainings are called {name!r}: give the variant another name")
        at_least("seed", self.seed, 0)

    def trainings(self, names: Sequence[str] | None = None) -> dict[str, Variant]:
        """The models to train by name, augmentations first, with the seed and the settings of each.

        `names` chooses some; also an augmentation that the recipe leaves out can be named.

        >>> recipe = Recipe(augmentations=["none"], variants={"again": Variant("fpa", seed=1)})
        >>> {name: training.seed for name, training in recipe.trainings().items()}
        {'none': 0, 'again': 1}
        """
        known = {name: Variant(name) for name in AUGMENTATIONS} | self.variants
        names = [*self.augmentations, *self.variants] if names is None else names
        for name in names:
            one_of("training", name, known)
        return {name: self.completed(known[name]) for name in names}

    def completed(self, variant: Variant) -> Variant:
        """A variant with the recipe's seed and settings where it has none of its own."""
        return replace(
            variant,
            seed=self.seed if variant.seed is None else variant.seed,
            fpa=variant.fpa or self.fpa,
            rectangle=variant.rectangle or self.rectangle,
            masking=variant.masking or self.masking,
        )

    def description(self, variant: Variant) -> dict[str, Any]:
        """All that determines the weights of a training, as plain values."""
        variant = self.completed(variant)
        values = self.to_dict()
        for later in ("augmentations", "variants", "evaluation", "fpa", "rectangle"):
            del values[later]
        del values["data"]["evaluation_images"]  # of the test images: no training sees them
        values |= {
            "seed": variant.seed,
            "augmentation": variant.augmentation,
            "masking": variant.masking,
        }
        if variant.augmentation != "none":
            values[variant.augmentation] = json.loads(json.dumps(variant.settings))
        return values

    def plan_options(self, normalisation: "Normalisation | None") -> PlanOptions:
        """The options of the plan of its evaluations, for images normalised so."""
        own = PlanOptions(masking=self.masking, seed=self.seed, normalisation=normalisation)
        return own.with_fields_of(self.evaluation)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, as in the YAML file."""
        return dict(json.loads(json.dumps(asdict(self))))  # tuples become lists, as in a file

    def to_yaml(self) -> str:
        """The recipe as a YAML document that `load_recipe` reads back."""
        import yaml

        return str(yaml.safe_dump(self.to_dict(), sort_keys=False))


def recipe_names() -> list[str]:
    """The recipes that ship with the package."""
    files = (item.name for item in RECIPES.iterdir())
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml"))


def recipe_description(name: str) -> str:
    """The sentence a shipped recipe begins with."""
    text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
    return text.splitlines()[0].removeprefix("# ")


def recipe_values(name: str) -> dict[str, Any]:
    """The fields set in a recipe, by name or by the path of a YAML file."""
    source = RECIPES / f"{name}.yaml" if name in recipe_names() else Path(name)
    # os.path takes a name that is too long for a file as one that is not there; Path may raise instead.
    if not os.path.isfile(str(source)):
        missing = InputError(f"there is no recipe file {source}")
        raise missing if name.endswith((".yaml", ".yml")) else unknown("recipe", name, recipe_names())
    try:
        with source.open(encoding="utf-8") as file:
            # One more than is allowed: a large file, named by mistake, is not read to its end.
            text = file.read(LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the recipe file {source} cannot be read: {error}") from error
    if len(text) > LARGEST:
        raise InputError(f"{name} is no recipe, which has at most {LARGEST:,} characters")
    try:
        values = yaml_values(text)
    except ValueError as error:
        raise InputError(f"{name} is not valid YAML: {shortened(str(error))}") from error
    if not isinstance(values, dict):
        raise InputError(f"{name} must be a mapping of recipe fields, got {type(values).__name__}")
    return values


@checked
def load_recipe(name: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """A recipe by name or path, with single fields changed.

    >>> load_recipe("cifar10", {"training.epochs": 50}).training.epochs
    50
    """
    values = recipe_values(name)
    for path, value in (overrides or {}).items():
        nested = reduce(lambda inner, key: {key: inner}, reversed(path.split(".")), value)
        values = _merged(values, nested)
    recipe = _made(Recipe, values)
    if not overrides:
        return recipe
    # With fewer epochs than the recipe has, its milestones would come after the end.
    return replace(recipe, training=recipe.training.adapted(load_recipe(name).training))


def _made(kind: type[T], values: Any, path: str = "") -> T:
    """Settings from plain values, each as the type of its field; refuses fields that there are not."""
    if not isinstance(values, dict):
        raise InputError(f"recipe field {path} must be a mapping, got {shortened(repr(values))}")
    prefix = f"{path}." if path else ""
    known = typed_fields(kind)
    made = {}
    for key, value in values.items():
        field_path = f"{prefix}{key}"
        if key not in known:
            raise unknown("recipe field", field_path, [f"{prefix}{name}" for name in known])
        made[key] = _field_value(known[key], value, field_path)
    return kind(**made)


def _field_value(kind: Any, value: Any, path: str) -> Any:
    """A value of a recipe: settings, settings by name, or anything without fields of its own."""
    inner: Any = next((part for part in (kind, *get_args(kind)) if is_dataclass(part)), None)
    if inner is None or (value is None and inner is not kind):
        return typed(path, value, kind)
    if get_origin(kind) is not dict:
        return _made(inner, value, path)
    if not isinstance(value, dict):
        raise InputError(f"recipe field {path} must be a mapping, got {shortened(repr(value))}")
    return {str(name): _made(inner, part, f"{path}.{name}") for name, part in value.items()}


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = [key for key in changes if isinstance(changes[key], dict) and isinstance(base.get(key), dict)]
    return base | changes | {key: _merged(base[key], changes[key]) for key in both}
