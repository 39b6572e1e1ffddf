"""A study described as data: dataclasses that check themselves, and YAML files of the same fields."""

import math
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from fpa.errors import InputError, at_least, unknown
from fpa.training.settings import FPASettings, RectangleSettings, TrainingSettings

AUGMENTATIONS = ("none", "rectangle", "fpa")


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
        at_least("data.size", self.size, 8)
        at_least("data.workers", self.workers, 0)
        for name in ("train_images", "evaluation_images"):
            if getattr(self, name) is not None:
                at_least(f"data.{name}", getattr(self, name), 1)

    def check(self) -> None:
        """Refuse, before a training, settings that contradict each other."""
        if self.name in ("shapes", "digits", "cifar10") and self.size not in (32, DataSettings.size):
            raise InputError(f"data.size is for data sets of files: the images of {self.name} are 32 px")


@dataclass
class EvaluationSettings:
    """Explaining, perturbing and scoring; see fpa.explanation.estimator.Settings.

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
        at_least("evaluation.ig_steps", self.ig_steps, 1)
        at_least("evaluation.sg_samples", self.sg_samples, 1)
        at_least("evaluation.points", self.points, 2)
        at_least("evaluation.examples", self.examples, 1)
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
        at_least("seed", self.seed, 0)

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
    folder = resources.files("fpa.study") / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def recipe_description(name: str) -> str:
    """The sentence a shipped recipe begins with."""
    text = (resources.files("fpa.study") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    return text.splitlines()[0].removeprefix("# ")


def recipe_values(name: str) -> dict[str, Any]:
    """The fields set in a recipe, by name or by the path of a YAML file; unknown fields are refused."""
    import yaml

    source = Path(name)
    if name in recipe_names():
        text = (resources.files("fpa.study") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
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
