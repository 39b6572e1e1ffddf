"""What every score costs: over the floor of its passes, beside other libraries, and all together beside A.

    python benchmarks/scores.py --threads 1                    # CPU, a small net and a CIFAR ResNet-18
    python benchmarks/scores.py --device cuda --images 512     # one GPU

- floor: the score's forward passes as the engine runs them on rows that are there already, and for scores
  that explain again the same explanations alone. Scores without passes have none: their time per image and
  estimator is shown.
- peer: Quantus, Captum or, where they are installed, torch-cam and grad-cam, on the same maps of one
  estimator, with as many perturbations, at their best of several batch sizes. Above 1 means that the peer is
  slower. A score that has its passes in common for all estimators is charged with all of them.
- together: an evaluation with `all` scores over one with A alone, ten estimators, 200 steps of IG.

Every figure is the median of interleaved repeats.
"""

import argparse
import gc
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import fpa
from explain_cpu import cifar_resnet18, small_net
from fpa.engine import Engine, Work
from fpa.explanation import Settings, get_estimators, make_task, raw_maps_of
from fpa.perturbation import curves_of
from fpa.scores import SCORES, Block, Given

MODELS: dict[str, Callable[[], nn.Module]] = {"small net": small_net, "CIFAR ResNet-18": cifar_resnet18}
FEW = Settings(ig_steps=10, sg_samples=5)  # what explains is not measured here, but by explain_cpu.py
POINTS = 21


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """On a CPU those of the process itself, which others on the machine hardly change."""
    if device.type != "cuda":
        start = time.process_time()
        run()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def make_block(engine: Engine, images: Tensor, estimators: Any) -> Block:
    """A block as an evaluation makes it, with everything that scores may ask for."""
    named = get_estimators(estimators, FEW)
    task, logits = make_task(engine, images)
    raw_maps = raw_maps_of(task, named)
    maps = {name: named[name].reduce(raw_map) for name, raw_map in raw_maps.items()}
    fractions = [step / (POINTS - 1) for step in range(POINTS)]
    curves = curves_of(
        task, maps, fractions, logits=logits, labels=task.targets, outputs=("logit", "probability")
    )
    masks = torch.zeros(len(images), *images.shape[2:], dtype=torch.bool)
    masks[:, 4:20, 8:24] = True
    return Block(
        task,
        task.targets.cpu(),
        logits,
        named,
        maps,
        curves=curves,
        masks=masks,
        fractions=fractions,
        known_raw_maps=raw_maps,
    )


def fresh(block: Block) -> Block:
    """The same block without what scores have shared."""
    return replace(block, _shared={})


def flipped(block: Block) -> object:
    """One MIF curve of 17 points, as Quantus' pixel flipping in 16 steps."""
    shares = [step / 16 for step in range(17)]
    return curves_of(
        block.task, block.maps, shares, logits=block.logits, labels=block.task.targets, sides=("mif",)
    )


def floor_of(score: fpa.Score, block: Block) -> Callable[[], object] | None:
    """The passes of a score and nothing else."""
    engine = block.task.engine
    images = block.task.images
    cost = score.passes(Given(block.estimators, block.fractions, block.task.masking))
    if cost.explanations:
        return lambda: [block.explain(images) for _ in range(cost.explanations)]
    if cost.forwards:
        rows = images.repeat(-(-1024 // len(images)), 1, 1, 1)
        work = Work(
            cost.forwards * len(images),
            lambda a, b: rows[torch.arange(a, b, device=rows.device) % len(rows)],
            lambda a, b, logits: None,
        )
        return lambda: engine.logits([work])
    return None


def peers(block: Block, name: str) -> Iterator[tuple[str, str, Callable[[int], object]]]:
    """(score, library, what runs it with a batch size) for one estimator of a block."""
    task = block.task
    model = task.engine.copy()
    images = task.images
    targets = task.targets
    maps = block.maps[name]
    device = images.device
    inputs: dict[str, Any] = {"x_batch": images.cpu().numpy(), "y_batch": targets.cpu().numpy()}
    inputs |= {"a_batch": maps[:, None].cpu().numpy(), "device": str(device)}
    plain: dict[str, Any] = {"disable_warnings": True, "display_progressbar": False}
    pixels = images[0, 0].numel()
    try:
        import quantus

        raw: dict[str, Any] = {"abs": False, "normalise": False, **plain}
        masks = block.masks
        assert masks is not None
        boxes = masks[:, None].numpy()

        def explained(model: nn.Module, inputs: Any, targets: Any, **others: Any) -> Any:
            rows = torch.as_tensor(inputs, dtype=images.dtype, device=device)
            classes = torch.as_tensor(targets, device=device)
            return (
                fpa.explain(model, rows, [name], targets=classes, settings=FEW)[name][:, None].cpu().numpy()
            )

        of_images = {
            "pixel_flipping": quantus.PixelFlipping(
                features_in_step=pixels // 16, perturb_baseline=0.0, **raw
            ),
            "faithfulness_correlation": quantus.FaithfulnessCorrelation(
                nr_runs=100, subset_size=pixels // 10, perturb_baseline=0.0, return_aggregate=False, **raw
            ),
        }
        for key, metric in of_images.items():
            yield key, "Quantus", lambda size, m=metric: m(model, **inputs, batch_size=size)
        located = {
            "pointing_game": quantus.PointingGame,
            "mass_accuracy": quantus.RelevanceMassAccuracy,
            "rank_accuracy": quantus.RelevanceRankAccuracy,
        }
        for key, kind in located.items():
            metric = kind(**raw)
            yield key, "Quantus", lambda size, m=metric: m(model, **inputs, s_batch=boxes, batch_size=size)
        again = {key: value for key, value in inputs.items() if key != "a_batch"}
        robust = quantus.MaxSensitivity(nr_samples=10, **raw)
        yield (
            "max_sensitivity",
            "Quantus",
            lambda size: robust(model, **again, a_batch=None, explain_func=explained, batch_size=size),
        )
    except ImportError as error:
        print(f"  Quantus was left out ({error})")
    try:
        from captum.metrics import infidelity, sensitivity_max

        def squares(rows: Any) -> tuple[Tensor, Tensor]:
            side = 8
            height, width = images.shape[2:]
            mask = torch.zeros_like(rows)
            for row in mask:
                top, left = (int(torch.randint(long - side, ())) for long in (height, width))
                row[:, top : top + side, left : left + side] = 1
            return rows * mask, rows * (1 - mask)

        attributions = block.raw_maps[name].expand_as(images)
        for key, scaled in (("infidelity", False), ("infidelity_scaled", True)):
            yield key, "Captum", lambda size, s=scaled: infidelity(
                model, squares, images, attributions, target=targets, n_perturb_samples=100,
                max_examples_per_batch=max(size, len(images)), normalize=s,
            )  # fmt: skip

        def explaining(rows: Any, target: Tensor) -> tuple[Tensor]:
            rows = rows[0] if isinstance(rows, tuple) else rows
            return (fpa.explain(task.engine, rows, [name], targets=target, settings=FEW)[name],)

        yield (
            "max_sensitivity",
            "Captum",
            lambda size: sensitivity_max(
                explaining,
                images,
                n_perturb_samples=10,
                target=targets,
                max_examples_per_batch=max(size, len(images)),
            ),
        )
    except ImportError as error:
        print(f"  Captum was left out ({error})")


def measure(
    name: str, images: int, repeats: int, device: torch.device, chosen: list[str]
) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    engine = Engine(MODELS[name]().eval().to(device))
    batch = torch.randn(images, 3, 32, 32, device=device)
    block = make_block(engine, batch, "paper")
    alone = make_block(engine, batch, ["vgx_sum"])
    others: dict[str, list[tuple[str, Callable[[int], object]]]] = {}
    for score, library, run in peers(alone, "vgx_sum"):
        others.setdefault(score, []).append((library, run))
    rows = []
    for key, score in ((key, SCORES[key]) for key in chosen):
        few = block.at(range(min(images, 8))) if "explain" in score.needs else block
        floor = floor_of(score, few)
        score(fresh(few))  # forms and batch sizes are found, models compiled
        times = []
        over = []
        for _ in range(repeats):
            before = seconds(floor, device) if floor else 0.0
            times.append(seconds(lambda s=score, f=few: s(fresh(f)), device))  # type: ignore[misc]
            if floor:
                over.append(times[-1] / ((before + seconds(floor, device)) / 2))
        row: dict[str, Any] = {"model": name, "score": key, "seconds": median(times)}
        if over:
            row["over_floor"] = median(over)
        else:
            row["microseconds_each"] = 1e6 * median(times) / (images * len(block.maps))
        for library, run in others.get(key, []):
            sizes = {size: seconds(lambda r=run, s=size: r(s), device) for size in (32, 128)}  # type: ignore[misc]
            best = min(sizes, key=sizes.__getitem__)
            ours = [seconds(lambda s=score: s(fresh(alone)), device) for _ in range(repeats)]  # type: ignore[misc]
            if key == "pixel_flipping":  # the curve is the work; ours follows both orders otherwise
                ours = [seconds(lambda: flipped(alone), device) for _ in range(repeats)]
            theirs = [seconds(lambda r=run, s=best: r(s), device) for _ in range(min(repeats, 3))]  # type: ignore[misc]
            row[library] = median(theirs) / median(ours)
        shown = f"{row['over_floor']:.2f} of the floor" if over else f"{row['microseconds_each']:.1f} µs each"
        beside = "".join(
            f"; {each} takes {row[each]:.1f} times as long" for each in ("Quantus", "Captum") if each in row
        )
        print(f"{name:16} {key:25} {shown}{beside}", flush=True)
        rows.append(row)
        gc.collect()
    return rows


def together(name: str, images: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """An evaluation with all scores over one with A alone."""
    torch.manual_seed(0)
    engine = Engine(MODELS[name]().eval().to(device), expected_rows=images * 1300)
    batch = torch.randn(images, 3, 32, 32)

    def run(scores: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            how: dict[str, Any] = {"scores": scores, "folder": folder, "progress": False, "examples": 0}
            return seconds(lambda: fpa.evaluate(engine, batch, "paper", **how), device)

    for scores in ("all", "A"):
        run(scores)
    ratios = [run("all") / run("A") for _ in range(repeats)]
    print(f"{name:16} all scores together: {median(ratios):.2f} times A alone", flush=True)
    return {"model": name, "together": median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", choices=MODELS, nargs="*", default=list(MODELS))
    parser.add_argument(
        "--together", type=int, default=0, help="images of the evaluations with all scores and A"
    )
    parser.add_argument(
        "--scores", choices=SCORES, nargs="*", default=[key for key in SCORES if key != "idsds"]
    )
    parser.add_argument("--json", help="file for the numbers")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{arguments.threads} threads"
    print(
        f"torch {torch.__version__}, {kind}, {arguments.images} images, median of {arguments.repeats} repeats"
    )
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        rows += measure(name, arguments.images, arguments.repeats, device, arguments.scores)
        if arguments.together:
            rows.append(together(name, arguments.together, arguments.repeats, device))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "device": kind, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
