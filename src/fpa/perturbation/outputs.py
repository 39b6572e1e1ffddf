"""What is followed along a curve: functions of the logits."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from fpa.errors import unknown

Values = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits [N, classes], the classes followed [N], the true ones [N]) -> values [N]."""


@dataclass(frozen=True)
class Output:
    """A function of the logits, and how its curves are averaged."""

    function: Values
    divided_by_start: bool = False
    """Whether an image's curve is divided by its value for the unmasked image before curves are averaged."""

    def __call__(self, logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
        """The values [N]."""
        return self.function(logits, targets, labels)


OUTPUTS: dict[str, Output] = {}
"""What can be followed, by name; add yours with `output`."""


def output(*, divided_by_start: bool = False) -> Callable[[Values], Values]:
    """Make a function `(logits, targets, labels) -> values [N]` known as an output by its name."""

    def add(function: Values) -> Values:
        OUTPUTS[function.__name__] = Output(function, divided_by_start)
        return function

    return add


@output(divided_by_start=True)
def logit(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """The logit of the class."""
    return logits.gather(1, targets[:, None])[:, 0]


@output()
def probability(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """The probability of the class."""
    return logit(logits.softmax(1), targets, labels)


@output()
def margin(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """How far the logit of the class is above the largest of the others."""
    return logit(logits, targets, labels) - logits.scatter(1, targets[:, None], float("-inf")).amax(1)


@output()
def accuracy(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """1 where the true class is the one predicted, else 0."""
    return (logits.argmax(1) == labels).to(logits.dtype)


def check_outputs(outputs: Iterable[str]) -> tuple[str, ...]:
    """The outputs, each once; or the error that names one that does not exist."""
    for name in outputs:
        if name not in OUTPUTS:
            raise unknown("output", name, OUTPUTS)
    return tuple(dict.fromkeys(outputs))
