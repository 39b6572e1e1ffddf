"""What is followed along a curve."""

from collections.abc import Callable, Sequence

from torch import Tensor

from fpa.errors import unknown


def _probability(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    return logits.softmax(1).gather(1, targets[:, None])[:, 0]


def _margin(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    rivals = logits.scatter(1, targets[:, None], float("-inf")).amax(1)
    return _logit(logits, targets, labels) - rivals


def _accuracy(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(1) == labels).to(logits.dtype)


def _logit(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    return logits.gather(1, targets[:, None])[:, 0]


OUTPUTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "logit": _logit,
    "probability": _probability,
    "margin": _margin,
    "accuracy": _accuracy,
}


def check_outputs(outputs: Sequence[str]) -> None:
    """Refuse an output that does not exist."""
    for name in outputs:
        if name not in OUTPUTS:
            raise unknown("output", name, OUTPUTS)
