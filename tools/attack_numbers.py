"""Attacks on numbers, for `attack.py`: functions that work in place, and runs that continue another's folder.

Good is: the numbers of a run that nothing happened to, or one line that says what is wrong. Bad is another
number without a word.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fpa
from fpa.explanation import SmoothGrad
from fpa.masking import Masking

Trial = Callable[[str, bool, object], None]
"""Counts a trial: its kind, whether it ended well, and what happened."""

QUICK = {"points": 3, "examples": 0, "progress": False, "ig_steps": 2, "sg_samples": 2}
ESTIMATORS = ("ig_sum", "vg_abs", "sg_sum")


def network(activation: Callable[[], nn.Module] = nn.ReLU, factor: float = 1.0) -> nn.Sequential:
    """A small network whose weights are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), activation(), nn.Flatten(), nn.Linear(256, 4))
    nn.init.constant_(layers[3].bias, 6.0)
    if factor != 1:
        layers[0].register_forward_hook(lambda module, inputs, output: factor * output)
    return layers.eval()


def _spoil(chance: random.Random, tensor: torch.Tensor) -> None:
    """Change a tensor in one of the ways in which people do, by accident or for speed."""
    ways = [
        lambda: tensor.zero_(),
        lambda: tensor.mul_(2),
        lambda: tensor.copy_(tensor.flip(0)),
        lambda: tensor.data.fill_(1),
        lambda: tensor.detach().numpy().fill(0),
        lambda: tensor.__setitem__(0, 0),
    ]
    chance.choice(ways)()


def in_place(trial: Trial, trials: range, chance: random.Random, kind: str) -> None:
    """Maskings, estimators, families and scores of one's own that change what they are given."""
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    right = _areas(network(), images)
    for _ in trials:
        name, options = chance.choice([*_spoilers(chance)])
        given = images.clone()
        model = network()
        try:
            found = _areas(model, given, **options)
        except fpa.InputError as error:
            trial(kind, "\n" not in str(error), f"{name}: {error}")
        else:
            same = all(found[each] == right[each] for each in ESTIMATORS)
            trial(kind, same, f"{name}: {found}, not {right}")
        trial(kind, torch.equal(given, images), f"{name} changed the images")
        kept = network().state_dict()
        same = all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())
        trial(kind, same, f"{name} changed the model")


def _areas(model: nn.Module, images: torch.Tensor, **options: Any) -> dict[str, float]:
    chosen = {name: name for name in ESTIMATORS} | options.pop("more", {})
    result = fpa.evaluate(model, images, chosen, **QUICK | options)
    return {name: each.area for name, each in result.fidelity.items()}


def _spoilers(chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """What to evaluate with, by name."""

    def masking(images: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        masked = images.masked_fill(mask[:, None], 0)
        _spoil(chance, images)
        return masked

    def estimator(model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raw = images.clone()
        _spoil(chance, chance.choice([images, targets]))
        return raw

    def training(model: nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            chance.choice([*model.parameters()]).mul_(0.5)
        return images

    class OfOnesOwn(Masking):
        def noise(self, images: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
            _spoil(chance, images)
            return images[:, :1].clone()

        def __call__(
            self, images: torch.Tensor, mask: torch.Tensor, noise: torch.Tensor | None = None
        ) -> torch.Tensor:
            return images.masked_fill_(mask[:, None], 0)

    class Family(SmoothGrad):
        family = "of one's own"

        def each(self, gradients: torch.Tensor) -> torch.Tensor:
            return gradients.square_()

    class Spoiling(fpa.Score):
        name = "spoiling"
        title = "changes what it reads"
        source = "here"
        higher_is_better = True

        def __call__(self, block: Any) -> dict[str, torch.Tensor]:
            curves = block.curves[block.output]
            tensors = [block.task.images, block.logits, *block.maps.values(), *curves.mif.values()]
            _spoil(chance, chance.choice(tensors))
            return {name: torch.zeros(len(block.labels)) for name in block.estimators}

    yield "masking", {"masking": masking}
    yield "further masking", {"maskings": {"other": masking}}
    yield "masking object", {"masking": OfOnesOwn()}
    yield "estimator", {"more": {"mine": estimator}}
    yield "estimator that trains", {"more": {"mine": training}}
    yield "family", {"more": {"mine": Family(2, 0.15)}}
    yield "score", {"scores": [Spoiling()]}


def continued(trial: Trial, trials: range, chance: random.Random, kind: str, place: Path) -> None:
    """A folder continued with another model, judge, other images, masks, or the same ones."""
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    masks = images[:, 0] > 0
    usual = {"model": network(), "data": images, "judge": None, "masks": masks, "scores": ["pointing_game"]}
    for number in trials:
        folder = place / f"continued{number}"
        row = chance.randrange(6)
        pixel = tuple(chance.randrange(side) for side in images.shape)
        moved = images.clone()
        moved[pixel] += 10 ** chance.uniform(-5, 0)
        other_masks = masks.clone()
        other_masks[row, 0, 0] ^= True
        others: list[dict[str, Any]] = [
            {},
            {"model": network(chance.choice([nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Identity]))},
            {"model": network(factor=chance.choice([0.9, 1.05, 2.0]))},
            {"judge": network(nn.GELU)},
            {"data": moved},
            {"data": images + chance.choice([-0.01, 0.01, 1e-4])},
            {"data": images.numpy().astype(np.float32) * np.float32(1.01)},
            {"masks": other_masks},
        ]
        change = others[number % len(others)]
        judged = {"judge": network()} if "judge" in change else {}
        _evaluate(folder, usual | judged)
        try:
            _evaluate(folder, usual | judged | change)
            refused = ""
        except fpa.InputError as error:
            refused = str(error)
        good = bool(refused) == bool(change) and "\n" not in refused
        trial(kind, good, f"{list(change)}: {refused or 'continued'}")


def _evaluate(folder: Path, given: dict[str, Any]) -> None:
    options = {name: each for name, each in given.items() if name not in ("model", "data")}
    chosen = ["vg_abs", "vgx_sum"]
    fpa.evaluate(given["model"], given["data"], chosen, points=3, progress=False, folder=folder, **options)
