"""Perturbation curves: the logit of a class while pixels are removed, most or least important first.

Each map is sorted once; the rank of every pixel is kept, and a mask is the comparison of ranks with a
number, made on the device for each row of a batch. MIF is the exact reverse of LIF.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from fpa.data.loaders import check_plain
from fpa.engine import Engine, Work
from fpa.engine.devices import sent
from fpa.engine.outputs import OUTPUTS, check_outputs
from fpa.engine.tasks import Model, Targets, Task, make_task, problems
from fpa.errors import InputError, warn
from fpa.masking import Fill, Masking, MaskingLike, fully_masked, get_masking, noise_by_image
from fpa.perturbation.features import Features, Pixels, features_of
from fpa.values import check_type, checked, shape_or_type


@dataclass(frozen=True)
class Curves:
    """What the model says of every image while its pixels are removed, for every map and both orders.

    A map, image or logit that is not finite leaves NaN in the rows concerned.
    """

    fractions: Tensor
    """[K] float64: the exact share of pixels (of features, see `shares_mif`) removed at each point."""
    mif: dict[str, Tensor]
    """Most important first: for every map [N, K]."""
    lif: dict[str, Tensor]
    """Least important first: for every map [N, K]."""
    unmasked: Tensor
    """[N]: the value of the unmasked image."""
    targets: Tensor
    """[N]: the class the values are about."""
    shares_mif: dict[str, Tensor] | None = None
    """[N, K] for every map where features differ in size: the exact share of pixels removed."""
    shares_lif: dict[str, Tensor] | None = None
    others: dict[str, "Curves"] = field(default_factory=dict)
    """The curves of other outputs asked for: "centred", "margin", "log_odds", "probability", "accuracy"."""

    def at(self, rows: Sequence[int]) -> "Curves":
        """The curves of some of the images."""
        chosen = torch.tensor(rows, dtype=torch.long, device=self.unmasked.device)

        def some(by_map: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: values[chosen] for name, values in by_map.items()}

        return Curves(
            self.fractions,
            some(self.mif),
            some(self.lif),
            unmasked=self.unmasked[chosen],
            targets=self.targets[chosen],
            shares_mif=None if self.shares_mif is None else some(self.shares_mif),
            shares_lif=None if self.shares_lif is None else some(self.shares_lif),
            others={name: each.at(rows) for name, each in self.others.items()},
        )


@checked
@torch.inference_mode(False)
def perturbation_curves(
    model: Model,
    images: Tensor,
    maps: Mapping[str, Tensor] | Tensor,
    *,
    points: int = 21,
    fractions: Sequence[float] | None = None,
    masking: MaskingLike | None = None,
    targets: Targets = None,
    labels: Tensor | None = None,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    features: Features = "pixels",
    outputs: Sequence[str] = (),
) -> Curves:
    """The MIF and LIF curves of every map [N, H, W] for the images [N, C, H, W].

    - `maps`: by name; a single tensor is named "map".
    - `points`: how many fractions, evenly from 0 to 1; or `fractions`: themselves, rising within 0..1.
    - `masking`: what removing a pixel means; by default it becomes 0. With "road" curves end at 0.95.
    - `targets` [N]: the classes whose logits are followed, by default those predicted on the unmasked images.
    - `seed` fixes, with `indices` [N] (the numbers of the images in their data set, by default 0, 1, ...),
      the order of pixels with equal scores and the noise of the masking.
    - `features`: what is removed together: "pixels", squares of that many pixels per side, "segments" of each
      image (about 100 superpixels, or as in "segments:50"), or those of a label map [N, H, W] or [H, W]. A
      feature's score is the mean of its pixels.
    - `outputs`: what is followed besides the logit: "centred", "margin", "log_odds", "probability" or
      "accuracy", which is against `labels` [N], or without them the share of images still predicted as the
      target.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    >>> images = torch.rand(2, 1, 4, 4)
    >>> curves = perturbation_curves(model, images, {"itself": images[:, 0]}, points=5)
    >>> curves.fractions.tolist(), curves.mif["itself"].shape
    ([0.0, 0.25, 0.5, 0.75, 1.0], torch.Size([2, 5]))
    """
    engine = Engine.of(model, images)
    images = engine.images(images)
    maps = check_maps(maps, images)
    removal = get_masking(masking)
    shares, followed = check_fractions(points, fractions, removal.most), check_outputs(("logit", *outputs))
    check_left(removal, shares, features_of(features, images))
    task, logits = make_task(engine, images, targets, masking=removal, seed=seed, indices=indices)
    truth = task.targets if labels is None else engine.explained_classes(logits, labels, "labels")
    others = curves_of(task, maps, shares, logits=logits, labels=truth, features=features, outputs=followed)
    curves = others.pop("logit")
    curves.others.update(others)
    for problem in problems(not_finite(images, maps, curves), task.indices):
        warn(f"{problem}: left out (NaN)")
    return curves


class Removal:
    """Images of a task with pixels removed, built row by row; the noise of the masking is drawn once."""

    def __init__(self, task: Task) -> None:
        self.images, self.masking = task.images, task.masking
        self.noise = noise_by_image(task.masking, task.images, task.seed, task.indices)
        self.fill = task.masking.fill(task.images, self.noise) if isinstance(task.masking, Fill) else None

    def __call__(self, image: Tensor, mask: Tensor) -> Tensor:
        """The images of these places [B], each without the pixels of its mask [B, H, W]."""
        visible = self.images.index_select(0, image)
        if self.fill is None:
            noise = None if self.noise is None else self.noise.index_select(0, image)
            return self.masking(visible, mask, noise)
        gone = self.fill if len(self.fill) == 1 else self.fill.index_select(0, image)
        # The same as torch.where for finite values, exactly, and several times faster on the CPU.
        return visible.lerp_(gone, mask[:, None].to(visible.dtype))


def outputs_without(task: Task, masks: Tensor, labels: Tensor, output: str, name: str = "") -> Tensor:
    """An output of every image without the pixels of each of its masks, [N or 1, R, H, W] -> [N, R].

    `labels` [N] are the true classes; `name` says in the progress display what the passes are for.
    """
    (_, per_image, *_), device = masks.shape, task.images.device
    remove, values = Removal(task), task.images.new_empty(len(task.images) * per_image)
    flat = masks.to(device).flatten(0, 1)

    def rows(start: int, stop: int) -> Tensor:
        row = torch.arange(start, stop, device=device)
        return remove(row // per_image, flat.index_select(0, row % len(flat)))

    def take(start: int, stop: int, logits: Tensor) -> None:
        image = torch.arange(start, stop, device=device) // per_image
        classes, truth = task.targets.index_select(0, image), labels.index_select(0, image)
        values[start:stop] = OUTPUTS[output](logits, classes, truth)

    task.engine.logits([Work(len(values), rows, take, name=lambda start: name)])
    return values.view(-1, per_image)


def curves_of(
    task: Task,
    maps: Mapping[str, Tensor],
    fractions: Sequence[float],
    *,
    logits: Tensor,
    labels: Tensor,
    features: Features = "pixels",
    outputs: Sequence[str] = ("logit",),
    sides: Sequence[str] = ("mif", "lif"),
    shown: Mapping[str, str] | None = None,
) -> dict[str, Curves]:
    """The curves of every output, for arguments already checked; with pixels it never waits for the device.

    `logits` [N, classes] are those of the unmasked images; `sides` are the orders that are run, the other one
    has no curves; `shown` names the maps in the progress display.
    """
    images, count, device = task.images, len(task.images), task.images.device
    parts = features_of(features, images)
    order = parts.random_order(device, task.seed, task.indices)
    ranks = torch.stack([parts.ranks(values, order) for values in maps.values()])
    pixel_ranks = parts.to_pixels(ranks)
    steps, columns, exact, removed = _steps(parts, fractions)
    width = steps.shape[1]
    both = len(sides) * width
    # LIF removes ranks below k; MIF removes those not below (features - k).
    limits = [parts.counts[:, None] - steps if side == "mif" else steps for side in sides]
    below = sent(torch.stack(limits, 1).flatten(), device)
    most_first = sent(torch.tensor([side == "mif" for side in sides]), device)
    remove = Removal(task)

    def masked(start: int, stop: int) -> Tensor:
        row = torch.arange(start, stop, device=device)
        ranking = row // both
        image = ranking % count
        rank = pixel_ranks.index_select(0, ranking)
        limit = below.index_select(0, row % both + image * both).to(rank.dtype)
        flipped = most_first.index_select(0, row // width % len(sides))
        return remove(image, (rank < limit[:, None, None]) ^ flipped[:, None, None])

    rows = len(maps) * count * both
    values = {name: torch.empty(rows, dtype=images.dtype, device=device) for name in outputs}
    ends = {name: torch.empty(count, dtype=images.dtype, device=device) for name in outputs}

    def take(start: int, stop: int, result: Tensor, rows_of_image: int, kept: dict[str, Tensor]) -> None:
        image = torch.arange(start, stop, device=device) // rows_of_image % count
        classes, truth = task.targets.index_select(0, image), labels.index_select(0, image)
        for name in outputs:
            kept[name][start:stop] = OUTPUTS[name](result, classes, truth)

    watched = [(shown or {}).get(name, name) for name in maps]
    inner = partial(take, rows_of_image=both, kept=values)
    works = [Work(rows, masked, inner, name=lambda start: watched[start // (count * both)])]
    if parts.equal and width + 1 in columns:
        gone = fully_masked(task.masking, images, remove.noise)
        works.append(Work(count, lambda a, b: gone[a:b], partial(take, rows_of_image=1, kept=ends)))
    task.engine.logits(works)

    bad_image = ~images.isfinite().flatten(1).all(1)
    bad = torch.stack([~values.isfinite().flatten(1).all(1) for values in maps.values()]) | bad_image
    pixel_shares = parts.pixel_shares(ranks, removed, list(maps))
    curves = {}
    for name in outputs:
        start = OUTPUTS[name](logits, task.targets, labels)
        shape = len(maps), count, len(sides)
        first, last = (end[None, :, None, None].expand(*shape, 1) for end in (start, ends[name]))
        full = torch.cat([first, values[name].view(*shape, width), last], -1)[..., columns]
        full = full.masked_fill(bad[:, :, None, None], torch.nan)
        run = {side: dict(zip(maps, full[:, :, place], strict=True)) for place, side in enumerate(sides)}
        unmasked = start.masked_fill(bad_image, torch.nan)
        mif, lif = run.get("mif", {}), run.get("lif", {})
        curves[name] = Curves(exact, mif, lif, unmasked, task.targets, **pixel_shares)
    return curves


def _steps(parts: Pixels, fractions: Sequence[float]) -> tuple[Tensor, list[int], Tensor, Tensor]:
    """How many features are removed.

    The numbers run [N, steps]; where each point of the curve is found among the unmasked image (0), these
    (from 1 on) and the fully masked one (after them); the exact fractions [K]; the numbers of all
    points [N, K].
    """
    removed = (torch.as_tensor(fractions, dtype=torch.float64) * parts.counts[:, None]).round().long()
    if not parts.equal:
        columns = list(range(1, len(fractions) + 1))
        return removed, columns, torch.as_tensor(fractions, dtype=torch.float64), removed
    # All images have equally many features: each number is run once only, and the two ends are shared.
    every = removed[0].tolist()
    inner = sorted({k for k in every if 0 < k < parts.most})
    columns = [0 if k == 0 else 1 + (inner.index(k) if k < parts.most else len(inner)) for k in every]
    steps = torch.tensor([inner], dtype=torch.int64).expand(len(removed), -1)
    return steps, columns, torch.tensor(every, dtype=torch.float64) / parts.most, removed


def check_maps(maps: Mapping[str, Tensor] | Tensor, images: Tensor) -> dict[str, Tensor]:
    """Maps by name on the device of the images, each [N, H, W] or the error that says which is not."""
    named = {"map": maps} if isinstance(maps, Tensor) else dict(maps)
    if not named:
        raise InputError("there are no maps")
    shape = [len(images), *images.shape[2:]]
    for name, values in named.items():
        if not isinstance(values, Tensor) or list(check_plain(f"map {name}", values).shape) != shape:
            raise InputError(f"map {name} must be {shape} for these images, got {shape_or_type(values)}")
        named[name] = values.detach().to(images.device, torch.promote_types(values.dtype, torch.float32))
    return named


MOST_POINTS = 10_000
"""Of a curve."""


def check_fractions(
    points: int = 21, fractions: Sequence[float] | None = None, most: float = 1.0
) -> list[float]:
    """The fractions of the curve: those given, once checked, or `points` of them evenly from 0 to 1.

    A masking that can remove only `most` of an image ends the curve there.

    >>> check_fractions(3), check_fractions(3, most=0.95)
    ([0.0, 0.5, 1.0], [0.0, 0.5, 0.95])
    """
    if fractions is None:
        check_type("points", points, int)
        if not 2 <= points <= MOST_POINTS:
            limit = "at least 2" if points < 2 else f"at most {MOST_POINTS:,}"
            raise InputError(f"a curve needs {limit} points, got {points}")
        even = [step / (points - 1) for step in range(points)]
        return up_to(most, even)
    check_type("fractions", fractions, Sequence[float])
    shares = [float(fraction) for fraction in fractions]
    if not shares:
        raise InputError("there are no fractions")
    if outside := [share for share in shares if not 0 <= share <= 1]:
        raise InputError(f"fractions must be in 0..1, got {outside[0]:g}")
    for before, after in pairwise(shares):
        if after <= before:
            raise InputError(f"fractions must rise, got {after:g} after {before:g}")
    if shares[-1] > most:
        needed = "this masking imputes pixels from those that are left"
        raise InputError(f"{needed}: fractions must be in 0..{most:g}, got {shares[-1]:g}")
    return shares


def up_to(most: float, fractions: Sequence[float]) -> list[float]:
    """The fractions below the most that can be removed, and this one.

    >>> up_to(0.95, [0.0, 0.97, 1.0])
    [0.0, 0.95]
    """
    return [*(fraction for fraction in fractions if fraction < most), most]


def check_left(masking: Masking, fractions: Sequence[float], parts: Pixels) -> None:
    """Refuse features so large that nothing is left of an image for a masking that needs some of it."""
    few = [count for count in parts.counts.tolist() if round(fractions[-1] * count) == count]
    if masking.most < 1 and few:
        gone = f"removing {100 * fractions[-1]:g} % of {few[0]} features removes all of them"
        raise InputError(f"{gone}, but this masking imputes from those that are left: use smaller features")


def not_finite(images: Tensor, maps: Mapping[str, Tensor], curves: Curves) -> dict[tuple[str, str], Tensor]:
    """Where something is not finite, as bool [N] by (what, map); each image is blamed on its first cause."""
    blamed = ~images.isfinite().flatten(1).all(1)
    bad = {("image", ""): blamed, ("unmasked logit", ""): ~curves.unmasked.isfinite() & ~blamed}
    blamed = blamed | ~curves.unmasked.isfinite()
    for name, values in maps.items():
        bad_map = ~values.isfinite().flatten(1).all(1)
        bad_curve = ~torch.cat([curves.mif[name], curves.lif[name]], 1).isfinite().all(1)
        bad["map", name] = bad_map & ~blamed
        bad["curve", name] = bad_curve & ~bad_map & ~blamed
    return bad
