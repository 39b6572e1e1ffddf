"""What a map explains and a curve follows: functions of the logits."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from fpa.errors import InputError, unknown
from fpa.values import is_fpas

Values = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits [N, classes], the classes followed [N], the true ones [N]) -> values [N]."""


@dataclass(frozen=True)
class Output:
    """A function of the logits, and how its curves are averaged."""

    function: Values
    divided_by_start: bool = False
    """Whether an image's curve is divided by its value for the unmasked image before curves are averaged."""
    differentiable: bool = True
    """Whether maps can be of it."""
    uses_labels: bool = True
    """Whether its values may depend on the true classes."""

    def __call__(self, logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
        """The values [N]."""
        if is_fpas(self.function):
            return self.function(logits, targets, labels)
        # Copies: other outputs are made of the same logits, and a function of one's own may work in place.
        return self.function(logits.clone(), targets.clone(), labels.clone())


OUTPUTS: dict[str, Output] = {}
"""What can be explained and followed, by name; add yours with `output`."""


def output(
    *, divided_by_start: bool = False, differentiable: bool = True, uses_labels: bool = True
) -> Callable[[Values], Values]:
    """Make a function `(logits, targets, labels) -> values [N]` known as an output by its name."""

    def add(function: Values) -> Values:
        OUTPUTS[function.__name__] = Output(
            function,
            divided_by_start=divided_by_start,
            differentiable=differentiable,
            uses_labels=uses_labels,
        )
        return function

    return add


@output(divided_by_start=True, uses_labels=False)
def logit(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """The logit of the class."""
    return logits.gather(1, targets[:, None])[:, 0]


@output(divided_by_start=True, uses_labels=False)
def centred(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """The logit of the class minus the mean of all logits: the same whatever is added to all of them.

    >>> import torch
    >>> logits, first = torch.tensor([[4.0, 1.0, 1.0]]), torch.tensor([0])
    >>> centred(logits, first, first).item(), centred(logits + 20, first, first).item()
    (2.0, 2.0)
    """
    return logit(logits, targets, labels) - logits.mean(1)


@output(uses_labels=False)
def probability(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """The probability of the class."""
    return logit(logits.softmax(1), targets, labels)


@output(uses_labels=False)
def margin(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """How far the logit of the class is above the largest of the others."""
    return logit(logits, targets, labels) - _others(logits, targets).amax(1)


@output(uses_labels=False)
def log_odds(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    r"""$\log (p / (1 - p))$ with $p$ the probability of the class: the logit minus logsumexp of the others.

    >>> import torch
    >>> logits, first = torch.tensor([[0.6, 0.3, 0.1]]).log(), torch.tensor([0])
    >>> round(log_odds(logits, first, first).item(), 4), round(log_odds(logits + 20, first, first).item(), 4)
    (0.4055, 0.4055)
    """
    return logit(logits, targets, labels) - _others(logits, targets).logsumexp(1)


def _others(logits: Tensor, targets: Tensor) -> Tensor:
    """The logits, with that of the class out of the way."""
    # Minus infinity instead of a smaller tensor: neither a maximum nor a logsumexp sees it, nor a gradient.
    return logits.scatter(1, targets[:, None], float("-inf"))


@output(differentiable=False)
def accuracy(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """1 where the true class is the one predicted, else 0."""
    return (logits.argmax(1) == labels).to(logits.dtype)


def check_outputs(outputs: Iterable[str]) -> tuple[str, ...]:
    """The outputs, each once; or the error that names one that does not exist."""
    names = tuple(dict.fromkeys(outputs))
    for name in names:
        if name not in OUTPUTS:
            raise unknown("output", name, OUTPUTS)
    return names


def explained_output(maps_of: str | None, outputs: Iterable[str]) -> str:
    """The output that maps are of: the one named, else the first that is followed if it has a gradient.

    >>> explained_output(None, ["centred", "logit"]), explained_output(None, ["accuracy"])
    ('centred', 'logit')
    """
    (name,) = check_outputs([next(iter(outputs)) if maps_of is None else maps_of])
    if OUTPUTS[name].differentiable:
        return name
    if maps_of is not None:
        raise InputError(f"there are no maps of the output {name}: it has no gradient")
    return "logit"
