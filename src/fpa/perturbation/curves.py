"""Perturbation curves: the logit of a class while pixels are removed, most or least important first.

Each map is sorted once; the rank of every pixel is kept, and a mask is the comparison of ranks with a
number, made on the device for each row of a batch. MIF is the exact reverse of LIF.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from fpa.engine import Engine
from fpa.engine.outputs import OUTPUTS, check_outputs
from fpa.engine.tasks import Model, Targets, Task, make_task, problems
from fpa.errors import InputError, warn
from fpa.masking import Masking, MaskingLike, get_masking
from fpa.perturbation.dropping import check_patches, dropped
from fpa.perturbation.features import Features, Pixels, features_of
from fpa.perturbation.passes import CurvePasses, filled, steps_of
from fpa.showing import clause
from fpa.values import check_plain, check_type, checked, shape_or_type


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
    - `masking`: what removing a pixel means; by default it becomes 0. With "road" curves end at 0.95. With
      "drop" a vision transformer is not given the tokens of removed patches, which are its features.
    - `targets` [N]: the classes whose logits are followed, by default those predicted on the unmasked images.
    - `seed` fixes, with `indices` [N] (the numbers of the images in their data set, by default 0, 1, ...),
      the order of pixels with equal scores and the noise of the masking.
    - `features`: what is removed together: "pixels", squares of that many pixels per side or of that share of
      the shorter side of the image, as in "1/8", "segments" of each image (about 100 superpixels, or as in
      "segments:50"), or those of a label map [N, H, W] or [H, W]. A feature's score is the mean over its
      pixels.
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
    shares = check_fractions(points, fractions, removal.most)
    followed = check_outputs(("logit", *outputs))
    parts = features_of(features, images)
    check_left(removal, shares, parts)
    if removal.selects:
        check_patches(engine.token_grid(images), parts)
    task, logits = make_task(engine, images, targets, masking=removal, seed=seed, indices=indices)
    true_classes = task.targets if labels is None else engine.explained_classes(logits, labels, "labels")
    others = curves_of(
        task, maps, shares, logits=logits, labels=true_classes, features=parts, outputs=followed
    )
    curves = others.pop("logit")
    curves.others.update(others)
    for problem in problems(not_finite(images, maps, curves), task.indices):
        warn(f"{clause(problem)}: left out (NaN)")
    return curves


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
    images = task.images
    count = len(images)
    parts = features_of(features, images)
    # Each map is sorted once, for both orders and all points: sorting costs far more than comparing ranks
    # with a number, and the masks of a curve then contain each other whatever ties there are.
    order = parts.random_order(images.device, task.seed, task.indices)
    ranks = torch.stack([parts.ranks(values, order) for values in maps.values()])
    steps = steps_of(parts, fractions)
    asked = CurvePasses(
        task,
        labels,
        outputs,
        ranks=ranks,
        parts=parts,
        steps=steps,
        sides=sides,
        titles=[(shown or {}).get(name, name) for name in maps],
    )
    # A removal is carried out in one of two ways: the image is filled, or tokens are left out.
    passed = dropped(asked) if task.masking.selects else filled(asked)

    # The ranks of a map with NaN are arbitrary: its curve would look like any other.
    bad_image = ~images.isfinite().flatten(1).all(1)
    bad = torch.stack([~values.isfinite().flatten(1).all(1) for values in maps.values()]) | bad_image
    shares = parts.pixel_shares(ranks, steps.removed, list(maps))
    shape = (len(maps), count, len(sides))
    curves = {}
    for name in outputs:
        start = OUTPUTS[name](logits, task.targets, labels)
        first = start[None, :, None, None].expand(*shape, 1)
        last = passed.last[name].expand(*shape, 1)
        full = torch.cat([first, passed.inner[name], last], -1)[..., steps.columns]
        full = full.masked_fill(bad[:, :, None, None], torch.nan)
        run = {side: dict(zip(maps, full[:, :, place], strict=True)) for place, side in enumerate(sides)}
        curves[name] = Curves(
            steps.fractions,
            mif=run.get("mif", {}),
            lif=run.get("lif", {}),
            unmasked=start.masked_fill(bad_image, torch.nan),
            targets=task.targets,
            shares_mif=shares.mif,
            shares_lif=shares.lif,
        )
    return curves


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


FEWEST_POINTS = 3
"""Of a curve: at the first and the last nothing and everything is removed, whatever the map."""

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
        if not FEWEST_POINTS <= points <= MOST_POINTS:
            few = points < FEWEST_POINTS
            limit = f"at least {FEWEST_POINTS}" if few else f"at most {MOST_POINTS:,}"
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
    # 95 % of ten features are ten when rounded: the fraction alone does not tell.
    few = [count for count in parts.counts.tolist() if round(fractions[-1] * count) == count]
    if masking.most < 1 and few:
        gone = f"removing {100 * fractions[-1]:g} % of {few[0]} features removes all of them"
        raise InputError(f"{gone}, but this masking imputes from those that are left: use smaller features")


def check_between(fractions: Sequence[float], parts: Pixels) -> None:
    """Refuse curves of nothing but whole and empty images: all maps have the same, and A would be 0."""
    counts = set(parts.counts.tolist())
    if not counts or any(0 < round(share * count) < count for share in fractions for count in counts):
        return
    shares = ", ".join(f"{100 * fraction:g}" for fraction in fractions[:8])
    having = f"{max(counts)} feature{'' if max(counts) == 1 else 's'}"
    raise InputError(
        f"removing {shares} % of {having} removes none or all of them, so all maps would score the same: "
        "use smaller features, or other fractions"
    )


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
