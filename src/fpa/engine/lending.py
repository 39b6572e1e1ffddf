"""What is lent to a user's own code: what others use stays as it is, or the code is refused by name.

Tensors that are small beside a pass are copied where they are lent. Copies of weights, and of what scores
share, would cost too much: PyTorch's count of changes in place shows whether they were changed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fpa.engine.engine import Engine
from fpa.errors import InputError
from fpa.models.wrap import untouched


def changes(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None for an inference tensor, which does not count it."""
    return None if tensor.is_inference() else tensor._version


@contextmanager
def model_lent(engine: Engine, name: str) -> Iterator[nn.Module]:
    """The model of an engine for `name`, the user's own; refused if its weights are others afterwards."""
    before = _weights(engine.model)
    counts = {key: changes(value) for key, value in before.items()}
    try:
        with untouched(engine.model):
            yield engine.model
    except BaseException:  # whatever ends it: the caller may go on with the model
        _put_back(engine, before, counts)
        raise
    changed = _put_back(engine, before, counts)
    if changed:
        problem = f"{name} changes the model ({changed[0]}), which others explain after it"
        raise InputError(f"{problem}: let it work on copy.deepcopy(model), or put the weights back")


def _put_back(engine: Engine, before: Mapping[str, Tensor], counts: Mapping[str, int | None]) -> list[str]:
    """Give weights that were changed since their former values, as far as known; returns their names."""
    now = _weights(engine.model)
    counted = [key for key, value in now.items() if before.get(key) is value and changes(value) is not None]
    doubtful = now.keys() - {key for key in counted if counts[key] == changes(now[key])}
    kept = engine.weights_when_made
    # Whoever changes weights for a while and puts them back is welcome.
    changed = sorted(key for key in doubtful if key not in kept or not torch.equal(now[key], kept[key]))
    with torch.no_grad():
        for key in kept.keys() & changed:
            now[key].data.copy_(kept[key])
    return changed


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers themselves: a state dict would hold new tensors that share their memory."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


@contextmanager
def shared_results_kept(shared: Mapping[Any, Any], name: str) -> Iterator[None]:
    """Refuse `name`, the user's own, if it changes tensors in these results of others in place."""
    tensors = [each for each in tree_leaves(dict(shared)) if isinstance(each, Tensor)]
    counts = [changes(tensor) for tensor in tensors]
    yield
    if counts != [changes(tensor) for tensor in tensors]:
        raise InputError(f"{name} changes in place what other scores read: let it work on a copy (.clone())")
