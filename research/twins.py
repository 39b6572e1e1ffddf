"""What does a twin cost, and what makes it cost less? Three ImageNet networks, more photos, two options.

    python research/twins.py --weights mobilenet_v2-b0353104.pth --photos imagenet-val --inside imagenette \
        --outside pets --minutes 9

Weights and photos are those of finetune_imagenet.py: the last photo of every class is for judging, the others
are for fine-tuning. Photos of `--inside`, folders of classes that the networks know, come on top of those;
they must not be among the judging photos (of imagenette, take its train/). Photos of `--outside`, other
things, are learned from alone. A network learns its own predictions, so labels only say how often it is
right. Every twin is audited, and judges the original's maps by pixels, by patches of 1/8 of the side and by
segments. A twin that goes part of the way is made from the weights of the whole one.

Every case leaves a row in OUTPUT/twins.csv and the areas of every judging photo in OUTPUT/NAME.parquet (its
own maps) and OUTPUT/NAME-judge.parquet (the original's maps). Run again, it continues after what is stored; a
case that does not fit into what is left of `--minutes` is left out. `--list` shows the cases, `--only` takes
those whose names begin so, `--tiny` uses a few photos at 32 px, to see that it works.
"""

import argparse
import copy
import csv
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import finetune_imagenet
import fpa
from fpa.auditing.areas import write_areas
from fpa.data.normalisation import Normalisation
from fpa.data.splits import FileSplit, ImageData, first_images
from fpa.engine.devices import chosen_device
from fpa.explanation import Settings
from fpa.files import write_text
from fpa.models.saved import save_model
from fpa.training.trainer import predictions

JUDGES = ("1/8", "segments:50")
"""The protocols by which a twin judges the original's maps, beside single pixels."""

SIZES = (1000, 4000, None)
WAYS = (0.5, 0.75)
CLEAN = 0.5


@dataclass(frozen=True)
class Case:
    """A twin: of which network, from which photos, with which option."""

    network: str
    place: str
    """Where the photos come from: inside or outside of what the network knows."""
    images: int | None
    """How many photos; None: all there are."""
    seed: int
    clean: float = 0.0
    way: float = 1.0

    @property
    def name(self) -> str:
        option = f"-clean{self.clean}" * bool(self.clean) + f"-way{self.way}" * (self.way < 1)
        return f"{self.network}-{self.place}-{self.images or 'all'}-seed{self.seed}{option}"

    @property
    def whole(self) -> "Case":
        """The one that goes all of the way."""
        return replace(self, way=1.0)

    @property
    def seconds(self) -> int:
        """Expected on one H200: the training, where it needs one of its own, and the audits."""
        return 90 + (0 if self.way < 1 else 240 if self.images is None else 120)


def cases() -> list[Case]:
    """All cases, those that answer most first: photos, then options where most photos are, then seeds."""
    found = [
        Case(network, place, images, seed)
        for seed in (0, 1)
        for place in ("inside", "outside")
        for images in reversed(SIZES)
        for network in finetune_imagenet.NETWORKS
    ]
    for seed in (0, 1):
        for network in finetune_imagenet.NETWORKS:
            most = Case(network, "inside", None, seed)
            found += [replace(most, clean=CLEAN), *(replace(most, way=way) for way in WAYS)]
    return found


class Bench:
    """The networks, the photos to judge on and those to learn from."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = chosen_device(options.device)
        self.tiny: bool = options.tiny
        self.size = 32 if self.tiny else 224
        self.originals: dict[str, nn.Module] = {}
        self.settings = Settings(ig_steps=2, sg_samples=2) if self.tiny else Settings(ig_steps=50)

    @cached_property
    def photos(self) -> ImageData:
        """The photos of ImageNet: the last of each class to judge on, as bytes, the others as files."""
        return finetune_imagenet.photos(
            self.options.photos,
            self.options.work / "photos",
            self.size,
            workers=self.options.workers,
            few=8 if self.tiny else None,
            crops=True,
        )

    def original(self, network: str) -> Any:
        """A network as it was published."""
        if network not in self.originals:
            model = finetune_imagenet.network(network, self.options.weights, self.size)
            self.originals[network] = model.to(self.device)
        return self.originals[network]

    def learned(self, case: Case) -> ImageData:
        """The photos of a case, normalised as its network takes them."""
        own = self.photos.train
        assert isinstance(own, FileSplit)
        inside = [*own.paths, *files_of(self.options.inside)]
        paths = inside if case.place == "inside" else files_of(self.options.outside)
        if self.tiny:
            paths = paths[:16]
        split = replace(own, paths=paths, labels=torch.zeros(len(paths), dtype=torch.int64), foreground=None)
        chosen = split if case.images is None else first_images(split, case.images, case.seed)
        card = self.original(case.network).card
        return replace(self.photos, train=chosen, normalisation=Normalisation(card.mean, card.std))

    def judged(self, network: str) -> tuple[Tensor, Tensor]:
        """The photos to judge on as a network takes them, and their labels; all have been decoded."""
        card = self.original(network).card
        test = self.photos.test
        images = Normalisation(card.mean, card.std)(test.images[: self.options.count])
        return images.to(self.device), test.labels[: self.options.count]


def files_of(folders: Sequence[Path]) -> list[Path]:
    """The photos below some folders."""
    kinds = (".jpg", ".jpeg")
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix.lower() in kinds]


def twin_of(case: Case, bench: Bench) -> tuple[nn.Module, float, float]:
    """The twin, the seconds that its training took, and the photos that it saw in one."""
    original = bench.original(case.network)
    folder = bench.options.work / case.whole.name
    path = folder / "model.safetensors"
    if not path.exists():
        data = bench.learned(case)
        began = time.perf_counter()
        tuned = fpa.finetune(
            original,
            data,
            epochs=1 if bench.tiny else None,
            batch_size=8 if bench.tiny else 64,
            targets="model",
            seed=case.seed,
            clean=case.clean,
            device=bench.device,
            workers=bench.options.workers,
            progress=not bench.tiny,
        )
        seconds = time.perf_counter() - began
        seen = tuned.card.recipe["training"]["epochs"] * len(data.train)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(tuned, tuned.card, path)
        write_text(folder / "seconds.txt", f"{seconds:.2f} {seen / seconds:.1f}\n")
    twin = copy.deepcopy(original)
    state = load_file(path)
    start = original.state_dict()
    for name, value in state.items():
        if value.is_floating_point():
            state[name] = start[name].cpu().lerp(value, case.way)
    twin.load_state_dict(state)
    seconds, pace = map(float, (folder / "seconds.txt").read_text().split())
    return twin.to(bench.device).eval(), seconds, pace


@torch.no_grad()
def right(model: nn.Module, data: ImageData, device: str) -> Tensor:
    """Which of all judging photos a network gets right."""
    predicted, labels = predictions(model, data, device, batch_size=100)
    return (predicted == labels).cpu()


def measured(case: Case, bench: Bench) -> dict[str, Any]:
    """The row of a case; its areas are written."""
    original = bench.original(case.network)
    twin, seconds, pace = twin_of(case, bench)
    images = bench.judged(case.network)
    data = bench.learned(case)
    points, interval = finetune_imagenet.change(
        right(twin, data, bench.device), right(original, data, bench.device)
    )
    audit = fpa.audit(
        twin,
        images,
        settings=bench.settings,
        estimators="paper",
        maskings=["constant"],
        device=bench.device,
        name=case.name,
        progress=False,
    )
    audit.save_areas(bench.options.output / f"{case.name}.parquet")
    moved = fpa.twin_distance(original, twin, images[0][:200])
    row: dict[str, Any] = {"name": case.name, **asdict(case), "photos": len(data.train)}
    row |= {
        "judging": len(images[0]),
        "verdict": audit.verdict,
        "opposite": opposite(audit.result.reliability),
    }
    row |= {"change": round(points, 3), "interval": round(interval, 3)}
    row |= {"seconds": seconds, "images per second": pace}
    row |= {"agreement": moved.agreement, "logits": moved.logits, "maps": moved.maps}
    return row | judge(case, bench, original, twin, images)


def judge(
    case: Case, bench: Bench, original: nn.Module, twin: nn.Module, images: tuple[Tensor, Tensor]
) -> dict[str, int]:
    """By protocol: the pairs of the original's maps that the twin puts in opposite order."""
    result = fpa.evaluate(
        original,
        images,
        "paper",
        judge=twin,
        protocols=["1/8"] if bench.tiny else list(JUDGES),
        settings=bench.settings,
        outputs=("centred", "logit"),
        examples=0,
        device=bench.device,
        progress=False,
    )
    write_areas(bench.options.output / f"{case.name}-judge.parquet", result, name=case.name)
    return {f"judge {name}": opposite(each.reliability) for name, each in result.by_protocol.items()}


def opposite(found: Any) -> int:
    """How many of the pairs of a signed and an unsigned estimator are in opposite order."""
    return sum(pair.opposite for pair in found.pairs if pair.kind == "signed-unsigned")


def stored(path: Path) -> Iterator[dict[str, str]]:
    """The rows that are there."""
    if path.exists():
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


def run(chosen: Sequence[Case], options: argparse.Namespace) -> None:
    """Measure the cases that are missing, as far as the time allows."""
    bench = Bench(options)
    end = time.monotonic() + 60 * options.minutes
    table = options.output / "twins.csv"
    options.output.mkdir(parents=True, exist_ok=True)
    for case in chosen:
        rows: list[dict[str, Any]] = list(stored(table))
        if case.name in {row["name"] for row in rows}:
            continue
        left = end - time.monotonic()
        if left < case.seconds:
            print(f"{case.name}: left out, {left:.0f} s are left of about {case.seconds}", flush=True)
            continue
        try:
            row = measured(case, bench)
        except (OSError, RuntimeError, ValueError) as error:  # the others may still go well
            print(f"{case.name}: given up, {type(error).__name__}: {error}", flush=True)
            continue
        rows.append(row)
        columns = list(dict.fromkeys(name for each in rows for name in each))
        with table.open("w", newline="") as file:
            written = csv.DictWriter(file, columns)
            written.writeheader()
            written.writerows(rows)
        print(
            f"{case.name}: {row['verdict']}, {row['opposite']} opposite, {row['change']} points", flush=True
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=Path, help="state dict of torchvision's mobilenet_v2")
    parser.add_argument("--photos", type=Path, help="photos of ImageNet, a subfolder a class")
    parser.add_argument("--inside", type=Path, nargs="*", default=[], help="more photos of known classes")
    parser.add_argument("--outside", type=Path, nargs="*", default=[], help="photos of other things")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of the names of cases")
    parser.add_argument("--count", type=int, default=1000, help="photos to judge on")
    parser.add_argument("--minutes", type=float, default=1e4)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--work", type=Path, default=Path("runs/twins"))
    parser.add_argument("--output", type=Path, default=Path("docs/results/twins"))
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(arguments)
    chosen = [case for case in cases() if case.name.startswith(tuple(options.only))]
    if options.list:
        for case in chosen:
            print(f"{case.name}: about {case.seconds} s")
        return
    run(chosen, options)


if __name__ == "__main__":
    main()
