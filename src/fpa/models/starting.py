"""New models that start from trained weights: all but the layer that gives the classes."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from fpa.models.saved import check_same_tensors, open_model


def starting_weights(architecture: str, weights: Path | str) -> dict[str, Tensor]:
    """The weights of a file, or the published ones that a word such as DEFAULT names, by name.

    They are refused unless they are of this architecture; how many classes they have does not matter.
    """
    state: dict[str, Tensor] = open_model(architecture, weights).model.state_dict()
    return state


def start_from(model: nn.Module, weights: Mapping[str, Tensor], architecture: str) -> None:
    """Give a new model these weights; its layer of the classes stays new where theirs are not as many.

    >>> new = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> trained = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 10))
    >>> start_from(new, trained.state_dict(), "two layers")
    >>> new[0].weight.equal(trained[0].weight), new[1].weight.shape
    (True, torch.Size([2, 3]))
    """
    own = model.state_dict()
    head = {
        name: value
        for name, value in own.items()
        if name in weights
        and value.shape != weights[name].shape
        and value.shape[1:] == weights[name].shape[1:]
    }
    start = {**weights, **head}
    check_same_tensors("the file of weights to start from", architecture, own, start)
    model.load_state_dict(start)
