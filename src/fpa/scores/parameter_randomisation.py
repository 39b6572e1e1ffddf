"""Sanity checks: does the map change when what the model has learned is lost? (MPRT)"""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fpa.engine import Engine
from fpa.errors import MOST_SAMPLES, at_least
from fpa.scores.correlation import spearman
from fpa.scores.explaining import Explaining, noisy, spans
from fpa.scores.score import Block, register
from fpa.seeds import Stream, derive

# Kept with their engine: every block asks for the same models, and preparing one takes a while.
_RANDOMISED: WeakKeyDictionary[Engine, dict[tuple[int, float], Engine]] = WeakKeyDictionary()


def layers_in_use(model: nn.Module, images: Tensor) -> list[nn.Module]:
    """The layers with parameters of their own, in the order in which images [N, C, H, W] come to them.

    >>> head_first = nn.Module()
    >>> head_first.head, head_first.stem = nn.Linear(2, 2), nn.Conv2d(1, 2, 1)
    >>> head_first.forward = lambda images: head_first.head(head_first.stem(images).mean((2, 3)))
    >>> layers_in_use(head_first, torch.zeros(1, 1, 4, 4)) == [head_first.stem, head_first.head]
    True
    """
    came: dict[nn.Module, int] = {}

    def note(layer: nn.Module, _: Any) -> None:
        came.setdefault(layer, len(came))

    # Hooks before the layers: a block that has parameters besides its layers comes before these, as it does
    # in the order of registration.
    hooks = [layer.register_forward_pre_hook(note) for layer in model.modules()]
    try:
        with torch.no_grad():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    places: dict[nn.Module, int] = {}
    latest = 0
    for layer in model.modules():
        # Some are never called, as the last layer of PyTorch's attention, whose weights its block reads: they
        # come with what was registered before them.
        latest = came.get(layer, latest)
        places[layer] = latest
    own = [layer for layer in places if [*layer.parameters(recurse=False)]]
    return sorted(own, key=places.__getitem__)


def randomised(engine: Engine, images: Tensor, share: float = 1.0, seed: int = 0) -> Engine:
    """The model with the first `share` of its layers as if untrained, the layers nearest to the image first.

    These are the first that images [N, C, H, W] come to, in whatever order the model declares its layers.
    Layers are initialised as PyTorch does it; parameters that belong to no such layer are shuffled.
    """
    kept = _RANDOMISED.setdefault(engine, {})
    if (seed, share) not in kept:
        model = engine.copy().cpu()  # the same numbers on every device
        layers = layers_in_use(model, images[:1].cpu().to(engine.dtype))
        for place, layer in enumerate(layers[: round(share * len(layers))]):
            # A seed for each layer: the first layers are the same in every stage, so stages differ by what
            # is randomised in addition and not by another draw. `reset_parameters` takes no generator.
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.default_generator.manual_seed(derive(seed, Stream.RANDOMISED, place))
                if callable(reset := getattr(layer, "reset_parameters", None)):
                    reset()
                    continue
                for parameter in layer.parameters(recurse=False):
                    order = torch.randperm(parameter.numel(), generator=torch.default_generator)
                    parameter.copy_(parameter.flatten()[order].view_as(parameter))
        kept[seed, share] = Engine(model.to(engine.device), precision=engine.precision)
    return kept[seed, share]


def entropy(maps: Tensor, bins: int = 100) -> Tensor:
    """The entropy of the histogram of each map [N, H, W] between its smallest and its largest value, [N].

    >>> import torch
    >>> entropy(torch.tensor([[[0.0, 1.0, 0.0, 1.0]]])).round(decimals=3).tolist()
    [0.693]
    """
    values = maps.flatten(1).double()
    low = values.amin(1, keepdim=True)
    high = values.amax(1, keepdim=True)
    scaled = (values - low) / (high - low).where(high > low, 1.0)
    place = (scaled * bins).nan_to_num(0).long().clamp(max=bins - 1)
    counts = values.new_zeros(len(values), bins).scatter_add_(1, place, torch.ones_like(values))
    share = counts / values.shape[1]
    return -torch.xlogy(share, share).sum(1)


class SmoothMprt(Explaining):
    r"""Mean over stages of Spearman's correlation of the map before and after layers are randomised.

    The layers are randomised in four stages, from the image upwards until all are. Before maps are compared,
    each is averaged over noisy copies of the image (normal, `sigma` times the image's range): shattered
    gradients would make any two maps differ. A stage at which a map is constant has no correlation: the mean
    is over the others, and an image without any has no value.
    """

    name = "mprt_smooth"
    title = "mean rank correlation of the smoothed map with those of models with randomised layers"
    source = "Adebayo et al. 2018; Hedström et al. 2024 (sMPRT)"
    higher_is_better = False
    other_model = True

    def __init__(self, stages: int = 4, samples: int = 10, sigma: float = 0.1) -> None:
        at_least("stages", stages, 1, MOST_SAMPLES)
        at_least("samples", samples, 1, MOST_SAMPLES)
        self.stages = stages
        self.samples = samples
        self.sigma = sigma

    @property
    def explanations(self) -> int:
        """Every copy by the model itself, and at every stage."""
        return self.samples * (1 + self.stages)

    def values(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        engine = (block.explained or block.task).engine
        images = block.task.images
        copies = noisy(block, self.samples, "normal") * (self.sigma * spans(images)) + images

        def smoothed(model: Engine) -> dict[str, Tensor]:
            # Sums instead of means: ranks, which alone are compared, are the same.
            maps = [block.explain(copy, model) for copy in copies]
            return {name: sum(each[name] for each in maps) for name in block.maps}  # type: ignore[misc]

        first = smoothed(engine)
        stages: dict[str, list[Tensor]] = {name: [] for name in block.maps}
        for stage in range(1, self.stages + 1):
            others = smoothed(randomised(engine, images, stage / self.stages, block.task.seed))
            for name, maps in others.items():
                stages[name].append(spearman(first[name].flatten(1), maps.flatten(1)))
        # Without a value at one stage an image still has the others. Leaving it out would leave out those
        # whose map changed most: it has become zero.
        return {name: torch.stack(each).nanmean(0) for name, each in stages.items()}


class EfficientMprt(Explaining):
    r"""$(H(a_r) - H(a)) / H(a)$, with the `entropy` $H$ of the map $a$, and $a_r$ that of a randomised model.

    A map of a model that has learned something is simpler than one of a model that has not. No two maps are
    compared pixel by pixel.
    """

    name = "mprt_efficient"
    title = "relative rise of the entropy of the map when all layers are randomised"
    source = "Hedström et al. 2024 (eMPRT)"
    higher_is_better = True
    other_model = True
    explanations = 1

    def values(self, block: Block) -> Mapping[str, Tensor]:  # noqa: D102
        engine = (block.explained or block.task).engine
        other = block.explain(model=randomised(engine, block.task.images, seed=block.task.seed))
        before = {name: entropy(maps) for name, maps in block.maps.items()}
        return {
            name: (entropy(maps) - before[name]) / before[name].where(before[name] > 0, torch.nan)
            for name, maps in other.items()
        }


register(SmoothMprt())
register(EfficientMprt())
