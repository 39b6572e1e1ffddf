"""Which way of fine-tuning a published network towards its own predictions keeps what it knows?

    python research/finetune_ways.py --weights mobilenet_v2-b0353104.pth --photos imagenet-val \
        --ways untouched 10 "frozen adam 1e-4 30" --output runs/ways

The networks and photos of finetune_imagenet.py: the last photo of every class is for judging, the others are
for fine-tuning. Or a saved or shipped model and `--images` of the training images of its own data set:

    python research/finetune_ways.py --network cifar10-small-none --images 400 --ways 10 --output runs/ways

A plain loop, so that ways can be tried which `fpa.finetune` does not have. A
way is a line of words, each of which changes one thing of the default:

    frozen      batch norms keep their statistics (default: those of the batch, and running means)
    adam        AdamW without weight decay instead of SGD with momentum
    0.001       largest learning rate (default 0.003); 30: epochs (default 10)
    crops       random crops of a quarter to all of a photo, instead of shifts by up to 16 pixels
    logits      squared distance of the centred logits instead of the cross-entropy of the probabilities
    hard        the class that the network predicts instead of the probabilities of all classes
    mixup       two photos of a batch laid over each other, in shares drawn for every batch
    images      a coin and a share of masked pixels for each image instead of each batch
    always      every batch is masked, instead of every other
    70%         up to so many of the pixels are selected, instead of the paper's share for the size
    early       only the first third of the weight tensors are trained
    mixed       the weights are the mean of those before and after
    averaged    the learning rate does not fall, and the weights are the mean of those of the second half
    untouched   nothing is done
    unmasked    no masking at all: what does the training alone cost?

Prints and stores, for every way, accuracy on all judging photos, the centred logit kept with a tenth of the
pixels masked, signed-unsigned pairs in opposite order, the least by which LIF agrees with MIF on such a pair
(`margin`; below 0: it does not), and the verdict of the audit on `--count` of them.
"""

import argparse
import copy
import csv
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import fpa
from finetune_imagenet import network, photos
from finetuning import margin
from fpa.data.crops import RandomCrop, crop_and_flip, resized_crops
from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data
from fpa.data.splits import ImageData, first_images
from fpa.engine.devices import chosen_device
from fpa.explanation import Settings
from fpa.training.augment import _grow_squares


class Masks:
    """FPA with one coin for a batch, or one for every image."""

    def __init__(self, words: set[str], size: int, device: str) -> None:
        settings = fpa.suggested_fpa(size, size)
        self.by_image = "images" in words
        self.off = "unmasked" in words
        self.augment = fpa.FPA(
            p=1.0 if "always" in words else settings.p,
            p1_max=next((float(word[:-1]) / 100 for word in words if word[-1] == "%"), settings.p1_max),
            p2=settings.p2,
            s_max=settings.s_max,
            squares=settings.squares,
            generator=torch.Generator(device).manual_seed(1),
        )

    def __call__(self, images: Tensor) -> Tensor:
        if self.off:
            return images
        if not self.by_image:
            return self.augment(images)
        augment = self.augment
        count, _, *sides = images.shape
        coin, share = torch.rand(2, count, 1, 1, generator=augment.generator, device=images.device)
        masked = share * augment.p1_max * (coin < augment.p)
        uniform = torch.rand(count, *sides, generator=augment.generator, device=images.device)
        squares = masked * augment.p2
        return augment.masking(images, _grow_squares(uniform < masked, uniform, squares, augment.s_max))


class Batches:
    """Training photos, shuffled and normalised; drawn on the CPU, so that a device changes nothing."""

    def __init__(self, data: ImageData, words: set[str], batch: int, device: str) -> None:
        self.data = data
        self.words = words
        self.batch = batch
        self.device = device
        self.images = data.train.images.to(device)
        self.size = data.input_shape[-1]
        self.crop = RandomCrop(self.size)
        self.draws = torch.Generator().manual_seed(0)
        self.steps = len(self.images) // batch

    def epoch(self) -> Iterator[Tensor]:
        """The batches of an epoch; what is left over, less than a batch, waits for the next."""
        order = torch.randperm(len(self.images), generator=self.draws)
        for chosen in order[: self.steps * self.batch].split(self.batch):
            pixels = self._cropped(chosen) if "crops" in self.words else self._shifted(chosen)
            whole = self.data.normalisation(pixels).to(memory_format=torch.channels_last)
            if "mixup" in self.words:
                whole = whole.lerp(whole.roll(1, 0), float(torch.rand((), generator=self.draws)))
            yield whole

    def _cropped(self, chosen: Tensor) -> Tensor:
        uniform = torch.rand(self.batch, self.crop.draws, generator=self.draws)
        uniform[:, :10] = 0.2 + 0.8 * uniform[:, :10]  # a quarter of the area and more
        sides = torch.full((self.batch,), self.size)
        boxes = self.crop.boxes(uniform, sides, sides).to(self.device)
        return resized_crops(self.images[chosen.to(self.device)], boxes, self.size)

    def _shifted(self, chosen: Tensor) -> Tensor:
        most = self.data.crop_padding
        shift = torch.randint(-most, most + 1, (2, self.batch), generator=self.draws).to(self.device)
        flipped = (torch.rand(self.batch, generator=self.draws) < 0.5).to(self.device)
        return crop_and_flip(self.images, chosen.to(self.device), shift, flipped)


def optimizer_of(student: nn.Module, words: set[str], rate: float) -> torch.optim.Optimizer:
    """SGD or AdamW, of all weights or the first third."""
    parameters = list(student.parameters())
    if "early" in words:
        parameters = parameters[: len(parameters) // 3]
    if "adam" in words:
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9)


def loss_of(logits: Tensor, target: Tensor, words: set[str]) -> Tensor:
    """How far the student's logits on masked photos are from the teacher's on whole ones."""
    if "logits" in words:
        centred, wanted = (each - each.mean(1, keepdim=True) for each in (logits, target))
        return functional.mse_loss(centred, wanted)
    wanted = target.argmax(1) if "hard" in words else target.softmax(1)
    return functional.cross_entropy(logits, wanted)


def tuned(model: nn.Module, data: ImageData, way: str, *, batch: int, device: str, half: bool) -> nn.Module:
    """The network after fine-tuning in this way."""
    words = set(way.split())
    numbers = sorted(float(word) for word in words if word[0].isdigit() and word[-1] != "%")
    epochs = int(next((number for number in numbers if number >= 1), 10))
    rate = next((number for number in numbers if number < 1), 0.003)
    student = copy.deepcopy(model).to(device)
    teacher = copy.deepcopy(model).to(device).eval()
    student.to(memory_format=torch.channels_last).train()
    if "frozen" in words:
        student.eval()
    optimizer = optimizer_of(student, words, rate)
    batches = Batches(data, words, batch, device)
    masks = Masks(words, batches.size, device)
    compiled = device.startswith("cuda")
    forward, taught = (torch.compile(each) if compiled else each for each in (student, teacher))
    mean = torch.optim.swa_utils.AveragedModel(student) if "averaged" in words else None
    done = 0
    for _ in range(epochs):
        for whole in batches.epoch():
            # Up over the first tenth, then down along a cosine; an average of weights needs them to move on.
            place = done / (epochs * batches.steps)
            fall = (1 + math.cos(math.pi * (place - 0.1) / 0.9)) / 2 if mean is None else 1
            for group in optimizer.param_groups:
                group["lr"] = rate * (place / 0.1 if place < 0.1 else fall)
            done += 1
            with torch.autocast(whole.device.type, torch.bfloat16, enabled=half):
                with torch.no_grad():
                    target = taught(whole).float()
                logits = forward(masks(whole).to(memory_format=torch.channels_last)).float()
            optimizer.zero_grad()
            loss_of(logits, target, words).backward()
            optimizer.step()
            if mean is not None and place >= 0.5:
                mean.update_parameters(student)
    if mean is not None:
        student = mean.module
    if "mixed" in words:
        with torch.no_grad():
            for ours, theirs in zip(student.parameters(), model.to(device).parameters(), strict=True):
                ours.lerp_(theirs, 0.5)
    return student.to(memory_format=torch.contiguous_format).eval()


@torch.inference_mode()
def right(model: nn.Module, data: ImageData, device: str) -> Tensor:
    """Which of the judging photos the network gets right."""
    parts = data.test.images.split(250), data.test.labels.split(250)
    return torch.cat(
        [model(data.normalisation(x.to(device))).argmax(1).cpu() == y for x, y in zip(*parts, strict=True)]
    )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with those that `--tiny` makes small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", default="mobilenet_v2")
    parser.add_argument("--weights", type=Path, help="state dict of torchvision's mobilenet_v2")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--ways", nargs="+", required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--count", type=int, default=300, help="photos of the audits")
    parser.add_argument("--size", type=int, default=224, help="of the photos")
    parser.add_argument("--ig-steps", type=int, default=50)
    parser.add_argument("--points", type=int, default=21, help="of the curves")
    parser.add_argument("--bfloat16", action="store_true", help="on a CPU too, which must be able to")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--save", action="store_true", help="keep the weights")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    options.few = None
    if options.tiny:
        options.size = 32
        options.few = 8
        options.count = 8
        options.ig_steps = 2
        options.batch_size = 8
    return options


def start(options: argparse.Namespace) -> tuple[nn.Module, ImageData]:
    """The network to begin with, and its data, normalised as it takes them."""
    if options.photos is None:
        original = fpa.load_model(options.network)
        data = load_data(original.card.recipe["data"]["name"], options.data)
        data = replace(data, train=first_images(data.train, options.images))
        data = replace(data, test=first_images(data.test, 1000))
    else:
        place = options.output / "photos"
        data = photos(options.photos, place, options.size, workers=options.workers, few=options.few)
        original = network(options.network, options.weights, options.size)
    return original, replace(data, normalisation=Normalisation(original.card.mean, original.card.std))


def row_of(way: str, seconds: float, hits: Tensor, known: Tensor, audit: fpa.Audit) -> dict[str, object]:
    """A row of the table: what was right, against what the untouched network knew, and the audit."""
    change = (hits.float() - known.float()) * 100
    evidence = audit.evidence
    return {
        "way": way,
        "seconds": f"{seconds:.0f}",
        "accuracy": f"{100 * hits.float().mean():.1f}",
        "change": f"{change.mean():.1f}",
        "interval": f"{1.96 * change.std() / math.sqrt(len(change)):.1f}",
        "kept": f"{evidence.kept[10][0]:.3f}" if evidence.kept else "",
        "opposite": "" if evidence.opposite is None else f"{evidence.opposite[0]:g}",
        "significant": evidence.contradictions,
        "margin": f"{margin(audit):.1f}",
        "verdict": audit.verdict,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    device = chosen_device(options.device)
    options.output.mkdir(parents=True, exist_ok=True)
    original, data = start(options)
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))[: options.count]
    chosen = order.sort().values
    images = data.normalisation(data.test.images[chosen]).to(device)
    labels = data.test.labels[chosen]
    known = right(original.to(device), data, device)
    table = options.output / "ways.csv"
    for number, way in enumerate(options.ways):
        began = time.perf_counter()
        model = original.to(device)
        if way != "untouched":
            half = options.bfloat16 or device.startswith("cuda")
            model = tuned(original, data, way, batch=options.batch_size, device=device, half=half)
        seconds = time.perf_counter() - began
        hits = right(model, data, device)
        verdict = fpa.audit(
            model,
            (images, labels),
            settings=Settings(ig_steps=options.ig_steps),
            maskings=["constant"],
            estimators="paper",
            progress=False,
            points=options.points,
            precision="bfloat16" if options.bfloat16 else None,
        )
        row = row_of(way, seconds, hits, known, verdict)
        print(row, flush=True)
        with table.open("a", newline="") as file:
            rows = csv.DictWriter(file, list(row))
            if file.tell() == 0:
                rows.writeheader()
            rows.writerow(row)
        if options.save and way != "untouched":
            torch.save(model.state_dict(), options.output / f"{number}.pt")


if __name__ == "__main__":
    main()
