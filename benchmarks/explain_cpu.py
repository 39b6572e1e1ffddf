"""Estimators and curves on the CPU, side by side in one run, as ratios.

    python benchmarks/explain_cpu.py --threads 1

- floor: the number of passes times the best time of a bare pass, over batch sizes, memory formats and with
  or without folded batch norms. Estimators should take at most 1.05 of it.
- Captum: the same raw maps with its best internal batch size. Above 1 means Captum is slower.
- own work: the share of the curves' time that is not the classifier's forward passes.
- Quantus: its pixel flipping for one MIF curve of the same points (skipped where it is not installed).

Every figure is the median of interleaved repeats, since other programs may share the machine.
"""

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torchvision
from torch import Tensor, nn

import fpa.engine.arithmetic
from fpa.engine import Engine
from fpa.engine.folding import fold_batch_norm
from fpa.explanation import Settings, explain, passes
from fpa.perturbation.curves import perturbation_curves


def cifar_resnet18() -> nn.Module:
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model


def small_net() -> nn.Module:
    layers: list[nn.Module] = []
    for channels, wide, stride in ((3, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(channels, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], int, int, tuple[int, ...]]] = {
    # model, pixels a side, images, batch sizes tried for the floor and for Captum
    "small net, 32 px": (small_net, 32, 16, (16, 32, 64, 128)),
    "CIFAR ResNet-18, 32 px": (cifar_resnet18, 32, 2, (8, 16, 32, 64)),
    "ResNet-18, 224 px": (lambda: torchvision.models.resnet18(num_classes=10), 224, 1, (2, 4, 8)),
}


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def bare_passes(model: nn.Module, size: int, batches: tuple[int, ...]) -> tuple[list, list]:
    """Bare passes of every form and batch size: (rows, gradient pass) and (rows, forward pass)."""
    gradients = []
    forwards = []
    for fold in (False, True):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            form = copy.deepcopy(model).eval().requires_grad_(False)
            if fold:
                fold_batch_norm(form)
            form.to(memory_format=memory_format)
            for batch in batches:
                rows = torch.randn(batch, 3, size, size).to(memory_format=memory_format)

                def gradient(form: nn.Module = form, rows: Tensor = rows) -> None:
                    leaf = rows.detach().requires_grad_()
                    torch.autograd.grad(form(leaf)[:, 0].sum(), leaf)

                def forward(form: nn.Module = form, rows: Tensor = rows) -> None:
                    with torch.no_grad():
                        form(rows)

                gradients.append((batch, gradient))
                forwards.append((batch, forward))
    return gradients, forwards


def fastest(passes: list, keep: int = 3) -> list:
    """The few fastest of the passes, to be timed again beside the rest."""
    timed = []
    for place, (rows, run) in enumerate(passes):
        timed.append((min(seconds(run), seconds(run)) / rows, place))
    return [passes[place] for _, place in sorted(timed)[:keep]]


def captum_maps(model: nn.Module, images: Tensor, targets: Tensor, settings: Settings, batch: int) -> None:
    from captum import attr

    attr.Saliency(model).attribute(images, target=targets, abs=False)
    attr.IntegratedGradients(model).attribute(
        images, target=targets, n_steps=settings.ig_steps, method="riemann_right", internal_batch_size=batch
    )
    tunnel = attr.NoiseTunnel(attr.Saliency(model))
    for kind in ("smoothgrad", "smoothgrad_sq"):
        tunnel.attribute(
            images, target=targets, nt_type=kind, nt_samples=settings.sg_samples,
            nt_samples_batch_size=max(1, batch // len(images)), stdevs=0.15, abs=False,
        )  # fmt: skip


def quantus_flipping(model: nn.Module, images: Tensor, targets: Tensor, scores: Tensor, step: int) -> None:
    import quantus

    flipping = quantus.PixelFlipping(
        features_in_step=step, abs=False, normalise=False, perturb_baseline=0.0,
        return_auc_per_sample=False, disable_warnings=True, display_progressbar=False,
    )  # fmt: skip
    flipping(model, images.numpy(), targets.numpy(), a_batch=scores[:, None].numpy(), device="cpu")


def estimators(name: str, repeats: int, settings: Settings) -> None:
    make, size, count, batches = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    frozen = copy.deepcopy(model).requires_grad_(False)
    images = torch.randn(count, 3, size, size)
    engine = Engine(model)
    targets = engine.predict(images).argmax(1)

    def ours() -> object:
        return explain(engine, images, "paper", settings=settings)

    ours()
    gradients, forwards = bare_passes(model, size, batches)
    gradients = fastest(gradients)
    forwards = fastest(forwards)
    per_image = passes("paper", settings)
    captum = {}
    for batch in batches:
        captum[batch] = seconds(partial(captum_maps, frozen, images, targets, settings, batch))
    best = min(captum, key=captum.__getitem__)
    of_floor = []
    of_captum = []
    for _ in range(repeats):
        before = [seconds(run) / rows for rows, run in gradients]
        own = seconds(ours)
        after = [seconds(run) / rows for rows, run in gradients]
        single = min(seconds(run) / rows for rows, run in forwards)
        floor = count * (per_image * min(before + after) + single)
        of_floor.append(own / floor)
        of_captum.append(seconds(lambda: captum_maps(frozen, images, targets, settings, best)) / own)
    rows = engine.batch_size("gradients", images[:1])
    print(
        f"{name:24} ten estimators ({per_image} gradients per image, batches of {rows}): "
        f"{median(of_floor):.3f} of the floor; "
        f"Captum (batches of {best}) takes {median(of_captum):.2f} times as long",
        flush=True,
    )


def curves(name: str, repeats: int) -> None:
    make, size, count, _ = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    images = torch.randn(count, 3, size, size)
    engine = Engine(model)
    maps = {str(number): torch.randn(count, size, size) for number in range(2)}
    inside = 0.0
    real = fpa.engine.arithmetic.Runner.logits

    def timed(runner: object, rows: Tensor) -> Tensor:
        nonlocal inside
        start = time.perf_counter()
        logits = real(runner, rows)
        inside += time.perf_counter() - start
        return logits

    fpa.engine.arithmetic.Runner.logits = timed  # type: ignore[method-assign,assignment]
    try:
        perturbation_curves(engine, images, maps)
        shares = []
        totals = []
        for _ in range(repeats):
            inside = 0.0
            totals.append(seconds(lambda: perturbation_curves(engine, images, maps)))
            shares.append(1 - inside / totals[-1])
    finally:
        fpa.engine.arithmetic.Runner.logits = real  # type: ignore[method-assign]
    line = f"{name:24} curves: own work {100 * median(shares):.2f} % of the run"
    try:
        targets = engine.predict(images).argmax(1)
        theirs = []
        ours = []
        step = size * size // 16  # Quantus wants steps that divide the image
        for _ in range(min(repeats, 3)):
            theirs.append(seconds(lambda: quantus_flipping(model, images, targets, maps["0"], step)))
            # Two maps in two orders; Quantus: one map, one order.
            ours.append(seconds(lambda: perturbation_curves(engine, images, maps, points=17)) / 4)
        line += f"; Quantus takes {median(theirs) / median(ours):.2f} times as long a curve"
    except ImportError as error:
        line += f"; Quantus was left out ({error})"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--ig-steps", type=int, default=50, help="fewer than 200 to save time; ratios hardly move"
    )
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads, median of {arguments.repeats} repeats")
    for name in arguments.only:
        estimators(name, arguments.repeats, Settings(ig_steps=arguments.ig_steps))
    for name in arguments.only:
        curves(name, arguments.repeats)


if __name__ == "__main__":
    main()
