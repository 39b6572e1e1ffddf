"""Where numbers of Quantus, Captum, torch-cam and grad-cam agree with ours, and where they do not: each run.

    python research/peers.py

Every line is one statement of docs/howto/coming-from.md with the numbers that show it, measured now.
Libraries that are not installed are left out. torch-cam, grad-cam and the authors' code of single deletion
(github.com/visinf/idsds) need not be in the same environment: PYTHONPATH finds them in folders of their own.
"""

import contextlib
import inspect
import io
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fpa
from fpa.masking import Blur
from fpa.scores import SCORES, Block

SIDE = 32
COUNT = 6


def network(channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(channels, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 25, 5)).eval()


def pictures(channels: int = 3) -> Tensor:
    """Smooth random images with a few clear regions, so that segmentation finds some."""
    coarse = torch.randn(COUNT, channels, 4, 4, generator=torch.Generator().manual_seed(1))
    return nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear")


def block_of(model: nn.Module, images: Tensor, maps: Tensor, points: int = 17) -> Block:
    from fpa.explanation import get_estimators, make_task
    from fpa.perturbation import curves_of

    task, logits = make_task(model, images)
    shares = [step / (points - 1) for step in range(points)]
    curves = curves_of(
        task, {"map": maps}, shares, logits=logits, labels=task.targets, outputs=("logit", "probability")
    )
    named = get_estimators({"map": "vgx_sum"})
    return Block(task, task.targets, logits, named, {"map": maps}, curves=curves, fractions=shares)


MODEL = network()
IMAGES = pictures()
TARGETS = MODEL(IMAGES).argmax(1)
MAPS = fpa.explain(MODEL, IMAGES, "vgx_sum")["vgx_sum"]
PLAIN: dict[str, bool] = {"disable_warnings": True, "display_progressbar": False}
RAW: dict[str, bool] = {"abs": False, "normalise": False, **PLAIN}
"""Settings of Quantus: as it is, and without its own changes to the maps."""


def quiet(run: Callable[[], Any]) -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run()


def shown(values: Any) -> str:
    return "[" + ", ".join(f"{float(value):.3g}" for value in np.ravel(values)[:6]) + "]"


def changes(seen: list[Any]) -> str:
    """How many pixels differ between the first image and the first perturbed one that a model saw."""
    changed = next(row for row in ((image != IMAGES[0]).sum(0) for image in seen) if row.any())
    return f"{int((changed > 0).sum())} pixels changed, {int((changed == 3).sum())} in all three channels"


def scored(
    metric: Any,
    maps: Tensor,
    *,
    model: nn.Module = MODEL,
    images: Tensor = IMAGES,
    masks: Tensor | None = None,
    batch_size: int = 64,
) -> Any:
    """What a metric of Quantus says of maps [N, C, H, W]."""
    return quiet(
        lambda: metric(
            model,
            x_batch=images.numpy(),
            y_batch=(TARGETS if images is IMAGES else model(images).argmax(1)).numpy(),
            a_batch=maps.numpy(),
            s_batch=None if masks is None else masks.numpy(),
            device="cpu",
            batch_size=batch_size,
        )
    )


def quantus_statements() -> Iterator[str]:
    import quantus

    yield from quantus_defaults(quantus)
    yield from quantus_failures(quantus)
    yield from quantus_batches(quantus)
    yield from quantus_monotonicity(quantus)
    yield from quantus_perturbations(quantus)
    yield from quantus_localisation(quantus)


def quantus_defaults(quantus: Any) -> Iterator[str]:
    """In how many metrics maps or logits are changed by default."""
    defaults: dict[str, list[str]] = {"abs": [], "normalise": [], "softmax": []}
    for kind in quantus.AVAILABLE_METRICS.values() if hasattr(quantus, "AVAILABLE_METRICS") else ():
        for name, each in kind.items():
            given = {
                **inspect.signature(each.__init__).parameters,
                **inspect.signature(each.__call__).parameters,
            }
            for setting, names in defaults.items():
                if setting in given and given[setting].default is True:
                    names.append(name)
    for setting, names in defaults.items():
        yield f"{setting}=True by default in {len(names)} metrics: {', '.join(names)}"


def quantus_failures(quantus: Any) -> Iterator[str]:
    """What does not take colours."""

    def fails(metric: Any) -> str:
        try:
            scored(metric, MAPS[:, None])
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
        return "works"

    yield f"ROAD on RGB images: {fails(quantus.ROAD(noise=0.1, percentages=[10, 50, 90], **PLAIN))}"
    yield f"IROF on RGB images: {fails(quantus.IROF(return_aggregate=False, **PLAIN))}"


def quantus_batches(quantus: Any) -> Iterator[str]:
    """Which scores of an image depend on the others in its batch."""
    grey = network(1)
    images = pictures(1)
    maps = fpa.explain(grey, images, "vgx_sum")["vgx_sum"][:, None]

    def counted(make: Callable[[], Any], maps: Tensor, size: int) -> str:
        np.random.seed(0)
        scores = scored(make(), maps, model=grey, images=images, batch_size=size)
        if isinstance(scores, dict):
            return ", ".join(f"{share} %: {value:.2f}" for share, value in scores.items())
        return f"{len(scores)} values, {shown(scores)}"

    irof = partial(quantus.IROF, return_aggregate=False, **PLAIN)
    try:
        counted(irof, maps, COUNT)
    except AttributeError as error:
        yield f"IROF with NumPy {np.__version__}: {error}; np.trapz is put back for what follows"
        setattr(np, "trapz", np.trapezoid)  # noqa: B010
    steps = partial(
        quantus.SensitivityN, features_in_step=64, n_max_percentage=0.8, return_aggregate=False, **RAW
    )
    road = partial(quantus.ROAD, noise=0.1, percentages=[20, 40, 60, 80], **PLAIN)
    sufficiency = partial(quantus.Sufficiency, threshold=0.6, **PLAIN)
    # Every second map is nearly the same: sufficiency compares the maps of a batch.
    alike = torch.rand(2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    alike = alike.repeat(COUNT // 2, 1, 1, 1)
    alike = alike + 0.01 * torch.rand(alike.shape, generator=torch.Generator().manual_seed(4))
    for name, make, explained in (
        ("ROAD", road, maps),
        ("SensitivityN", steps, maps),
        ("IROF", irof, maps),
        ("Sufficiency", sufficiency, alike),
    ):
        for size in (COUNT, 2):
            yield f"{name} of {COUNT} grey images in batches of {size}: {counted(make, explained, size)}"


def quantus_monotonicity(quantus: Any) -> Iterator[str]:
    monotone = quantus.Monotonicity(features_in_step=64, perturb_baseline="black", **RAW)
    found = [scored(monotone, maps[:, None]) for maps in (MAPS, -MAPS, torch.rand_like(MAPS))]
    yield f"Monotonicity of a map, its negative and a random one: {found[0]}, {found[1]}, {found[2]}"


class Watched(nn.Module):
    """The model, which keeps the first image of every batch that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, rows: Tensor) -> Any:
        self.seen.append(rows[0].clone())
        return MODEL(rows)


def quantus_perturbations(quantus: Any) -> Iterator[str]:
    """What is removed, and whether it comes back."""
    watched = Watched().eval()
    infidelity = quantus.Infidelity(n_perturb_samples=3, perturb_patch_sizes=[16], **RAW)
    scored(infidelity, MAPS[:, None], model=watched)
    rounds = np.array_split(np.array([row.numpy() for row in watched.seen[1:]]), 3)
    same = all(np.array_equal(rounds[0], each) for each in rounds[1:])
    last = float((torch.tensor(rounds[0][-1]) == IMAGES[0]).float().mean())
    count = len(watched.seen) - 1
    yield (
        f"Infidelity with 3 samples: {count} perturbed images, those of all samples equal: {same}; "
        f"what is removed stays removed: in the last one {100 * last:.0f} % of the values are the image's"
    )

    flipping = quantus.PixelFlipping(features_in_step=256, perturb_baseline=0.5, **RAW)
    raw = torch.randn(IMAGES.shape, generator=torch.Generator().manual_seed(2))
    for shape, maps in (("[N, 3, H, W]", raw), ("[N, 1, H, W]", MAPS[:, None])):
        watched = Watched().eval()
        scored(flipping, maps, model=watched)
        yield f"PixelFlipping, a step of 256 features, maps {shape}: {changes(watched.seen)}"


def quantus_localisation(quantus: Any) -> Iterator[str]:
    """Scores against a known region, which agree."""
    masks = torch.zeros(COUNT, SIDE, SIDE, dtype=torch.bool)
    masks[:, 8:24, 4:20] = True
    block = block_of(MODEL, IMAGES, MAPS.abs())
    object.__setattr__(block, "masks", masks)
    located = {
        "pointing_game": quantus.PointingGame,
        "mass_accuracy": quantus.RelevanceMassAccuracy,
        "rank_accuracy": quantus.RelevanceRankAccuracy,
    }
    for name, kind in located.items():
        theirs = scored(kind(**RAW), MAPS.abs()[:, None], masks=masks[:, None])
        yield f"{kind.__name__}: {shown(theirs)}, ours: {shown(SCORES[name](block)['map'])}"


def captum_statements() -> Iterator[str]:
    from captum.metrics import infidelity, sensitivity_max

    from fpa.scores.explaining import noisy, spans
    from fpa.scores.infidelity import random_squares

    block = block_of(MODEL, IMAGES, MAPS)
    masks = random_squares(block, 100).flatten(0, 1)[:, None]

    def squares(rows: Tensor) -> tuple[Tensor, Tensor]:
        return masks.expand_as(rows).to(rows), rows * ~masks

    raw = fpa.functional.vanilla_gradient(MODEL, IMAGES) * IMAGES
    for name, scaled in (("infidelity", False), ("infidelity_scaled", True)):
        theirs = infidelity(
            MODEL, squares, IMAGES, raw, target=TARGETS, n_perturb_samples=100, normalize=scaled
        )
        ours = SCORES[name](block)["map"]
        yield f"infidelity, normalize={scaled}: {shown(theirs.detach())}, ours: {shown(ours)}"

    offsets = noisy(block, 10, "uniform") * 0.02 * spans(IMAGES)

    def explained(rows: Any, target: Tensor) -> tuple[Tensor]:
        rows = rows[0] if isinstance(rows, tuple) else rows
        return (fpa.explain(MODEL, rows, "vgx_sum", targets=target)["vgx_sum"],)

    def near(rows: Any) -> Tensor:
        return (rows[0] if isinstance(rows, tuple) else rows) + offsets.transpose(0, 1).flatten(0, 1)

    theirs = sensitivity_max(explained, IMAGES, near, n_perturb_samples=10, target=TARGETS)
    yield f"sensitivity_max: {shown(theirs)}, ours: {shown(SCORES['max_sensitivity'](block)['map'])}"


def torchcam_statements() -> Iterator[str]:
    from torchcam.metrics import DeletionInsertionMetric

    class Extractor:
        """Gives torch-cam the maps that ours are computed for."""

        model = MODEL

        def __call__(self, *arguments: Any, **others: Any) -> list[Tensor]:
            return [MAPS]

        def fuse_cams(self, cams: list[Tensor]) -> Tensor:
            return cams[0]

        def _hooks_off(self) -> Any:
            return contextlib.nullcontext()

    block = block_of(MODEL, IMAGES, MAPS, points=17)
    for name, key, baseline in (
        ("deletion", "deletion_auc", None),
        ("insertion", "insertion_auc", lambda images: Blur().fill(images)),
    ):
        metric = DeletionInsertionMetric(
            Extractor(), partial(torch.softmax, dim=-1), steps=16, baseline=baseline
        )
        metric.update(IMAGES)
        ours = float(SCORES[name](block)["map"].mean())
        yield f"{name}: {metric.summary()[key]:.6f}, ours: {ours:.6f}"


def gradcam_statements() -> Iterator[str]:
    from pytorch_grad_cam.metrics.perturbation_confidence import RemoveMostRelevantFirst

    whole = torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(5)) + 0.01
    half = whole.clone()
    half[: SIDE // 2] = 0
    for name, values in (("a map without zeros", whole), ("a map of which half is 0", half)):
        removed = {
            share: float(
                RemoveMostRelevantFirst(100 - share, lambda image, mask: 1 - mask)(IMAGES[0], values).mean()
            )
            for share in (10, 40, 50, 60, 90)
        }
        text = ", ".join(f"{share} % asked, {100 * got:.0f} % removed" for share, got in removed.items())
        yield f"ROAD, most relevant first, {name}: {text}"


def idsds_statements() -> Iterator[str]:
    from types import SimpleNamespace

    from single_deletion import single_deletion_protocol

    images = list(zip(IMAGES, TARGETS, range(COUNT), strict=True))
    loader = torch.utils.data.DataLoader(images, batch_size=COUNT)  # type: ignore[arg-type]
    explainer = SimpleNamespace(explain=lambda images, target: MAPS[:, None])
    settings = SimpleNamespace(grid_rows_and_cols=4, nr_images=-1, batch_size=COUNT, sd_baseline="zeros")
    theirs = quiet(lambda: single_deletion_protocol(MODEL, explainer, loader, settings, "cpu"))
    ours = float(SCORES["sds"](block_of(MODEL, IMAGES, MAPS))["map"].mean())
    yield f"single deletion: {float(np.ravel(theirs)[0]):.6f}, ours: {ours:.6f}"


LIBRARIES = {
    "Quantus": quantus_statements, "Captum": captum_statements, "torch-cam": torchcam_statements,
    "grad-cam": gradcam_statements, "visinf/idsds": idsds_statements,
}  # fmt: skip


def main() -> None:
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.simplefilter("ignore")
    for name, statements in LIBRARIES.items():
        try:
            for line in statements():
                print(f"{name}: {line}", flush=True)
        except ImportError as error:
            print(f"{name} was left out ({error})")


if __name__ == "__main__":
    main()
