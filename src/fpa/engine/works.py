"""What the engine is given to run: rows that are built when their turn comes."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fpa.engine.outputs import OUTPUTS, Output


@dataclass(frozen=True)
class Work:
    """`count` rows, of which any stretch `start:stop` can be built when its turn comes."""

    count: int
    rows: Callable[[int, int], Tensor]
    """(start, stop) -> the rows, on the device of the engine: images [stop - start, C, H, W], or what is
    left of their tokens [stop - start, kept, D] (forward passes only); all works run together
    have rows of one shape."""
    take: Callable[[int, int, Tensor], None]
    """(start, stop, result): gets the gradients [stop - start, C, H, W] or logits [stop - start, classes]."""
    targets: Callable[[int, int], Tensor] | None = None
    """(start, stop) -> the class [stop - start] whose `output` is differentiated; gradients only."""
    name: Callable[[int], str] = lambda start: ""
    """(start) -> what the rows from there on are for, in words, for the progress display."""
    output: Output = OUTPUTS["logit"]
    """What is differentiated; the same for all works that are run together."""
