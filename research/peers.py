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

SIDE, COUNT = 32, 6


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


MODEL, IMAGES = network(), pictures()
TARGETS = MODEL(IMAGES).argmax(1)
MAPS = fpa.explain(MODEL, IMAGES, "vgx_sum")["vgx_sum"]
INPUTS: dict[str, Any] = {"x_batch": IMAGES.numpy(), "y_batch": TARGETS.numpy(), "device": "cpu"}
PLAIN: dict[str, Any] = {"disable_warnings": True, "display_progressbar": False}
RAW: dict[str, Any] = {"abs": False, "normalise": False, **PLAIN}


def quiet(run: Callable[[], Any]) -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run()


def shown(values: Any) -> str:
    return "[" + ", ".join(f"{float(value):.3g}" for value in np.ravel(values)[:6]) + "]"


def changes(seen: list[Any]) -> str:
    """How many pixels differ between the first image and the first perturbed one that a model saw."""
    changed = next(row for row in ((image != IMAGES[0]).sum(0) for image in seen) if row.any())
    return f"{int((changed > 0).sum())} pixels changed, {int((changed == 3).sum())} in all three channels"


def quantus_statements() -> Iterator[str]:
    import quantus

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

    def run(metric: Any, maps: Tensor = MAPS, **how: Any) -> Any:
        return quiet(lambda: metric(MODEL, a_batch=maps[:, None].numpy(), **INPUTS | how))

    def fails(metric: Any) -> str:
        try:
            run(metric)
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
        return "works"

    yield f"ROAD on RGB images: {fails(quantus.ROAD(noise=0.1, percentages=[10, 50, 90], **PLAIN))}"
    yield f"IROF on RGB images: {fails(quantus.IROF(return_aggregate=False, **PLAIN))}"

    grey, images = network(1), pictures(1)
    maps = fpa.explain(grey, images, "vgx_sum")["vgx_sum"]
    of_grey: dict[str, Any] = {"x_batch": images.numpy(), "y_batch": grey(images).argmax(1).numpy()}
    of_grey |= {"a_batch": maps[:, None].numpy(), "device": "cpu"}

    def counted(make: Callable[[], Any], size: int, **other: Any) -> str:
        np.random.seed(0)
        scores = quiet(lambda: make()(grey, **of_grey | other, batch_size=size))
        if isinstance(scores, dict):
            return ", ".join(f"{share} %: {value:.2f}" for share, value in scores.items())
        return f"{len(scores)} values, {shown(scores)}"

    irof = partial(quantus.IROF, return_aggregate=False, **PLAIN)
    try:
        counted(irof, COUNT)
    except AttributeError as error:
        yield f"IROF with NumPy {np.__version__}: {error}; np.trapz is put back for what follows"
        setattr(np, "trapz", np.trapezoid)  # noqa: B010
    steps = partial(
        quantus.SensitivityN, features_in_step=64, n_max_percentage=0.8, return_aggregate=False, **RAW
    )
    road = partial(quantus.ROAD, noise=0.1, percentages=[20, 40, 60, 80], **PLAIN)
    alike = torch.rand(2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(3)).repeat(
        COUNT // 2, 1, 1, 1
    )
    alike = alike + 0.01 * torch.rand(alike.shape, generator=torch.Generator().manual_seed(4))
    close: dict[str, Any] = {"a_batch": alike.numpy()}  # every second map is nearly the same
    for name, make, other in (
        ("ROAD", road, {}), ("SensitivityN", steps, {}), ("IROF", irof, {}),
        ("Sufficiency", partial(quantus.Sufficiency, threshold=0.6, **PLAIN), close),
    ):  # fmt: skip
        for size in (COUNT, 2):
            yield f"{name} of {COUNT} grey images in batches of {size}: {counted(make, size, **other)}"

    monotone = quantus.Monotonicity(features_in_step=64, perturb_baseline="black", **RAW)
    both = [run(monotone, maps) for maps in (MAPS, -MAPS, torch.rand_like(MAPS))]
    yield f"Monotonicity of a map, its negative and a random one: {both[0]}, {both[1]}, {both[2]}"

    seen: list[Any] = []

    class Watched(nn.Module):
        def forward(self, rows: Tensor) -> Any:
            seen.append(rows[0].clone())
            return MODEL(rows)

    infidelity = quantus.Infidelity(n_perturb_samples=3, perturb_patch_sizes=[16], **RAW)
    quiet(lambda: infidelity(Watched().eval(), a_batch=MAPS[:, None].numpy(), **INPUTS))
    rounds = np.array_split(np.array([row.numpy() for row in seen[1:]]), 3)
    same = all(np.array_equal(rounds[0], each) for each in rounds[1:])
    last = float((torch.tensor(rounds[0][-1]) == IMAGES[0]).float().mean())
    yield (
        f"Infidelity with 3 samples: {len(seen) - 1} perturbed images, those of all samples equal: {same}; "
        f"what is removed stays removed: in the last one {100 * last:.0f} % of the values are the image's"
    )

    seen.clear()
    flipping = quantus.PixelFlipping(features_in_step=256, perturb_baseline=0.5, **RAW)
    raw = torch.randn(IMAGES.shape, generator=torch.Generator().manual_seed(2))
    quiet(lambda: flipping(Watched().eval(), **INPUTS, a_batch=raw.numpy()))
    yield f"PixelFlipping, a step of 256 features, maps [N, 3, H, W]: {changes(seen)}"
    seen.clear()
    quiet(lambda: flipping(Watched().eval(), **INPUTS, a_batch=MAPS[:, None].numpy()))
    yield f"PixelFlipping, a step of 256 features, maps [N, 1, H, W]: {changes(seen)}"

    masks = torch.zeros(COUNT, SIDE, SIDE, dtype=torch.bool)
    masks[:, 8:24, 4:20] = True
    block = block_of(MODEL, IMAGES, MAPS.abs())
    object.__setattr__(block, "masks", masks)
    located = {
        "pointing_game": quantus.PointingGame, "mass_accuracy": quantus.RelevanceMassAccuracy,
        "rank_accuracy": quantus.RelevanceRankAccuracy,
    }  # fmt: skip
    for name, kind in located.items():
        theirs = run(kind(**RAW), MAPS.abs(), s_batch=masks[:, None].numpy())
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
