"""Infidelity: how far the attributions are from telling what a perturbation of the image does."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fpa.errors import MOST_SAMPLES, at_least
from fpa.masking import Fill, fully_masked, noise_by_image
from fpa.scores.correlation import falls, sums
from fpa.scores.score import Block, Given, Passes, Score, register
from fpa.seeds import Stream, by_image


def infidelity(predicted: Tensor, fall: Tensor, *, scaled: bool = False) -> Tensor:
    r"""$\operatorname{mean}_I (\beta\, I^\top a - (f(x) - f(x - I)))^2$ over perturbations, [N, R] -> [N].

    $\beta$ is 1, or `scaled` the one of at least 0 that makes it least: the mean of the products over the
    mean of the squares of $I^\top a$, 0 where that is negative or the attributions predict no change at all.
    The authors' code, and Captum's, takes a negative one too, so that $-a$ scores as $a$ does.

    >>> import torch
    >>> predicted, fall = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 4.0]])
    >>> infidelity(predicted, fall).item(), infidelity(predicted, fall, scaled=True).item()
    (2.5, 0.0)
    """
    if scaled:
        squares = predicted.square().mean(1, keepdim=True)
        products = (predicted * fall).mean(1, keepdim=True)
        predicted = predicted * (products / squares.where(squares > 0, 1.0)).clamp(min=0)
    return (predicted - fall).square().mean(1)


class Infidelity(Score):
    r"""`infidelity` under random squares that are removed: $I = x$ minus the image without the square.

    Attributions that are gradients are multiplied with $I$; those that contain the input already, as
    integrated gradients do, are summed over the square, which is $(I / x)^\top a$ without the division. The
    raw map is taken, before the channels are reduced: `vg_abs` and `vg_sum` have the same infidelity.

    Values are squares of the output. Where models are compared, the mean is divided by that of `unit`, the
    mean squared fall: a map of zeros then has 1 on every model.
    """

    name = "infidelity"
    title = "mean squared error of the attributions' prediction of the fall without random squares"
    source = "Yeh et al. 2019"
    higher_is_better = False
    needs = frozenset({"forwards", "raw maps"})
    unit_title = "the mean squared fall"
    scaled = False

    def __init__(self, samples: int = 100) -> None:
        at_least("samples", samples, 1, MOST_SAMPLES)
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
        masks, gone, fall = self._perturbed(block)

        def prediction() -> dict[str, Tensor]:
            # I^T a of a square is a sum over its pixels, of a * I or, with the input inside, of a itself.
            weighted = {
                name: (raw * gone if block.estimators[name].is_gradient else raw).sum(1)
                for name, raw in block.raw_maps.items()
                if block.estimators[name].can_be_negative(reduced=False)
            }
            return sums(weighted, masks)

        predicted = block.shared(("predicted", self.samples), prediction)
        values = {name: infidelity(each, fall, scaled=self.scaled) for name, each in predicted.items()}
        return block.all_of(values)

    def unit(self, block: Block) -> Tensor:  # noqa: D102
        return self._perturbed(block).fall.square().mean(1)

    def _perturbed(self, block: Block) -> "_Perturbed":
        # Both scores of this file read the same squares, passes and predictions: the first one makes them.
        def made() -> _Perturbed:
            task = block.task
            masks = random_squares(block, self.samples)
            noise = noise_by_image(task.masking, task.images, task.seed, task.indices)
            gone = task.images - fully_masked(task.masking, task.images, noise)
            return _Perturbed(masks, gone, falls(block, masks, self.name))

        perturbed: _Perturbed = block.shared(("squares", self.samples), made)
        return perturbed


class _Perturbed(NamedTuple):
    """What random squares do to the images of a block."""

    masks: Tensor
    """Bool [N, samples, H, W]."""
    gone: Tensor
    """[N, C, H, W]: the images minus what is left where they are masked."""
    fall: Tensor
    """[N, samples]: how far the output falls without each square."""


class ScaledInfidelity(Infidelity):
    """The same with the attributions multiplied by the number of at least 0 that is best for each image."""

    name = "infidelity_scaled"
    title = "infidelity with the attributions of each image scaled as is best, by at least 0"
    scaled = True


def random_squares(block: Block, samples: int) -> Tensor:
    """Random squares, clipped at the border, bool [N, samples, H, W]; every pixel is as likely in one.

    The side is uniform from 1 to half of the shorter side of the image, the place uniform among all where
    some of the square is inside.
    """
    task = block.task
    device = task.images.device
    height, width = task.images.shape[2:]
    uniform = by_image((3, samples, 1), task.seed, task.indices, Stream.SQUARES, device, draw="uniform")
    side = 1 + (uniform[:, 0] * max(1, min(height, width) // 2)).floor()
    # From one row inside above the image to one row inside below it: each row is in `side` of these
    # places. Squares wholly inside would cover a corner from one place only, the centre from all of them.
    top = (uniform[:, 1] * (height + side - 1)).floor() - (side - 1)
    left = (uniform[:, 2] * (width + side - 1)).floor() - (side - 1)
    rows = torch.arange(height, device=device)
    columns = torch.arange(width, device=device)
    in_rows = (rows >= top) & (rows < top + side)
    in_columns = (columns >= left) & (columns < left + side)
    return in_rows[..., :, None] & in_columns[..., None, :]


register(Infidelity())
register(ScaledInfidelity())
