"""The ten estimators and their curves on one GPU, CIFAR ResNet-18, side by side in one run.

    python benchmarks/explain_gpu.py --images 10000 --out result.json
    python benchmarks/explain_gpu.py --models plain.safetensors fpa.safetensors --data data

1. floor: gradients/s and forwards/s of the bare model in each precision (batch norm folded, channels-last,
   compiled), the best over the batch sizes;
2. engine: `evaluate` on all images, as a share of that floor, without and with the time to compile;
3. Captum at its best setting and Quantus' pixel flipping on a few images, scaled to the same work
   (each is left out, and said so, where it is not installed);
4. precision: every A of the ten in each precision against float32, on the same images, for each model.

`--data` is the folder that holds CIFAR-10; without it images are random.
`--models` are state dicts (.safetensors or torch.save). To try it without a GPU:

    python benchmarks/explain_gpu.py --device cpu --images 4 --few 2 --check 3 --batches 8 --ig-steps 3
"""

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

import fpa
from fpa.data.sets import load_data
from fpa.engine import Engine, Precision
from fpa.engine.folding import fold_batch_norm
from fpa.evaluation.evaluation import Evaluation
from fpa.explanation import PAPER, Settings, passes

PRECISIONS = ("float32", "tf32", "bfloat16")
CHECKED = [("tf32", "tf32"), ("bfloat16", "tf32"), ("tf32", "bfloat16"), ("bfloat16", "bfloat16")]
FORWARDS_PER_IMAGE = len(PAPER) * 2 * 19 + 1


def cifar_resnet18() -> nn.Module:
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model


def load(path: str | None, device: str) -> nn.Module:
    torch.manual_seed(0)
    model = cifar_resnet18()
    if path and path.endswith(".safetensors"):
        from safetensors.torch import load_file

        model.load_state_dict(load_file(path))
    elif path:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state.get("model", state))
    return model.eval().to(device)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(run: Callable[[], object], device: str) -> float:
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - start


def set_tf32(on: bool) -> None:
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def floor(
    model: nn.Module, precision: str, batches: list[int], device: str, compiled: bool, size: int = 32
) -> dict[str, Any]:
    """The best gradients/s and forwards/s of the bare model over the batch sizes, and those of each."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    bare = copy.deepcopy(model).requires_grad_(False)
    fold_batch_norm(bare)
    bare.to(dtype).to(memory_format=torch.channels_last)
    set_tf32(precision == "tf32")
    torch.backends.cudnn.benchmark = True
    best: dict[str, Any] = {"gradients": 0.0, "forwards": 0.0, "all": {}}
    times = 10 if device == "cuda" else 1
    for batch in batches:
        torch._dynamo.reset()
        run = torch.compile(bare, dynamic=False) if compiled else bare
        rows = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
        rows = rows.to(memory_format=torch.channels_last)

        def gradient(run: Any = run, rows: Tensor = rows) -> None:
            leaf = rows.detach().requires_grad_()
            torch.autograd.grad(run(leaf)[:, 0].sum(), leaf)

        def forward(run: Any = run, rows: Tensor = rows) -> None:
            with torch.no_grad():
                run(rows)

        for kind, one in (("gradients", gradient), ("forwards", forward)):
            for _ in range(3 if device == "cuda" else 1):
                one()
            taken = min(seconds(lambda one=one: [one() for _ in range(times)], device) for _ in range(3))
            speed = batch * times / taken
            best["all"][f"{kind} at {batch}"] = round(speed)
            if speed > best[kind]:
                best |= {kind: speed, f"{kind}_batch": batch}
    torch.backends.cudnn.benchmark = False
    torch._dynamo.reset()
    return best


def timed_evaluation(
    engine: Engine, images: Tensor, settings: Settings, device: str
) -> tuple[float, Evaluation]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        result = fpa.evaluate(engine, images, settings=settings, folder=folder, examples=0, progress=False)
        wait(device)
        return time.perf_counter() - start, result.evaluation


def areas(found: Evaluation, used: np.ndarray) -> dict[str, float]:
    """A in percent: the mean over images of the area between LIF and MIF, each divided by its logit."""
    kept = {}
    for name in found.mif:
        gap = (found.lif[name] - found.mif[name])[used].astype(np.float64) / found.unmasked[used, None]
        kept[name] = 100 * float(np.trapezoid(gap, found.fractions, axis=1).mean())
    return kept


def captum_seconds(model: nn.Module, images: Tensor, settings: Settings, device: str) -> dict[str, Any]:
    """Captum's best: TF32, no gradients of parameters, the best internal batch size; seconds per image."""
    from captum import attr

    frozen = copy.deepcopy(model).requires_grad_(False).to(memory_format=torch.channels_last)
    images = images.to(device).contiguous(memory_format=torch.channels_last)
    targets = frozen(images).argmax(1)
    set_tf32(True)
    best: dict[str, Any] = {}
    for batch in (512, 1024, 2048, 4096) if device == "cuda" else (16,):

        def maps(batch: int = batch) -> None:
            attr.Saliency(frozen).attribute(images, target=targets, abs=False)
            attr.IntegratedGradients(frozen).attribute(
                images, target=targets, n_steps=settings.ig_steps, method="riemann_right",
                internal_batch_size=batch,
            )  # fmt: skip
            tunnel = attr.NoiseTunnel(attr.Saliency(frozen))
            for kind in ("smoothgrad", "smoothgrad_sq"):
                tunnel.attribute(
                    images, target=targets, nt_type=kind, stdevs=0.15, abs=False,
                    nt_samples=settings.sg_samples,
                    nt_samples_batch_size=min(settings.sg_samples, max(1, batch // len(images))),
                )  # fmt: skip

        maps()
        taken = min(seconds(maps, device) for _ in range(2)) / len(images)
        if not best or taken < best["seconds_an_image"]:
            best = {"seconds_an_image": taken, "internal_batch_size": batch}
    return best


def quantus_seconds(model: nn.Module, images: Tensor, device: str) -> dict[str, Any]:
    """Quantus' pixel flipping: seconds a masked image of one curve, at its best batch size."""
    import quantus

    set_tf32(True)
    steps = 16
    flipping = quantus.PixelFlipping(
        features_in_step=1024 // steps, abs=False, normalise=False, perturb_baseline=0.0,
        return_auc_per_sample=False, disable_warnings=True, display_progressbar=False,
    )  # fmt: skip
    scores = torch.rand(len(images), 1, 32, 32).numpy()
    targets = model(images.to(device)).argmax(1).cpu().numpy()
    best: dict[str, Any] = {}
    for batch in (64, 256, 1024) if device == "cuda" else (16,):

        def flip(batch: int = batch) -> None:
            flipping(model, images.numpy(), targets, a_batch=scores, device=device, batch_size=batch)

        flip()
        taken = seconds(flip, device) / (len(images) * steps)
        if not best or taken < best["seconds_a_forward"]:
            best = {"seconds_a_forward": taken, "batch_size": batch}
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=512, help="images for Captum and Quantus")
    parser.add_argument("--check", type=int, default=2_000, help="images for the precision check")
    parser.add_argument("--batches", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--ig-steps", type=int, default=200)
    parser.add_argument("--precision", nargs=2, default=["bfloat16", "bfloat16"], choices=PRECISIONS,
                        metavar=("GRADIENTS", "FORWARDS"), help="of the engine")  # fmt: skip
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--data")
    parser.add_argument("--parts", nargs="+", default=["floor", "engine", "peers", "check"])
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    device = chosen.device
    compiled = chosen.device == "cuda"
    settings = Settings(ig_steps=chosen.ig_steps)
    model = load(chosen.models[0] if chosen.models else None, device)
    images = torch.randn(chosen.images, 3, 32, 32)
    if chosen.data:
        data = load_data("cifar10", chosen.data)
        images = data.normalisation(data.test.images)
    images = images[: max(chosen.images, chosen.check)].float()
    result: dict[str, Any] = {
        "torch": torch.__version__,
        "arguments": {k: str(v) for k, v in vars(chosen).items()},
    }
    if device == "cuda":
        result["gpu"] = torch.cuda.get_device_name()

    def tell(text: str) -> None:
        print(text, flush=True)
        if chosen.out:
            chosen.out.write_text(json.dumps(result, indent=2))

    if "floor" in chosen.parts:
        result["floor"] = {}
        for precision in PRECISIONS:
            found = floor(model, precision, chosen.batches, device, compiled)
            result["floor"][precision] = found
            tell(
                f"floor {precision:9}: {found['gradients']:,.0f} gradients/s, "
                f"{found['forwards']:,.0f} forwards/s"
            )
    if "engine" in chosen.parts:
        count = chosen.images
        engine = Engine(
            model, precision=Precision(*chosen.precision), compile=compiled, expected_rows=count * 600
        )
        per_image = passes("paper", settings)
        first, _ = timed_evaluation(engine, images[: min(count, 1024)], settings, device)
        taken, _ = timed_evaluation(engine, images[:count], settings, device)
        batches = {kind: engine.batch_size(kind, images[:1]) for kind in ("gradients", "forwards")}
        result["engine"] = {
            "seconds": taken,
            "first_block_seconds": first,
            "images_per_second": count / taken,
            "peak_gib": engine.peak_memory / 2**30,
            "batches": batches,
        }
        line = f"engine {'/'.join(chosen.precision)}: {count / taken:,.1f} images/s, {taken:.1f} s"
        if "floor" in result:
            floors = result["floor"]
            gradients = per_image / floors[chosen.precision[0]]["gradients"]
            forwards = FORWARDS_PER_IMAGE / floors[chosen.precision[1]]["forwards"]
            result["engine"]["share_of_floor"] = count * (gradients + forwards) / taken
            line += f", {100 * result['engine']['share_of_floor']:.1f} % of the floor"
        tell(
            f"{line}; first run with compilation {first:.1f} s; "
            f"peak {result['engine']['peak_gib']:.2f} GiB; {batches}"
        )
    if "peers" in chosen.parts:
        few = images[: chosen.few]
        peers = {}
        for name, run in (
            ("captum", lambda: captum_seconds(model, few, settings, device)),
            ("quantus", lambda: quantus_seconds(model, few, device)),
        ):
            try:
                peers[name] = run()
                tell(f"{name}: {peers[name]}")
            except ImportError as error:
                tell(f"{name} was left out: {error}")
        result["peers"] = peers
        if "engine" in result and len(peers) == 2:
            forwards = len(PAPER) * 2 * 20
            theirs = peers["captum"]["seconds_an_image"] + forwards * peers["quantus"]["seconds_a_forward"]
            result["times_faster"] = theirs * result["engine"]["images_per_second"]
            tell(f"Captum and Quantus take {result['times_faster']:.1f} times as long")
    if "check" in chosen.parts:
        result["check"] = {}
        for path in chosen.models or [None]:
            judged = load(path, device)
            exact = Engine(judged, precision=Precision("float32", "float32"))
            taken, reference = timed_evaluation(exact, images[: chosen.check], settings, device)
            used = reference.unmasked > 0
            truth = areas(reference, used)
            table: dict[str, Any] = {"float32": truth, "used": int(used.sum())}
            tell(f"{path or 'random weights'}: float32 {taken:.1f} s, {int(used.sum())} images")
            for names in CHECKED:
                engine = Engine(judged, precision=Precision(*names), compile=compiled)
                taken, found = timed_evaluation(engine, images[: chosen.check], settings, device)
                difference = {key: value - truth[key] for key, value in areas(found, used).items()}
                table["/".join(names)] = difference
                worst = max(difference, key=lambda key: abs(difference[key]))
                tell(f"  gradients {names[0]}, forwards {names[1]}: {taken:.1f} s, "
                     f"largest change of A {difference[worst]:+.3f} ({worst})")  # fmt: skip
            result["check"][str(path)] = table
        tell("done")


if __name__ == "__main__":
    main()
