"""How far a fine-tuned model, the twin, has moved from the original: on images without masks."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn

from fpa.engine.devices import arithmetic_on
from fpa.errors import InputError
from fpa.models.wrap import classifier, untouched
from fpa.notes import Kind, Note, Plain, Severity
from fpa.showing import clause
from fpa.values import besides, check_types, checked

LOW = 2 / 3
"""A twin that classifies fewer images as the original does has forgotten too much to speak for it."""

COMPARED = 200
"""Images on which a twin is compared with the original after fine-tuning."""

_TOGETHER = 25
"""Images in a pass: few, as gradients may need much memory."""


@dataclass(frozen=True)
class TwinDistance:
    """How far a twin is from its original on images without masks; 1 everywhere where nothing has moved.

    Attributes:
        images: Number of images.
        agreement: Share of the images that the twin classifies as the original does.
        logits: Correlation of the logits over all images and classes, those of an image less their mean.
        maps: Mean over images of the rank correlation of their maps: gradient times input, summed over the
            channels, for the class that the original predicts. None: a gradient is missing or 0.
        learned_from: Whether the twin was trained on these images.

    """

    images: int
    agreement: float
    logits: float | None
    maps: float | None
    learned_from: bool = False

    def __post_init__(self) -> None:
        """Refuse values that are not of their kind, as those of a forged file may be."""
        check_types(self)

    @property
    def is_low(self) -> bool:
        """Whether the twin classifies too many images otherwise to speak for the original."""
        return self.agreement < LOW

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @property
    def notes(self) -> list[Note]:
        """What there is to say of it: the numbers, and a warning where they are low."""
        values: dict[str, Plain] = asdict(self)
        found = [Note(Kind.TWIN_MOVED, values=values)]
        if self.is_low:
            few = {"agreement": self.agreement, "images": self.images}
            found.append(Note(Kind.TWIN_FORGOT, Severity.WARNING, few))
        return found

    def __str__(self) -> str:
        return clause(self.notes[0])


def read_distance(stored: Mapping[str, Any]) -> TwinDistance:
    """The distance that a card holds."""
    if others := besides(stored, TwinDistance):
        raise InputError(f"the distance of a card has no field {', '.join(others)}")
    if missing := [item.name for item in fields(TwinDistance) if item.name not in stored]:
        raise InputError(f"the distance of a card has no {', '.join(missing)}")
    return TwinDistance(
        images=stored["images"],
        agreement=stored["agreement"],
        logits=stored["logits"],
        maps=stored["maps"],
        learned_from=stored["learned_from"],
    )


@checked
@torch.inference_mode(False)
def twin_distance(
    original: nn.Module, twin: nn.Module, images: Tensor, *, learned_from: bool = False
) -> TwinDistance:
    """How far a model has moved from another one of the same classes, on normalised images [N, C, H, W].

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    >>> images = torch.randn(10, 3, 8, 8)
    >>> twin_distance(model, model, images)
    TwinDistance(images=10, agreement=1.0, logits=1.0, maps=1.0, learned_from=False)
    """
    device = next(iter(twin.parameters())).device
    first = images[:1].to(device)
    before = classifier(_on(original, device), first)
    return network_distance(before, classifier(twin, first), images, learned_from=learned_from)


def network_distance(
    before: nn.Module, after: nn.Module, images: Tensor, *, learned_from: bool = False
) -> TwinDistance:
    """As `twin_distance`, of networks that are known to return logits: they are not tried."""
    images = images.detach()
    device = next(iter(after.parameters())).device
    before = _on(before, device)
    old = _logits(before, images, device)
    new = _logits(after, images, device)
    classes = old.argmax(1)
    return TwinDistance(
        images=len(images),
        agreement=float((new.argmax(1) == classes).double().mean()),
        logits=_correlation(old, new),
        maps=_map_similarity(_maps(before, images, classes, device), _maps(after, images, classes, device)),
        learned_from=learned_from,
    )


def _on(model: nn.Module, device: torch.device) -> nn.Module:
    """The model itself, or a copy on the device."""
    if all(parameter.device == device for parameter in model.parameters()):
        return model
    return copy.deepcopy(model).to(device)


@torch.no_grad()
def _logits(network: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    """Logits [N, K] in float64, on the host."""
    with untouched(network), arithmetic_on(device, tf32=False):
        parts = [network(part.to(device)) for part in torch.split(images, _TOGETHER)]
    return torch.cat(parts).double().cpu()


def _maps(network: nn.Module, images: Tensor, classes: Tensor, device: torch.device) -> Tensor | None:
    """Gradient times input, [N, H W] on the host; None where the network has no gradient."""
    parts: list[Tensor] = []
    with untouched(network, freeze=True), arithmetic_on(device, tf32=False), torch.enable_grad():
        for part, wanted in zip(torch.split(images, _TOGETHER), torch.split(classes, _TOGETHER), strict=True):
            rows = part.to(device, copy=True).requires_grad_()
            try:
                chosen = network(rows).gather(1, wanted.to(device)[:, None]).sum()
                (gradient,) = torch.autograd.grad(chosen, rows)
            except RuntimeError:  # it is detached, an operation has no derivative, or memory is short
                return None
            parts.append((gradient * rows.detach()).sum(1).flatten(1).cpu())
    return torch.cat(parts)


def _correlation(old: Tensor, new: Tensor) -> float | None:
    """Pearson's correlation over images and classes, without what an image adds to all of its logits."""
    first = old - old.mean(1, keepdim=True)
    second = new - new.mean(1, keepdim=True)
    size = float(first.norm() * second.norm())
    # Rounding must not make it more than 1, nor less for a model that has not moved.
    return round(float((first * second).sum()) / size, 9) if size > 0 and np.isfinite(size) else None


def _map_similarity(old: Tensor | None, new: Tensor | None) -> float | None:
    """The mean over images of Spearman's correlation of their maps [N, H W]; None where none can be told."""
    if old is None or new is None:
        return None
    similar = _rank_correlations(old.double().numpy(), new.double().numpy())
    known = similar[np.isfinite(similar)]
    return round(float(known.mean()), 9) if len(known) else None


def _rank_correlations(old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spearman's correlation of each row [N]; not a number where a row is constant or not finite."""
    first, second = (rankdata(maps, axis=1) for maps in (old, new))
    first = first - first.mean(1, keepdims=True)
    second = second - second.mean(1, keepdims=True)
    sizes = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    finite = np.isfinite(old).all(1) & np.isfinite(new).all(1) & (sizes > 0)
    correlations: NDArray[np.float64] = np.where(
        finite, (first * second).sum(1) / np.where(sizes > 0, sizes, 1.0), np.nan
    )
    return correlations
