"""Captum's methods as estimators, by name, on a private copy of the model that its hooks can work on."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fpa.engine.tasks import Task
from fpa.errors import InputError, unknown, warn
from fpa.explanation.facts import Reduction
from fpa.explanation.grids import Grids
from fpa.explanation.hookable import ACTIVATIONS, HookableModel, hookable_model
from fpa.explanation.paper import IntegratedGradients, reference_images
from fpa.explanation.raw_maps import RawMap, checked_reference, in_parts, register
from fpa.seeds import Stream, derive
from fpa.values import shape_or_type

_GRID = 8  # windows per side, for Occlusion (in half steps) and for the methods that remove patches


# Methods that fit the pattern of the others but not an evaluation image by image, with Layer before or not.
_UNFIT = {
    "DeepLiftShap": "it needs a set of reference images: DeepLift and LayerDeepLift take the masked image",
    "FeaturePermutation": "an image's map would depend on the other images of its batch",
    "ShapleyValues": "it needs all orders of the features: captum:ShapleyValueSampling draws some",
}


# The activations that Captum's methods treat in their own way; of others they take the gradient.
_RULES = {"DeepLift": ACTIVATIONS, "GuidedBackprop": (nn.ReLU,), "Deconvolution": (nn.ReLU,)}


# The methods of Captum that are gradients of the input. Its own word for that, `multiplies_by_inputs`,
# is False for Lime and KernelShap too, which tell what a window contributes, and for layers.
_GRADIENTS = ("Saliency", "GuidedBackprop", "Deconvolution", "GuidedGradCam")


@register
@dataclass(frozen=True)
class Captum(RawMap):
    """A class of `captum.attr`, with settings that suit images.

    References are the fully masked image (`Settings.reference`), windows and patches are an eighth of the
    image, maps of a layer are summed over its channels and brought to image size bilinearly. `layer` names a
    layer of the model for methods that need one, by default the last convolution. What `steps` and
    `reference` leave open is taken from `Settings.ig_steps` and `Settings.reference`.
    """

    method: str
    layer: str | None = None
    steps: int | None = None
    reference: Any = None
    family = "captum"

    def __post_init__(self) -> None:
        if self.reference is not None:
            object.__setattr__(self, "reference", checked_reference(self.reference))
        if reason := _UNFIT.get(self.method.removeprefix("Layer")):
            raise InputError(f"captum:{self.method} cannot be used by name: {reason}")
        if self.method not in (known := captum_methods()):
            raise unknown("Captum method", self.method, known)
        if self.layer is not None and not self._takes_layer:
            raise InputError(f"captum:{self.method} takes no layer, got @{self.layer}")

    @property
    def _class(self) -> Any:
        return getattr(_captum(), self.method)

    @property
    def _takes_layer(self) -> bool:
        return "layer" in inspect.signature(self._class.__init__).parameters

    @classmethod
    def from_argument(cls, argument: str) -> tuple[Self, Reduction | None]:
        """`captum:METHOD[_sum|_abs][@LAYER]`."""
        method, _, layer = argument.partition("@")
        reduction = next((each for each in get_args(Reduction) if method.endswith(f"_{each}")), None)
        return cls(method.removesuffix(f"_{reduction}"), layer or None), reduction

    @property
    def is_gradient(self) -> bool:
        """Whether it is one of Captum's gradients."""
        return self.method in _GRADIENTS

    @property
    def label(self) -> str:
        """The method, and its layer if one is named."""
        return self.method + (f"@{self.layer}" if self.layer else "")

    @property
    def from_settings(self) -> dict[str, str]:  # type: ignore[override]
        """Steps and reference, where the method takes any; what it removes is filled by the masking."""
        accepted = inspect.signature(self._class.attribute).parameters
        removes = "feature_mask" in accepted or "sliding_window_shapes" in accepted
        taken = {"steps": "n_steps" in accepted, "reference": "baselines" in accepted and not removes}
        return {name: key for name, key in IntegratedGradients.from_settings.items() if taken[name]}

    def described(self) -> dict[str, Any]:
        """The method, what it was set to and Captum's version."""
        return {**super().described(), "captum": version("captum")}

    def raw_map(self, name: str, task: Task) -> Tensor:
        """What Captum says of the images, on a copy of the model that fits its hooks."""
        model = hookable_model(task.engine, task.images)
        if others := _without_rule(self.method, model):
            gap = f"Captum's {self.method} has no rule for {', '.join(others)}"
            warn(f"{gap}: {name} is no more than a gradient there")
        explainer = self._explainer(name, task, model)
        accepted = inspect.signature(explainer.attribute).parameters
        of_layer = isinstance(explainer, _captum().LayerAttribution)
        baselines = reference_images(self.reference, task) if "baselines" in accepted else None

        def run(rows: Tensor, at: slice) -> Tensor:
            batch = task.engine.batch_size("gradients", task.images[:1])
            chosen = {
                "baselines": None if baselines is None else baselines[at].to(rows),
                "abs": False,  # left to the reduction
                "n_steps": self.steps,
                "internal_batch_size": 2 * len(rows),  # LayerConductance takes no less
                "perturbations_per_eval": max(1, batch // len(rows)),
                "interpolate_mode": "bilinear",
                **_windows(rows),
            }
            arguments = {key: value for key, value in chosen.items() if key in accepted}
            if task.output == "logit":
                arguments["target"] = task.targets[at]
            else:  # the hookable model then gives one number an image, of which there is no class to choose
                arguments["additional_forward_args"] = (task.targets[at], task.output)
            with _random_numbers(derive(task.seed, task.indices[at.start], Stream.CAPTUM), rows.device):
                raw = explainer.attribute(rows.requires_grad_(), **arguments)
            return at_image_size(name, raw, rows) if of_layer else raw

        # Captum keeps copies of what passes through the activations, and DeepLift the reference beside
        # the image: about four times what a gradient needs. Random numbers are an image's own if it is alone.
        with _translated(name):
            return in_parts(task, name, run, memory_factor=4, alone="n_samples" in accepted)

    def _explainer(self, name: str, task: Task, model: HookableModel) -> Any:
        """Captum's object for this model, with a layer where the method takes one."""
        if not self._takes_layer:
            return self._class(model)
        if self.layer:
            return self._class(model, model.layer(self.layer))
        grids = Grids.of(model, task.images[:1].to(task.engine.dtype))
        return self._class(model, grids.last_convolution(name))


def _without_rule(method: str, model: HookableModel) -> list[str]:
    """The activations of a model that a method has no rule for, though it has some for others."""
    kinds = {type(part) for part in model.modules() if type(part).__module__ == nn.ReLU.__module__}
    known = (*_RULES.get(method.removeprefix("Layer"), (nn.Module,)), nn.MultiheadAttention)
    return sorted(kind.__name__ for kind in kinds if not issubclass(kind, known))


def captum_methods() -> list[str]:
    """The methods of Captum that can be had by name.

    >>> {"DeepLift", "GuidedBackprop", "LayerGradCam", "Occlusion"} <= set(captum_methods())
    True
    """
    return [*filter(_fits, _captum().__all__)]


def _fits(name: str) -> bool:
    """Whether something of Captum's is made from a model, perhaps with a layer, and explains its classes."""
    method = getattr(_captum(), name)
    if name.removeprefix("Layer") in _UNFIT or not hasattr(method, "attribute"):
        return False
    made = _required(method.__init__)
    accepted = inspect.signature(method.attribute).parameters
    of_model = made[:1] in (["model"], ["forward_func"]) and set(made[1:]) <= {"layer"}
    supplied = set(_required(method.attribute)) <= {"inputs", "baselines", "sliding_window_shapes"}
    return of_model and supplied and "target" in accepted


def _required(method: Any) -> list[str]:
    """The arguments of a method that have no default, after `self`."""
    _, *entries = inspect.signature(method).parameters.values()
    return [item.name for item in entries if item.default is item.empty and item.kind is not item.VAR_KEYWORD]


def _captum() -> Any:
    try:
        import captum.attr
    except ImportError as error:
        raise InputError("the estimators captum:... need the package captum: pip install captum") from error
    return captum.attr


def _windows(images: Tensor) -> dict[str, Any]:
    """What to remove at a time: a sliding window, or patches side by side; all channels together."""
    channels, *sides = images.shape[1:]
    window = [max(1, side // _GRID) for side in sides]
    rows, columns = (torch.arange(side, device=images.device) * min(side, _GRID) // side for side in sides)
    patches = rows[:, None] * min(sides[1], _GRID) + columns
    return {
        "sliding_window_shapes": (channels, *window),
        "strides": (channels, *(max(1, side // 2) for side in window)),
        "feature_mask": patches.expand(1, *images.shape[1:]).contiguous(),
    }


def at_image_size(name: str, raw: Any, images: Tensor) -> Tensor:
    """What a method says of the places of a layer, summed over its channels, at the size of the images."""
    if not isinstance(raw, Tensor) or raw.ndim != 4:
        problem = f"the layer gives {shape_or_type(raw)} for {len(images)} images, not [N, channels, h, w]"
        raise InputError(f"estimator {name}: {problem}: name a convolution or a block of them")
    return functional.interpolate(raw.sum(1, keepdim=True), images.shape[2:], mode="bilinear")


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Captum's complaints as ours, without its notices about hooks, which touch only our copy."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Setting (forward, )?backward hooks")
        try:
            yield
        except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"estimator {name}: Captum cannot explain this model: {reason}") from error


@contextmanager
def _random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Global random numbers from this seed, as Captum draws them, and as they were afterwards."""
    legacy = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(legacy)  # noqa: NPY002
