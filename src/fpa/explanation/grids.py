"""Where in the image the outputs of a model's layers are, tokens of transformers included."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from fpa.errors import InputError
from fpa.explanation.hookable import HookableModel

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
    layers: tuple[tuple[nn.Module, bool], ...]
    """Layers whose output has places, in the order in which they end, and whether these matter."""

    @classmethod
    def of(cls, model: HookableModel, image: Tensor) -> "Grids":
        """For images like `image` [1, C, H, W], looked at once; its values do not matter."""
        if image.shape not in model.grids:
            model.grids[image.shape] = cls._found_in(model, image)
        return model.grids[image.shape]  # type: ignore[no-any-return]

    @classmethod
    def _found_in(cls, model: HookableModel, image: Tensor) -> "Grids":
        # Noise, and not the image: which layer is explained must not depend on which image comes first, and
        # on a blank one gradients vanish by chance.
        noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).to(image)
        modules: list[nn.Module] = []
        outputs: list[Tensor] = []

        def note(module: nn.Module, _: Any, output: Any) -> None:
            output = first_of(output)
            whole = isinstance(output, Tensor) and output.requires_grad and len(output) == 1
            # No linear layers: those that make keys and values would be the last of a transformer whose
            # places matter, in place of the normalisation in front of them.
            if whole and output.ndim in (3, 4) and not isinstance(module, nn.Linear):
                modules.append(module)
                outputs.append(output)

        with torch.inference_mode(False), torch.enable_grad(), register_module_forward_hook(note):
            best = model(noise.requires_grad_()).max()
        convolutions = [
            place
            for place, (module, output) in enumerate(zip(modules, outputs, strict=True))
            if isinstance(module, nn.Conv2d) and output.shape[2:].numel() > 1
        ]
        last = convolutions[-1] if convolutions else None
        bare = cls(
            sides=tuple(image.shape[2:]),
            convolution=None if last is None else modules[last],
            patches=None if last is None else tuple(outputs[last].shape[2:]),
            embeds=False,
            tokens=frozenset(output.shape[1] for output in outputs if output.ndim == 3),
            layers=(),
        )
        # A transformer's only convolution cuts the image into patches; tokens, or grids with their channels
        # last, come after it. ConvNeXt has its channels last between many convolutions: it is no transformer.
        after = set() if last is None else {bare.layout(output) for output in outputs[last + 1 :]}
        embeds = "tokens" in after or (len(convolutions) == 1 and "last" in after)
        # Places matter where the gradient of the largest logit reaches one: after the last attention only
        # that of the class token is left, and a map of the other tokens would be 0 everywhere.
        gradients = torch.autograd.grad(best, outputs, allow_unused=True) if outputs else ()
        layers = []
        for module, gradient in zip(modules, gradients, strict=True):
            grid = None if gradient is None else bare.on_grid(gradient)
            if grid is not None:
                layers.append((module, bool(grid.any())))
        return replace(bare, embeds=embeds, layers=tuple(layers))

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

    def layer(self, name: str, model: HookableModel, wanted: str | None) -> nn.Module:
        """The layer of this name, or the last whose places matter; refuses one that says nothing of them."""
        if wanted is None:
            found = next((module for module, matters in reversed(self.layers) if matters), None)
            if found is None:
                problem = "the model has no layer whose output has places"
                raise InputError(f"estimator {name}: {problem}; name one as in {name}@LAYER")
            return found
        module = model.layer(wanted)
        matters = [matters for each, matters in self.layers if each is module]
        if not matters:
            needed = "[N, channels, h, w], [N, h, w, channels] or [N, tokens, channels] is needed"
            raise InputError(f"estimator {name}: the output of layer {wanted} has no places: {needed}")
        if not matters[-1]:
            problem = f"the places of layer {wanted} do not reach the logits, as after the last attention"
            raise InputError(f"estimator {name}: {problem} to a class token: name an earlier layer, or none")
        return module

    def layout(self, output: Tensor) -> str | None:
        """How an output holds places: "first" (channels first), "last" or "tokens"; None if it has none."""
        if output.ndim == 3:
            return "tokens" if self._grid(output.shape[1]) else None
        _, first, second, third = output.shape
        if second == third and second in self.tokens:  # attention between tokens
            return None
        if self._like(second, third):
            return "first"
        return "last" if self._like(first, second) else None

    def on_grid(self, output: Tensor) -> Tensor | None:
        """An output as [N, channels, h, w]; None where it has no places."""
        layout = self.layout(output)
        if layout == "tokens":
            grid = self._grid(output.shape[1]) or ()
            # Tokens that stand for no place, such as the class token, are in front.
            return output[:, -math.prod(grid) :].transpose(1, 2).reshape(len(output), -1, *grid)
        if layout == "last":
            return output.permute(0, 3, 1, 2)
        return output if layout else None

    def _like(self, height: int, width: int) -> bool:
        """Whether sides are those of the image, reduced by the same factor up to one pixel."""
        within = height * width > 1 and height <= self.sides[0] and width <= self.sides[1]
        return within and abs(height * self.sides[1] - width * self.sides[0]) <= max(self.sides)

    def _grid(self, tokens: int) -> tuple[int, ...] | None:
        """The grid of a sequence of tokens, in front of which a few may stand for no place."""
        # The grid of the convolution that made the patches, if it fits. Else a square: later layers of a
        # transformer may have merged patches, and some models cut them without a convolution.
        grids = [] if self.patches is None else [self.patches]
        if self.sides[0] == self.sides[1]:
            counts = range(tokens, max(tokens - _MOST_EXTRA - 1, 0), -1)
            grids += [(math.isqrt(count),) * 2 for count in counts if math.isqrt(count) ** 2 == count]
        fitting = (grid for grid in grids if 0 <= tokens - math.prod(grid) <= _MOST_EXTRA)
        return next((grid for grid in fitting if math.prod(grid) > 1), None)


def first_of(output: Any) -> Any:
    """What a layer says: the first of several outputs, as of an attention with its weights."""
    return output[0] if isinstance(output, tuple) and output else output
