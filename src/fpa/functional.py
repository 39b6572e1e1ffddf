"""The pure functions: raw maps, maps, ranks, masked images and curves, each of what it is given alone.

Images are [N, C, H, W], normalised the way the model takes them; `model` is a classifier or an `Engine`.
Random numbers depend on `seed` and on `indices`, the numbers of the images in their data set (by default
0, 1, ...), never on the batch.
"""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from fpa.engine.tasks import Model, Targets
from fpa.errors import InputError
from fpa.explanation import Estimator, RawMap, Task, make_task, raw_maps_of
from fpa.explanation.paper import IntegratedGradients, SmoothGrad, SquaredSmoothGrad, VanillaGradient
from fpa.masking import MaskingLike, check_mask, get_masking, lent
from fpa.perturbation import perturbation_curves, ranks
from fpa.values import check_plain, checked

__all__ = [
    "integrated_gradients", "perturbation_curves", "ranks", "reduce", "remove", "smooth_grad",
    "squared_smooth_grad", "vanilla_gradient",
]  # fmt: skip


@checked
def vanilla_gradient(model: Model, images: Tensor, targets: Targets = None) -> Tensor:
    """The gradient of the logit of `targets` [N] (by default the classes predicted), [N, C, H, W].

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    >>> gradient = vanilla_gradient(model, torch.rand(3, 1, 2, 2), targets=1)
    >>> bool((gradient.flatten(1) == model[1].weight[1]).all())
    True
    """
    task, _ = make_task(model, images, targets)
    return _raw_map(VanillaGradient(), task)


@checked
def integrated_gradients(
    model: Model,
    images: Tensor,
    targets: Targets = None,
    *,
    steps: int = 200,
    reference: Any = "masked",
    masking: MaskingLike | None = None,
    seed: int = 0,
    indices: Sequence[int] | None = None,
) -> Tensor:
    """Integrated gradients by the right Riemann sum, [N, C, H, W]; see `Settings.reference` for where from.

    >>> import torch
    >>> from torch import nn
    >>> model, images = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.rand(3, 1, 2, 2)
    >>> scores = integrated_gradients(model, images, 1, steps=10).sum((1, 2, 3))
    >>> difference = (model(images) - model(torch.zeros_like(images)))[:, 1]
    >>> torch.allclose(scores, difference, atol=1e-5)
    True
    """
    raw_map = IntegratedGradients(steps, reference)
    task, _ = make_task(model, images, targets, masking=masking, seed=seed, indices=indices)
    return _raw_map(raw_map, task)


@checked
def smooth_grad(
    model: Model,
    images: Tensor,
    targets: Targets = None,
    *,
    samples: int = 15,
    sigma: float = 0.15,
    seed: int = 0,
    indices: Sequence[int] | None = None,
) -> Tensor:
    """The mean gradient of noisy copies, [N, C, H, W]; the noise is `sigma` times an image's range.

    >>> import torch
    >>> from torch import nn
    >>> model, images = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.rand(3, 1, 2, 2)
    >>> both = smooth_grad(model, images, 1), vanilla_gradient(model, images, 1)
    >>> torch.allclose(*both)  # a linear model has the same gradient everywhere
    True
    """
    task, _ = make_task(model, images, targets, seed=seed, indices=indices)
    return _raw_map(SmoothGrad(samples, sigma), task)


@checked
def squared_smooth_grad(
    model: Model,
    images: Tensor,
    targets: Targets = None,
    *,
    samples: int = 15,
    sigma: float = 0.15,
    seed: int = 0,
    indices: Sequence[int] | None = None,
) -> Tensor:
    """The mean squared gradient of the copies that `smooth_grad` takes, [N, C, H, W].

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> bool((squared_smooth_grad(model, torch.rand(3, 1, 2, 2)) >= 0).all())
    True
    """
    task, _ = make_task(model, images, targets, seed=seed, indices=indices)
    return _raw_map(SquaredSmoothGrad(samples, sigma), task)


@checked
def reduce(raw: Tensor, reduction: Literal["sum", "abs"] = "sum", *, times: Tensor | None = None) -> Tensor:
    """The map [N, H, W] of a raw map [N, C, H, W]: the sum over the channels, or of the absolute values.

    `times` are the images where the raw map is to be multiplied with the input first, the paper's prime.

    >>> import torch
    >>> raw = torch.tensor([[[[1.0]], [[-3.0]]]])
    >>> reduce(raw).item(), reduce(raw, "abs").item(), reduce(raw, times=2 * raw).item()
    (-2.0, 4.0, 20.0)
    """
    for name, tensor in {"raw": raw, "times": raw if times is None else times}.items():
        if check_plain(name, tensor).ndim != 4 or tensor.shape != raw.shape:
            wanted = "[N, C, H, W]" if name == "raw" else f"of the shape {list(raw.shape)} of raw"
            raise InputError(f"{name} must be {wanted}, got {list(tensor.shape)}")
    estimator = Estimator(VanillaGradient(), reduction, times_input=times is not None)
    return estimator.reduce(raw if times is None else estimator.scaled(raw, times))


@checked
def remove(
    images: Tensor, mask: Tensor, masking: MaskingLike | None = None, *, noise: Tensor | None = None
) -> Tensor:
    """Copies of the images [N, C, H, W] without the pixels of the bool mask [N, H, W].

    `noise` is what `Masking.noise` drew; without it a masking that needs some draws it anew.

    >>> import torch
    >>> images, mask = torch.ones(1, 1, 2, 2), torch.tensor([[[True, False], [False, False]]])
    >>> remove(images, mask).tolist()
    [[[[0.0, 1.0], [1.0, 1.0]]]]
    """
    check_mask(images, mask)
    removal = get_masking(masking)
    return removal(lent(removal, images), lent(removal, mask), lent(removal, noise))


def _raw_map(raw_map: RawMap, task: Task) -> Tensor:
    return raw_maps_of(task, {"map": Estimator(raw_map)})["map"]
