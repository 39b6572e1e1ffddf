"""Infidelity: how far the attributions are from telling what a perturbation of the image does."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fpa.errors import at_least
from fpa.explanation.estimator import Estimator
from fpa.explanation.raw_maps import GradientMap
from fpa.masking import Fill, fully_masked, noise_by_image
from fpa.scores.correlation import falls, sums
from fpa.scores.score import Block, Given, Passes, Score, register
from fpa.seeds import Stream, by_image


def infidelity(predicted: Tensor, fall: Tensor, *, scaled: bool = False) -> Tensor:
    r"""$\operatorname{mean}_I (\beta\, I^\top a - (f(x) - f(x - I)))^2$ over perturbations, [N, R] -> [N].

    $\beta$ is 1, or `scaled` the one that makes it least: the mean of the products over the mean of the
    squares of $I^\top a$ (0 where the attributions predict no change at all).

    >>> import torch
    >>> predicted, fall = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 4.0]])
    >>> infidelity(predicted, fall).item(), infidelity(predicted, fall, scaled=True).item()
    (2.5, 0.0)
    """
    if scaled:
        squares = predicted.square().mean(1, keepdim=True)
        products = (predicted * fall).mean(1, keepdim=True)
        predicted = predicted * (products / squares.where(squares > 0, 1.0))
    return (predicted - fall).square().mean(1)


def contains_input(estimator: Estimator) -> bool:
    """Whether a raw map is a contribution, as input times gradient is, and not a gradient.

    Maps from elsewhere are taken for contributions.
    """
    raw = estimator.raw
    return estimator.times_input or raw.input_inside or not isinstance(raw, GradientMap)


class Infidelity(Score):
    r"""`infidelity` under random squares that are removed: $I = x$ minus the image without the square.

    Attributions that are gradients are multiplied with $I$; those that contain the input already, as
    integrated gradients do, are summed over the square, which is $(I / x)^\top a$ without the division. The
    raw map is taken, before the channels are reduced: `vg_abs` and `vg_sum` have the same infidelity.
    """

    name = "infidelity"
    title = "mean squared error of the attributions' prediction of the fall without random squares"
    source = "Yeh et al. 2019"
    higher_is_better = False
    needs = frozenset({"forwards", "raw maps"})
    scaled = False

    def __init__(self, samples: int = 100) -> None:
        at_least("samples", samples, 1)
        self.samples = samples

    def missing(self, given: Given) -> str | None:  # noqa: D102
        if not isinstance(given.masking, Fill):
            return "needs a masking with which a removed pixel looks the same whatever else is removed"
        able = (each for each in given.estimators.values() if not each.raw.baseline)
        if not any(each.can_be_negative(reduced=False) for each in able):
            return "needs signed raw maps, and no estimator has any"
        return super().missing(given)

    def passes(self, given: Given) -> Passes:  # noqa: D102
        return Passes(forwards=self.samples, shared=("squares", self.samples))

    def __call__(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        # Both scores of this file read the same squares, passes and predictions: the first one makes them.
        def perturbed() -> tuple[Tensor, Tensor, Tensor]:
            task = block.task
            masks = random_squares(block, self.samples)
            noise = noise_by_image(task.masking, task.images, task.seed, task.indices)
            gone = task.images - fully_masked(task.masking, task.images, noise)
            return masks, gone, falls(block, masks, self.name)

        masks, gone, fall = block.shared(("squares", self.samples), perturbed)

        def prediction() -> dict[str, Tensor]:
            # I^T a of a square is a sum over its pixels, of a * I or, with the input inside, of a itself.
            weighted = {
                name: (raw if contains_input(block.estimators[name]) else raw * gone).sum(1)
                for name, raw in block.raw_maps.items()
                if block.estimators[name].can_be_negative(reduced=False)
            }
            return sums(weighted, masks)

        predicted = block.shared(("predicted", self.samples), prediction)
        values = {name: infidelity(each, fall, scaled=self.scaled) for name, each in predicted.items()}
        return block.all_of(values)


class ScaledInfidelity(Infidelity):
    """The same with the attributions multiplied by the number that is best for each image."""

    name = "infidelity_scaled"
    title = "infidelity with the attributions of each image scaled as is best"
    scaled = True


def random_squares(block: Block, samples: int) -> Tensor:
    """Random squares inside the images, bool [N, samples, H, W].

    The side is uniform from 1 to half of the shorter side of the image, the place uniform.
    """
    task = block.task
    device = task.images.device
    height, width = task.images.shape[2:]
    uniform = by_image((3, samples, 1), task.seed, task.indices, Stream.SQUARES, device, draw="uniform")
    side = 1 + (uniform[:, 0] * max(1, min(height, width) // 2)).floor()
    top = (uniform[:, 1] * (height - side + 1)).floor()
    left = (uniform[:, 2] * (width - side + 1)).floor()
    rows = torch.arange(height, device=device)
    columns = torch.arange(width, device=device)
    in_rows = (rows >= top) & (rows < top + side)
    in_columns = (columns >= left) & (columns < left + side)
    return in_rows[..., :, None] & in_columns[..., None, :]


register(Infidelity())
register(ScaledInfidelity())
