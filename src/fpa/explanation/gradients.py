"""Raw maps made of gradients: VG, IG, SG and SQ-SG, from one list of rows."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fpa.engine.engine import Engine, Work
from fpa.errors import InputError
from fpa.explanation.estimator import Settings
from fpa.masking import Masking, fully_masked, noise_by_image
from fpa.seeds import by_image

_NOISE, _RANDOM = 1, 2  # streams of random numbers


def _gradient_maps(
    engine: Engine,
    images: Tensor,
    needed: set[str],
    targets: Tensor,
    indices: Sequence[int],
    seed: int,
    settings: Settings,
    masking: Masking,
) -> dict[str, Tensor]:
    """The raw maps that are made of gradients, all from one list of rows."""
    count, device = len(images), images.device
    raws: dict[str, Tensor] = {}
    works: list[Work] = []

    def add(
        name: str,
        per_image: int,
        rows: Callable[[int, int, Tensor], Tensor],
        take: Callable[[int, int, Tensor], None],
    ) -> None:
        """`per_image` rows for each image, one image after the other."""

        def build(start: int, stop: int) -> Tensor:
            return rows(start, stop, torch.arange(start, stop, device=device) // per_image)

        def classes(start: int, stop: int) -> Tensor:
            return targets.index_select(0, torch.arange(start, stop, device=device) // per_image)

        works.append(Work(count * per_image, build, take, classes, lambda start: name))

    if "ig" in needed:
        steps, total = settings.ig_steps, torch.zeros_like(images)
        away = images - reference_images(settings.reference, images, masking, seed, indices)

        def interpolated(start: int, stop: int, image: Tensor) -> Tensor:
            step = torch.arange(start, stop, device=device) - image * steps + 1
            back = (step.to(images.dtype) / steps - 1)[:, None, None, None]
            return images.index_select(0, image).addcmul_(back, away.index_select(0, image))

        add("IG", steps, interpolated, lambda a, b, gradients: _add_by_image(total, steps, a, b, gradients))
        raws["ig"] = total
    if "vg" in needed:
        plain = raws["vg"] = torch.empty_like(images)

        def keep(start: int, stop: int, gradients: Tensor) -> None:
            plain[start:stop] = gradients

        add("VG", 1, lambda start, stop, _: images[start:stop], keep)
    if needed & {"sg", "sqsg"}:
        samples, mean, square = settings.sg_samples, torch.zeros_like(images), torch.zeros_like(images)
        noise = by_image((samples, *images.shape[1:]), seed, indices, _NOISE, device)
        spread = settings.sigma * (
            images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True)
        )

        noise = noise.flatten(0, 1)

        def noisy(start: int, stop: int, image: Tensor) -> Tensor:
            own = noise[start:stop].to(images.dtype)
            return images.index_select(0, image).addcmul_(spread.index_select(0, image), own)

        def take(start: int, stop: int, gradients: Tensor) -> None:
            _add_by_image(mean, samples, start, stop, gradients)
            if "sqsg" in needed:
                _add_by_image(square, samples, start, stop, gradients.square())

        add("SG", samples, noisy, take)
        raws["sg"], raws["sqsg"] = mean, square
    engine.gradients(works)
    if "ig" in needed:
        total.mul_(away).div_(steps)
    if needed & {"sg", "sqsg"}:
        mean.div_(samples)
        square.div_(samples)
    return raws


def _add_by_image(total: Tensor, per_image: int, start: int, stop: int, rows: Tensor) -> None:
    """Add each of the rows start:stop to its image's total: a first part, whole images, a last part."""
    at = start
    while at < stop:
        image, past = divmod(at, per_image)
        whole = 0 if past else (stop - at) // per_image
        count = whole * per_image or min(per_image - past, stop - at)
        images = max(whole, 1)
        part = torch.unflatten(rows[at - start : at - start + count], 0, (images, count // images))
        total[image : image + images] += part.sum(1, dtype=total.dtype)
        at += count


def reference_images(
    reference: Any, images: Tensor, masking: Masking, seed: int, indices: Sequence[int]
) -> Tensor:
    """Where the path of integrated gradients starts, [N, C, H, W]; see `Settings.reference`."""
    if isinstance(reference, str) and reference == "black":
        low, high = images.nan_to_num().aminmax()
        if low < -1.01 or high > 1.01:
            raise InputError(
                'reference "black" means -1 and needs images scaled to [-1, 1]; these reach from '
                f"{float(low):.3g} to {float(high):.3g}: give reference=fpa.masking.black(mean, std) instead"
            )
        reference = -1.0
    if isinstance(reference, str):
        reference = masking
    if callable(reference):
        return fully_masked(reference, images, noise_by_image(reference, images, seed, indices))
    values = torch.as_tensor(reference, dtype=images.dtype, device=images.device)
    if values.ndim == 1:
        values = values[:, None, None]
    try:
        return values.expand_as(images)
    except RuntimeError as error:
        raise InputError(
            f"the reference {list(values.shape)} does not fit images {list(images.shape)}"
        ) from error
