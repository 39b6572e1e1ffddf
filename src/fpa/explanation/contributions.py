"""Whether the raw maps of a function are contributions, as input times gradient is, or gradients."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fpa.engine.tasks import Task
from fpa.explanation.estimator import Estimator
from fpa.explanation.explainer import raw_maps_of
from fpa.explanation.maps import CaptumObject, Function
from fpa.explanation.paper import reference_images

_NEAR = 0.1
_NEARER = 0.01
"""What is left of an image that fades; the smaller, the more a contribution is rounded away."""


def unclear(estimators: Mapping[str, Estimator]) -> dict[str, Estimator]:
    """The functions among estimators of which nobody has said whether their maps contain the input."""
    return {
        name: each
        for name, each in estimators.items()
        if isinstance(each.raw, Function)
        and not isinstance(each.raw, CaptumObject)  # Captum says it of its methods
        and each.contains_input is None
        and not each.times_input
    }


def contain_input(task: Task, estimators: Mapping[str, Estimator]) -> dict[str, bool]:
    """Whether raw maps contain the input as a factor, from what they do when the images of a task fade.

    The right half of every image fades towards nothing, the left half is gone. What pixels contribute is 0
    in the left half and fades with the right one; gradients do neither. Nothing is 0 for input times gradient
    and the fully masked image for integrated gradients: one of them is enough.
    """
    contain = dict.fromkeys(estimators, False)
    channels = task.images.shape[1]
    nothing = [torch.zeros_like(task.images), reference_images("masked", task)]
    for reference in nothing[:1] if torch.equal(*nothing) else nothing:
        near = _faded(task, estimators, reference, _NEAR)
        nearer = _faded(task, estimators, reference, _NEARER)
        for name, raw in near.items():
            # A map without channels cannot be multiplied with a change of theirs: it is summed as it is.
            reduced = raw.shape[1] < channels
            contain[name] |= reduced or _is_zero_left(raw) or _fades(raw, nearer[name])
    return contain


def _faded(
    task: Task, estimators: Mapping[str, Estimator], reference: Tensor, left: float
) -> dict[str, Tensor]:
    """The raw maps of the images of which only so much is left, and of the left half nothing."""
    rest = left * (task.images - reference)
    rest[..., : rest.shape[-1] // 2] = 0
    return raw_maps_of(replace(task, images=reference + rest), estimators)


def _is_zero_left(raw: Tensor) -> bool:
    # Whatever the maps are divided by, as those that are brought to a maximum of 1 are.
    half = raw.shape[-1] // 2
    return bool(raw[..., :half].abs().amax() <= 1e-3 * raw.abs().amax())


def _fades(near: Tensor, nearer: Tensor) -> bool:
    # Contributions become a tenth, gradients stay as they are: half way between is a third. What is not
    # finite tells nothing, and is taken for a contribution.
    return not bool(nearer.norm() >= (_NEARER / _NEAR) ** 0.5 * near.norm())
