"""Where in the image the outputs of a model's layers are, tokens of transformers included."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from fpa.errors import InputError
from fpa.explanation.fitted import FittedModel

_MOST_EXTRA = 8  # tokens that stand for no place: the class token, registers


@dataclass(frozen=True, eq=False)
class Grids:
    """Where the outputs of a model's layers are in the image, from one pass of noise."""

    sides: tuple[int, ...]
    """Height and width of the images."""
    convolution: nn.Module | None
    """The last to run whose output is more than one pixel (squeeze-and-excitation ends in one)."""
    patches: tuple[int, ...] | None
    """The sides of its output, in a transformer the grid of its patches."""
    embeds: bool
    """Whether it only cuts the image into patches, which other layers work on."""
    tokens: frozenset[int]
    """The lengths of the sequences of tokens."""
    seen: tuple[tuple[nn.Module, bool], ...]
    """Layers whose output has places, in the order in which they end, and whether these matter."""

    @classmethod
    def of(cls, model: FittedModel, image: Tensor) -> "Grids":
        """For images like `image` [1, C, H, W], looked at once; its values do not matter."""
        if image.shape not in model.grids:
            model.grids[image.shape] = cls._seen_in(model, image)
        return model.grids[image.shape]  # type: ignore[no-any-return]

    @classmethod
    def _seen_in(cls, model: FittedModel, image: Tensor) -> "Grids":
        noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).to(image)
        ended: list[tuple[nn.Module, Tensor]] = []

        def note(module: nn.Module, _: Any, output: Any) -> None:
            output = first_of(output)
            whole = isinstance(output, Tensor) and output.requires_grad and len(output) == 1
            if whole and output.ndim in (3, 4) and not isinstance(module, nn.Linear):
                ended.append((module, output))

        with torch.inference_mode(False), torch.enable_grad(), register_module_forward_hook(note):
            best = model(noise.requires_grad_()).max()
        convolutions = [
            place
            for place, (module, output) in enumerate(ended)
            if isinstance(module, nn.Conv2d) and output.shape[2:].numel() > 1
        ]
        last = convolutions[-1] if convolutions else -1
        patches = tuple(ended[last][1].shape[2:]) if convolutions else None
        module = ended[last][0] if convolutions else None
        tokens = frozenset(output.shape[1] for _, output in ended if output.ndim == 3)
        bare = cls(tuple(image.shape[2:]), module, patches, embeds=False, tokens=tokens, seen=())
        forms = [bare.form(output) for _, output in ended]
        cut = {"tokens", "last"} if len(convolutions) == 1 else {"tokens"}
        embeds = bool(convolutions) and bool(cut & {form for form in forms[last + 1 :] if form})
        outputs = [output for _, output in ended]
        gradients = torch.autograd.grad(best, outputs, allow_unused=True) if outputs else ()
        seen = []
        for (module, _), gradient in zip(ended, gradients, strict=True):
            grid = None if gradient is None else bare.placed(gradient)
            if grid is not None:
                seen.append((module, bool(grid.any())))
        return replace(bare, embeds=embeds, seen=tuple(seen))

    def last_convolution(self, name: str) -> nn.Module:
        """The last convolution, for estimator `name`; refuses one that only cuts the image into patches."""
        if self.convolution is None:
            problem = "the model has no convolution whose output is larger than one pixel"
            raise InputError(f"estimator {name}: {problem}; name a layer as in {name}@LAYER")
        if self.embeds:
            problem = "the only convolution of this model cuts the image into patches, before any other layer"
            instead = "cam:gradcam finds the layer of a transformer and puts its tokens back on their grid"
            raise InputError(f"estimator {name}: {problem}: {instead}; or name a layer as in {name}@LAYER")
        return self.convolution

    def layer(self, name: str, model: FittedModel, wanted: str | None) -> nn.Module:
        """The layer of this name, or the last whose places matter; refuses one that says nothing of them."""
        if wanted is None:
            found = next((module for module, matters in reversed(self.seen) if matters), None)
            if found is None:
                problem = "the model has no layer whose output has places"
                raise InputError(f"estimator {name}: {problem}; name one as in {name}@LAYER")
            return found
        module = model.layer(wanted)
        matters = [matters for each, matters in self.seen if each is module]
        if not matters:
            needed = "[N, channels, h, w], [N, h, w, channels] or [N, tokens, channels] is needed"
            raise InputError(f"estimator {name}: the output of layer {wanted} has no places: {needed}")
        if not matters[-1]:
            problem = f"the places of layer {wanted} do not reach the logits, as after the last attention"
            raise InputError(f"estimator {name}: {problem} to a class token: name an earlier layer, or none")
        return module

    def form(self, output: Tensor) -> str | None:
        """How an output holds places: "first" (channels first), "last" or "tokens"; None if it has none."""
        if output.ndim == 3:
            return "tokens" if self._grid(output.shape[1]) else None
        _, first, second, third = output.shape
        if second == third and second in self.tokens:  # attention between tokens
            return None
        return "first" if self._like(second, third) else "last" if self._like(first, second) else None

    def placed(self, output: Tensor) -> Tensor | None:
        """An output as [N, channels, h, w]; None where it has no places."""
        form = self.form(output)
        if form == "tokens":
            grid = self._grid(output.shape[1]) or ()
            return output[:, -math.prod(grid) :].transpose(1, 2).reshape(len(output), -1, *grid)
        return output.permute(0, 3, 1, 2) if form == "last" else output if form else None

    def _like(self, height: int, width: int) -> bool:
        """Whether sides are those of the image, reduced by the same factor up to one pixel."""
        within = height * width > 1 and height <= self.sides[0] and width <= self.sides[1]
        return within and abs(height * self.sides[1] - width * self.sides[0]) <= max(self.sides)

    def _grid(self, tokens: int) -> tuple[int, ...] | None:
        """The grid of a sequence of tokens, in front of which a few may stand for no place."""
        grids = [] if self.patches is None else [self.patches]
        if self.sides[0] == self.sides[1]:
            counts = range(tokens, max(tokens - _MOST_EXTRA - 1, 0), -1)
            grids += [(math.isqrt(count),) * 2 for count in counts if math.isqrt(count) ** 2 == count]
        fitting = (grid for grid in grids if 0 <= tokens - math.prod(grid) <= _MOST_EXTRA)
        return next((grid for grid in fitting if math.prod(grid) > 1), None)


def first_of(output: Any) -> Any:
    """What a layer says: the first of several outputs, as of an attention with its weights."""
    return output[0] if isinstance(output, tuple) and output else output
