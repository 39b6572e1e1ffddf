"""FPA by dropping: in training, a vision transformer is not given some of its tokens."""

from torch import Tensor, nn

from fpa.errors import InputError
from fpa.masking import Drop
from fpa.models.tokens import logits_from, token_grid, tokens_of
from fpa.models.wrap import untouched
from fpa.seeds import Stream, derive
from fpa.training.settings import check_probability
from fpa.values import checked


class DropTokens:
    """Feature perturbation augmentation for a vision transformer that is evaluated with the masking drop.

    With probability `p` (one coin a mini-batch) tokens are left out: their share is one of seven, evenly up
    to `p1_max`, the same for all images of the batch; which tokens these are is drawn for every image. With
    the whole image there are eight numbers of tokens at most: batches are dense, and few shapes occur.

    Args:
        p: Probability that tokens of a mini-batch are left out.
        p1_max: Largest share of the tokens that is left out; one token stays in any case.

    >>> augment = DropTokens(p=1.0)
    >>> [augment.kept(64, level) for level in range(8)]
    [64, 56, 48, 40, 32, 24, 16, 8]

    """

    LEVELS = 7
    """Shares of tokens that are left out."""

    masking = Drop()

    @checked
    def __init__(self, p: float = 0.5, p1_max: float = 0.875) -> None:
        check_probability("p", p)
        check_probability("p1_max", p1_max)
        self.p = float(p)
        self.p1_max = float(p1_max)

    def level(self, seed: int, epoch: int, step: int) -> int:
        """Which of the shares a step leaves out; 0: none.

        It is known on the host, as the shapes of the step follow from it, and depends on nothing but the
        seed and the step: a training that is continued, and other processes, draw the same.
        """
        coin = derive(seed, Stream.AUGMENT, epoch, step, 0) / 2**63
        return 0 if coin >= self.p else 1 + derive(seed, Stream.AUGMENT, epoch, step, 1) % self.LEVELS

    def kept(self, count: int, level: int) -> int:
        """How many of `count` tokens are given."""
        return max(1, count - round(self.p1_max * level / self.LEVELS * count))

    def check_model(self, model: nn.Module, images: Tensor) -> None:
        """Refuse a model whose tokens cannot be left out."""
        weight = next(model.parameters())
        with untouched(model):
            grid = token_grid(model, images[:1].to(weight.device, weight.dtype))
        if self.kept(grid.count, self.LEVELS) == grid.count:
            few = f"p1_max {self.p1_max:g} of {grid.count} tokens is none of them"
            raise InputError(f"{few}: choose a larger one")


def chosen_tokens(uniform: Tensor, kept: int) -> Tensor:
    """Which tokens are given, [N, kept], from random numbers [N, T]: all choices are equally likely.

    >>> import torch
    >>> chosen_tokens(torch.tensor([[0.9, 0.1, 0.5]]), 2).tolist()
    [[1, 2]]
    """
    return uniform.argsort(1)[:, :kept].sort(1).values


class TokenNetwork(nn.Module):
    """A vision transformer that is given some of its tokens: a module, so that others may wrap it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, uniform: Tensor | None = None, kept: int = 0) -> Tensor:
        """The logits of images [N, C, H, W], given `kept` tokens each that the numbers [N, T] choose."""
        if uniform is None:
            logits: Tensor = self.model(images)
            return logits
        tokens = tokens_of(self.model, images)
        chosen = chosen_tokens(uniform, kept)[..., None].expand(-1, -1, tokens.shape[2])
        return logits_from(self.model, tokens.gather(1, chosen))
