"""Makes the models of the pages again, audits them, and keeps what a verdict rests on, image by image.

    python research/verdicts.py --data data --weights mobilenet_v2-b0353104.pth --photos imagenet-val \
        --minutes 9 --output docs/results/areas
    python research/verdicts.py --judge --output docs/results/areas

Every case (a model that was trained, fine-tuned, published or shipped) becomes OUTPUT/NAME.parquet: the areas
under the MIF and LIF curves and what random masking leaves of the centred and of the raw logit, of every
image, as `fpa audit` stores them. `--judge` judges these files by the rule as it is now, without any model,
beside the verdict that the pages show. The most important case comes first; one that is there is left out, so
the same command continues. With `--minutes` no case is begun that would end later, and one that takes
`--patience` (3) times as long as expected of a GPU is given up. `--only` takes beginnings of names, `--list`
shows all. Models stay in `--work`. `--tiny` does every case very small on a CPU, to see that it works.
"""

import argparse
import copy
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import finetune_imagenet
import fpa
from fpa.auditing.areas import read_areas
from fpa.auditing.rule import judge
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data
from fpa.data.splits import ImageData, first_images
from fpa.engine.devices import chosen_device
from fpa.explanation import Settings
from fpa.models.saved import save_model
from fpa.study.recipe import load_recipe
from fpa.study.trainings import load_recipe_data, train

Images = ImageData | tuple[Tensor, Tensor]


class Bench:
    """Where the cases are made: the options, the device, and data that are read once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = chosen_device(options.device)
        self.tiny: bool = options.tiny
        self.size = 32 if self.tiny else 224

    def small(self, data: ImageData, images: int | None = None) -> ImageData:
        """So many training images, chosen by chance; a few of everything where all is tiny."""
        if self.tiny:
            return replace(data, train=first_images(data.train, 96), evaluation=torch.arange(16))
        return data if images is None else replace(data, train=first_images(data.train, images))

    def study(self, name: str, seed: int, variants: Sequence[str]) -> Path:
        """The folder of a study whose models are trained."""
        changed: dict[str, Any] = {"data.root": str(self.options.data), "seed": seed}
        if name == "food101-64":
            changed["data.workers"] = 12
        if self.tiny:
            changed |= {"training.epochs": 1, "data.train_images": 192, "data.evaluation_images": 16}
        recipe = load_recipe(name, changed)
        folder = Path(self.options.work, f"{name}-seed{seed}")
        train(recipe, folder, variants=variants, data=load_recipe_data(recipe), device=self.options.device)
        return folder

    @cached_property
    def photos(self) -> ImageData:
        """Four photos of each class of ImageNet to train on, the fifth to judge on."""
        return finetune_imagenet.photos(
            self.options.photos,
            Path(self.options.work, "photos"),
            self.size,
            workers=self.options.workers,
            few=8 if self.tiny else None,
            crops=True,
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model whose verdict is shown."""

    name: str
    shown: str
    """The verdict that the pages show, by the rule of before."""
    count: int
    """Images of the audit."""
    seconds: int
    """Expected on one H200."""
    ig_steps: int = 200
    """Of integrated gradients, as on the pages."""

    def make(self, bench: Bench) -> tuple[nn.Module, Images]:
        """The model and its images."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Trained(Case):
    """A model of a study; the first one that is asked for trains all that are missing, side by side."""

    study: str
    seed: int
    variants: tuple[str, ...]
    variant: str

    def make(self, bench: Bench) -> tuple[nn.Module, Images]:
        stored = bench.options.output
        prefix = self.name.removesuffix(self.variant)
        missing = [each for each in self.variants if not (stored / f"{prefix}{each}.parquet").exists()]
        folder = bench.study(self.study, self.seed, [*dict.fromkeys([*missing, self.variant])])
        model = fpa.load_model(folder / self.variant / "model.safetensors", bench.device)
        return model, load_data(model.card.recipe["data"]["name"], bench.options.data)


@dataclass(frozen=True, kw_only=True)
class Shipped(Case):
    """A model of the package."""

    def make(self, bench: Bench) -> tuple[nn.Module, Images]:
        model = fpa.load_model(self.name, bench.device)
        return model, load_data(model.card.recipe["data"]["name"], bench.options.data)


@dataclass(frozen=True, kw_only=True)
class Tuned(Case):
    """A model of another case, fine-tuned; what is None is the default of `fpa finetune`."""

    base: Case
    targets: str
    epochs: int | None = None
    rate: float | None = None
    images: int | None = None

    def make(self, bench: Bench) -> tuple[nn.Module, Images]:
        model, data = self.base.make(bench)
        tuned = fpa.finetune(
            model,
            bench.small(data, self.images),
            epochs=1 if bench.tiny else self.epochs,
            learning_rate=self.rate,
            targets=self.targets,
            device=bench.device,
        )
        return tuned, data


@dataclass(frozen=True, kw_only=True)
class Published(Case):
    """A network of ImageNet as it was published, or its twin after so many epochs of its own predictions."""

    network: str
    epochs: int | None = None

    def make(self, bench: Bench) -> tuple[nn.Module, Images]:
        model = finetune_imagenet.network(self.network, bench.options.weights, bench.size)
        data = replace(bench.photos, normalisation=Normalisation(model.card.mean, model.card.std))
        if self.epochs is not None:
            model = self._twin(model, data, bench)
        # The photos of finetune_imagenet.py, so that the verdicts are of the same ones.
        order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))
        chosen = order[: self.count].sort().values
        images = data.normalisation(data.test.images[chosen]).to(bench.device)
        return model.to(bench.device), (images, data.test.labels[chosen])

    def _twin(self, model: Any, data: ImageData, bench: Bench) -> nn.Module:
        """The twin, from the work folder where an earlier case has made it."""
        place = Path(bench.options.work, f"{self.network}-epochs-{self.epochs}", "model.safetensors")
        if place.exists():
            twin = copy.deepcopy(model)
            twin.load_state_dict(load_file(place))
            return twin
        tuned = fpa.finetune(
            model,
            data,
            epochs=1 if bench.tiny else self.epochs,
            batch_size=8 if bench.tiny else 64,
            targets="model",
            device=bench.device,
            workers=bench.options.workers,
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        save_model(tuned, tuned.card, place)
        return tuned


BAD = "unreliable"
GOOD = "reliable"
UNCLEAR = "cannot tell"
BY_VARIANT = {"none": BAD, "rectangle": BAD, "fpa": GOOD}

TUNINGS = (
    (10, 0.01, GOOD),  # README's
    (1, 0.003, BAD),
    (2, 0.003, GOOD),
    (5, 0.003, GOOD),
    (10, 0.003, GOOD),
    (5, 0.01, UNCLEAR),
    (5, 0.03, GOOD),
    (10, 0.03, GOOD),
)
"""Epochs, learning rate and verdict of the ResNet-18 of CIFAR-10 in finetuning.md."""

TWINS = {
    "mobilenet_v2": {None: BAD, 60: GOOD, 10: GOOD, 5: UNCLEAR, 2: UNCLEAR, 1: UNCLEAR},
    "efficientnet-lite0": {None: BAD, 60: UNCLEAR, 10: UNCLEAR, 5: UNCLEAR, 2: UNCLEAR, 1: GOOD},
    "efficientnet-lite2": {None: BAD, 60: GOOD, 10: GOOD, 5: GOOD, 2: UNCLEAR, 1: GOOD},
}
"""By network and epochs (None: as published) the verdict in imagenet.md."""


def cases() -> list[Case]:
    """All cases, the most important first."""
    cifar10 = [
        case
        for seed in (0, 1)
        for case in of_study("cifar10", seed, BY_VARIANT, name="cifar10", count=2000, seconds=170)
    ]
    tuned = [
        Tuned(
            name=f"cifar10-tuned-{epochs}-epochs-{rate}",
            shown=shown,
            count=2000,
            seconds=20 + 2 * epochs,
            base=cifar10[0],
            targets="labels",
            epochs=epochs,
            rate=rate,
        )
        for epochs, rate, shown in TUNINGS
    ]
    main = [case for network in TWINS for case in of_network(network, (None, 60, 10))]
    whole = [case for network in TWINS for case in of_network(network, (60,), count=1000)]
    short = [case for network in TWINS for case in of_network(network, (5, 2, 1))]
    food = of_study("food101-64", 0, BY_VARIANT, name="food101", count=1000, seconds=450)
    food += of_study("food101-64", 1, ("none", "fpa"), name="food101", count=1000, seconds=350)
    return [*cifar10, tuned[0], *of_package(), *main, *tuned[1:5], *whole, *short, *tuned[5:], *food]


def of_study(
    study: str, seed: int, variants: Iterable[str], *, name: str, count: int, seconds: int
) -> list[Case]:
    """The models of a study; the first of them has the time of the training."""
    together = tuple(variants)
    return [
        Trained(
            name=f"{name}-seed{seed}-{variant}",
            shown=BY_VARIANT[variant],
            count=count,
            seconds=20 if place else seconds,
            study=study,
            seed=seed,
            variants=together,
            variant=variant,
        )
        for place, variant in enumerate(together)
    ]


def of_network(network: str, epochs: Iterable[int | None], count: int = 300) -> list[Case]:
    """A published network and its twins; more photos than 300 are in the name."""
    return [
        Published(
            name=f"{network}-{finetune_imagenet.place_of(each)}" + (f"-{count}" if count > 300 else ""),
            shown=TWINS[network][each],
            count=count,
            seconds=30 + count // 15 + (each or 0),
            network=network,
            epochs=each,
        )
        for each in epochs
    ]


def of_package() -> list[Case]:
    """The shipped models, those of digits, and the small ones after fine-tuning with the defaults."""
    found: list[Case] = []
    for data, count in (("cifar10-small", 2000), ("shapes", 1000)):
        found += [
            Shipped(name=f"{data}-{variant}", shown=shown, count=count, seconds=20, ig_steps=50)
            for variant, shown in BY_VARIANT.items()
        ]
    found.append(
        Trained(
            name="digits-none",
            shown=GOOD,
            count=300,
            seconds=60,
            ig_steps=50,
            study="digits",
            seed=0,
            variants=("none",),
            variant="none",
        )
    )
    by_name = {case.name: case for case in found}
    ways = [("cifar10-small-none", "model", GOOD), ("shapes-none", "model", GOOD)]
    ways += [
        ("shapes-none", "labels", UNCLEAR),
        ("digits-none", "model", GOOD),
        ("digits-none", "labels", GOOD),
    ]
    for base, targets, shown in ways:
        found.append(
            Tuned(
                name=f"{base}-tuned-{targets}",
                shown=shown,
                count=by_name[base].count,
                seconds=60,
                ig_steps=50,
                base=by_name[base],
                targets=targets,
                images=4000 if base.startswith("cifar10") else None,
            )
        )
    return found


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Give up what takes longer, between two steps of Python."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(max(1, round(seconds)))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def audited(case: Case, bench: Bench) -> fpa.Audit:
    """Make a case and audit it as the pages do: the paper's ten estimators, the masking that is judged."""
    began = time.perf_counter()
    model, images = case.make(bench)
    made = time.perf_counter()
    count = 4 if bench.tiny else case.count
    verdict = fpa.audit(
        model,
        images,
        count=count if isinstance(images, ImageData) else None,  # photos are chosen already
        settings=Settings(ig_steps=2, sg_samples=2) if bench.tiny else Settings(ig_steps=case.ig_steps),
        estimators="paper",
        maskings=["constant"],
        device=bench.device,
        name=case.name,
        progress=False,
    )
    spent = time.perf_counter() - made
    print(
        f"{case.name}: {verdict.verdict}, made in {made - began:.0f} s, audited in {spent:.0f} s", flush=True
    )
    return verdict


def run(chosen: Sequence[Case], options: argparse.Namespace) -> None:
    """Make the cases that are missing, as far as the time allows."""
    bench = Bench(options)
    end = time.monotonic() + 60 * options.minutes
    for case in chosen:
        path = options.output / f"{case.name}.parquet"
        left = end - time.monotonic()
        if path.exists():
            continue
        if left < case.seconds:
            print(f"{case.name}: left out, {left:.0f} s are left of about {case.seconds}", flush=True)
            continue
        try:
            with at_most(min(left, options.patience * case.seconds)):
                verdict = audited(case, bench)
        except (TimeoutError, OSError, RuntimeError, ValueError) as error:  # the others may still go well
            print(f"{case.name}: given up, {type(error).__name__}: {error}", flush=True)
            continue
        verdict.save(options.work / "audits" / f"{case.name}.json")
        verdict.save_areas(path)


def show(chosen: Sequence[Case], folder: Path) -> None:
    """The stored cases as a table: the verdict that the pages show, and that of the rule as it is now."""
    print("| model | images | verdict shown | verdict now | opposite pairs | for sure | logit kept at 10 % |")
    print("|---|---:|---|---|---:|---:|---:|")
    for case in chosen:
        path = folder / f"{case.name}.parquet"
        if not path.exists():
            continue
        found = read_areas(path).evidence()
        verdict = judge(found)[0]
        opposite = ""
        surely = ""
        if found.opposite is not None:
            opposite = f"{found.opposite.value:.0f} of {found.pairs}"
            surely = f"{found.opposite.low:.0f} to {found.opposite.high:.0f}"
        kept = f"{100 * found.kept[10].value:.0f}" if found.kept else ""
        cells = [case.name, f"{found.used}", case.shown, verdict, opposite, surely, kept]
        print(f"| {' | '.join(cells)} |")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder that holds the data sets")
    parser.add_argument("--weights", type=Path, help="state dict of torchvision's mobilenet_v2")
    parser.add_argument("--photos", type=Path, help="photos of ImageNet, a subfolder a class")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of the names of cases")
    parser.add_argument("--minutes", type=float, default=1e4)
    parser.add_argument("--patience", type=float, default=3.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--work", type=Path, default=Path("runs/verdicts"))
    parser.add_argument("--output", type=Path, default=Path("docs/results/areas"))
    parser.add_argument("--device")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--judge", action="store_true", help="judge what is there, and make nothing")
    options = parser.parse_args(arguments)
    chosen = [case for case in cases() if case.name.startswith(tuple(options.only))]
    if options.list:
        for case in chosen:
            print(f"{case.name}: {case.count} images, about {case.seconds} s")
    elif options.judge:
        show(chosen, options.output)
    else:
        run(chosen, options)


if __name__ == "__main__":
    main()
