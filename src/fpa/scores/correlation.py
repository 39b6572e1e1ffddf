"""What scores that remove sets of pixels share: sums of a map over the sets, and correlations."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fpa.errors import MOST_SAMPLES, InputError, at_least
from fpa.perturbation import OUTPUTS, outputs_without
from fpa.scores.score import Block
from fpa.seeds import by_image
from fpa.values import check_type


def check_sets(samples: int, *shares: float) -> None:
    """Refuse fewer than two sets of pixels of a size, and sizes that leave no choice of pixels."""
    at_least("samples", samples, 2, MOST_SAMPLES)
    for share in shares:
        check_type("share", share, float)
        if not 0 < share < 1:
            raise InputError(f"share must be between 0 and 1, got {share:g}")


def falls(block: Block, masks: Tensor, name: str) -> Tensor:
    """How far the output falls without the pixels of each mask, [N or 1, R, H, W] -> float64 [N, R].

    `name` is the score that asks, for the progress display.
    """
    start = OUTPUTS[block.output](block.logits, block.task.targets, block.truth)
    without = outputs_without(block.task, masks, block.truth, block.output, name)
    return start[:, None].double() - without.double()


def sums(maps: Mapping[str, Tensor], masks: Tensor) -> dict[str, Tensor]:
    """The sum of each map [N, H, W] over each mask of its image [N or 1, R, H, W], float64 [N, R] by name.

    >>> import torch
    >>> masks = torch.tensor([[[[True, False]], [[True, True]]]])
    >>> sums({"map": torch.tensor([[[1.0, 2.0]]])}, masks)["map"].tolist()
    [[1.0, 3.0]]
    """
    if not maps:
        return {}
    # All maps in one product of matrices, masks [R, pixels] times maps [pixels, names], in parts: masks as
    # float64 take eight times the room they have as bool.
    rows = torch.stack([values.flatten(1).double() for values in maps.values()], 2)
    chosen = masks.to(rows.device).flatten(2).expand(len(rows), -1, -1)
    at_once = max(1, (32 << 20) // (8 * chosen[0].numel()))  # 32 MiB of masks as numbers
    parts = zip(torch.split(chosen, at_once), torch.split(rows, at_once), strict=True)
    total = torch.cat([torch.bmm(mask.double(), values) for mask, values in parts])
    return dict(zip(maps, total.unbind(2), strict=True))


def pearson(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's correlation of each row, [N, R] and [N, R] -> [N]; NaN where one side is constant.

    >>> import torch
    >>> pearson(torch.tensor([[1.0, 2, 3], [1, 1, 1]]), torch.tensor([[2.0, 4, 6], [1, 2, 3]])).tolist()
    [1.0, nan]
    """
    a = x.double() - x.double().mean(1, keepdim=True)
    b = y.double() - y.double().mean(1, keepdim=True)
    # Rounding must not make a variance of what is constant.
    flat = torch.stack([each.amax(1) == each.amin(1) for each in (x, y)]).any(0)
    deviations = (a.square().sum(1) * b.square().sum(1)).sqrt().masked_fill(flat, torch.nan)
    return ((a * b).sum(1) / deviations).clamp(-1, 1)


def mean_ranks(values: Tensor) -> Tensor:
    """The rank of every value in its row [N, R]; equal values share their mean rank.

    >>> import torch
    >>> mean_ranks(torch.tensor([[5.0, 1.0, 5.0]])).tolist()
    [[1.5, 0.0, 1.5]]
    """
    values = values.contiguous()
    ordered = values.sort(1).values
    # Among the sorted values, equal ones stand from `first` to `after - 1`: their mean rank is the middle.
    first = torch.searchsorted(ordered, values, side="left")
    after = torch.searchsorted(ordered, values, side="right")
    return (first + after - 1).double() / 2


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Spearman's correlation of each row, [N, R] and [N, R] -> [N]; NaN where one side is constant or NaN.

    >>> import torch
    >>> spearman(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[3.0, 5.0, 4.0]])).tolist()
    [0.5]
    """
    known = (x.isfinite() & y.isfinite()).all(1)
    return pearson(mean_ranks(x), mean_ranks(y)).masked_fill(~known, torch.nan)


def random_subsets(block: Block, sizes: Sequence[int], each: int, stream: int) -> Tensor:
    """Random sets of pixels, bool [N, sizes * each, H, W]: `each` of every size, all sets equally likely.

    They depend on the seed and the number of the image alone.
    """
    images = block.task.images
    shape = images.shape[2:]
    device = images.device
    masks = torch.empty(len(images), len(sizes) * each, shape.numel(), dtype=torch.bool, device=device)
    # A set of n pixels is where n of the random numbers are smallest: a selection, cheaper than a shuffle.
    at_once = max(1, (64 << 20) // (8 * masks[0].numel()))  # 64 MiB of random numbers
    for start in range(0, len(images), at_once):
        part = block.task.indices[start : start + at_once]
        numbers = by_image(masks.shape[1:], block.task.seed, part, stream, device=device, draw="integers")
        for place, size in enumerate(sizes):
            of_size = numbers[:, place * each : (place + 1) * each]
            here = masks[start : start + at_once, place * each : (place + 1) * each]
            here.copy_(of_size <= of_size.kthvalue(size, dim=2, keepdim=True).values)
    return masks.view(len(images), -1, *shape)
