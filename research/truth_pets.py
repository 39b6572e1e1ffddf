"""The experiment of research/truth.py on photos: cats and dogs with cards on them, whose effects are known.

    python research/truth_pets.py --photos DIR --weights mobilenet_v2.pth --seeds 0 1 --work runs/truth-pets

A *cell* is a seed: the world `Pets(DIR, seed=seed)`, two trainings from the weights of ImageNet, a fine-tuned
twin, and a file for every row of `research/truth_pets.yaml`. What is there is not made again, and a file made
with another yaml is refused. The photos are read once, and the images of both splits are held whole: reading
and painting them in every epoch would take longer than learning. `--tiny` does everything very small.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fpa
from fpa.data.pets import PetPhotos, pet_photos
from fpa.data.splits import (
    USUAL_SIDE,
    ArraySplit,
    DataRequest,
    FileSplit,
    ImageData,
    fixed_choice,
)
from fpa.engine.devices import chosen_device
from fpa.study.recipe import load_recipe
from fpa.study.trainings import train
from fpa.training.trainer import accuracy
from fpa.worlds import Pets
from fpa.worlds.scenes import Scenes
from truth import FEWEST_CUES, Bench, Cell, Experiment

PROTOCOL = Path(__file__).with_name("truth_pets.yaml")
WORLD = "pets"
AT_ONCE = 64
"""Photos that are painted on together."""
TINY = {"side": 64, "train": 32, "test": 40}


@dataclass(frozen=True, eq=False, kw_only=True)
class Held(FileSplit):
    """Photos that have been decoded."""

    images: Tensor

    def load(self, index: int, seed: int | None = None, epoch: int = 0) -> Tensor:
        return self.images[index]


@dataclass(frozen=True)
class PetsBench(Bench):
    """With what pets need."""

    root: Path
    photos: PetPhotos
    weights: Path | None
    """Of MobileNetV2; None only where all is tiny: a smaller network with random ones."""


@dataclass(frozen=True)
class PetsCell(Cell):
    """A seed."""

    bench: PetsBench

    def data(self) -> ImageData:
        """The photos with the cards of this seed, judged on some that have enough of them."""
        bench = self.bench
        photos = bench.photos
        world = Pets(bench.root, photos.test.size, seed=self.seed)
        world.photos = photos
        world.train_images = len(photos.train)
        world.test_images = len(photos.test)
        data = world(DataRequest(f"{WORLD}, seed {self.seed}", size=world.size, check=False))
        train, _ = painted(world.train_scenes, world.train_images, bench.device)
        test, cards = painted(world.test_scenes, world.test_images, bench.device)
        enough = (cards >= FEWEST_CUES).nonzero()[:, 0]
        # Not the first ones: the lists go by breed, and would give the photos of two breeds.
        judged = enough[fixed_choice(enough.tolist(), bench.setting("judged", 4))]
        # `flip` mirrors every other image in training, as the files would be.
        return replace(
            data,
            train=ArraySplit(train, data.train.labels),
            test=ArraySplit(test, data.test.labels),
            evaluation=judged,
            flip=True,
        )

    def models(self, data: ImageData) -> dict[str, nn.Module]:
        """The trained models by name, the twin included; those that are there are read."""
        bench = self.bench
        names = bench.setting("models")
        folder = self.folder / "models"
        if missing := [name for name in names if not (folder / name / "model.safetensors").exists()]:
            changed: dict[str, Any] = {"seed": self.seed, "data.size": data.input_shape[-1]}
            # A few steps from random weights teach MobileNetV2 nothing; only `--tiny` goes without a file.
            start = {"model": "resnet-small"} if bench.weights is None else {}
            changed |= {"weights": None if bench.weights is None else str(bench.weights), **start}
            for name, value in bench.setting("training", {"epochs": 1, "batch_size": 4}).items():
                changed[f"training.{name}"] = value
            recipe = load_recipe(bench.setting("recipe"), changed)
            train(recipe, folder, variants=missing, data=data, device=str(bench.device))
        models = {name: self.load(folder / name) for name in names}
        output = self.folder / "twin"
        if not (output / "model.safetensors").exists():
            fpa.finetune(
                models["none"],
                data,
                targets="model",
                epochs=bench.setting("twin", {"epochs": 1})["epochs"],
                batch_size=4 if bench.tiny else 64,
                seed=self.seed,
                device=str(bench.device),
                folder=output,
            )
        return models | {"twin": self.load(output)}

    def facts(self, data: ImageData, explained: nn.Module, judge: nn.Module) -> dict[str, Any]:
        """How often either model is right, on all test photos and on those that are judged."""
        every = replace(data, evaluation=torch.arange(len(data.test)))
        found = {}
        for role, model in (("explained", explained), ("judge", judge)):
            for photos, some in (("test", every), ("judged", data)):
                share = accuracy(model, some, self.bench.device)
                found[f"accuracy {role} {photos}"] = np.array(share, dtype=np.float32)
        words = ", ".join(f"{name} {float(share):.3f}" for name, share in found.items())
        print(f"{self.rule} {self.seed}: {words}", flush=True)
        return found


def painted(
    scenes_of: Callable[[Sequence[int], torch.device], Scenes], count: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """All images of a split, uint8 [N, 3, H, W], and how many cards [N] each has."""
    images = []
    cards = []
    for start in range(0, count, AT_ONCE):
        scenes = scenes_of(range(start, min(start + AT_ONCE, count)), device)
        images.append(scenes.render().cpu())
        cards.append(scenes.cues.sum(1).cpu())
    return torch.cat(images), torch.cat(cards)


def held(photos: FileSplit, workers: int, most: int | None) -> Held:
    """The photos, or as many of them, decoded by so many threads."""
    if most is not None:
        photos = photos.chosen(fixed_choice(range(len(photos)), min(most, len(photos))))
    images = torch.empty(len(photos), 3, photos.size, photos.size, dtype=torch.uint8)
    # Threads, not processes, whose shared memory may be small: decoding lets the others run.
    with ThreadPoolExecutor(workers) as pool:
        for place, image in enumerate(pool.map(photos.load, range(len(photos)))):
            images[place] = image
    return Held(photos.paths, photos.labels, photos.transform, photos.size, images=images)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=Path, required=True, help="the folder of the pets, or the one above")
    parser.add_argument(
        "--weights", type=Path, help="torchvision's mobilenet_v2, a file; needed but for tiny"
    )
    parser.add_argument("--seeds", nargs="*", type=int, help="default: those of truth_pets.yaml")
    parser.add_argument("--work", type=Path, default=Path("runs/truth-pets"))
    parser.add_argument("--workers", type=int, default=6, help="threads that decode photos")
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "tf32", "bfloat16"])
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.weights is None and not options.tiny:
        parser.error("--weights FILE is needed")
    experiment = Experiment.read(PROTOCOL)
    began = time.perf_counter()
    tiny = options.tiny
    photos = pet_photos(options.photos, TINY["side"] if tiny else USUAL_SIDE)
    train_photos = held(photos.train, options.workers, TINY["train"] if tiny else None)
    test_photos = held(photos.test, options.workers, TINY["test"] if tiny else None)
    print(f"photos in {time.perf_counter() - began:.0f} s", flush=True)
    bench = PetsBench(
        experiment,
        options.work,
        torch.device(chosen_device(options.device)),
        tiny=tiny,
        precision=options.precision,
        root=options.photos,
        photos=PetPhotos(train_photos, test_photos),
        weights=options.weights,
    )
    for seed in options.seeds or experiment.settings["seeds"]:
        PetsCell(bench, WORLD, seed).make()


if __name__ == "__main__":
    main()
