"""What is set on objects, as far as it determines what they do."""

import functools
import sys
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from fpa.sources import attributes_set, owner_of_class


def is_array(value: Any) -> bool:
    """Whether it is an array or a tensor, or a single number of one."""
    kind = type(value)
    numbers = hasattr(kind, "tobytes") or hasattr(kind, "detach")
    return numbers and all(hasattr(kind, name) for name in ("dtype", "shape", "tolist"))


def is_network(value: Any) -> bool:
    """Whether it is a `torch.nn.Module`; there are none where torch is not loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def size_of(value: Any) -> int:
    """The parts of a network; 0 for anything else."""
    return sum(1 for _ in value.modules()) if is_network(value) else 0


def state_of(value: Any) -> dict[str, Any]:
    """What an object is made of, as it would be copied; where it cannot be, what is set on it.

    >>> state_of(types.SimpleNamespace(side=3))
    {'side': 3}
    """
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # locks, files, and whatever refuses it in a way of its own
        reduced = (None, (), getattr(value, "__dict__", None))
    if isinstance(reduced, str):  # it is to be found by this name
        return {"name": reduced}
    state = {str(place): each for place, each in enumerate(reduced[1]) if each is not type(value)}
    held = reduced[2] if len(reduced) > 2 else None
    for part in held if isinstance(held, tuple) else (held,):  # with slots: a pair
        if part is not None:
            state |= part if isinstance(part, dict) else {"state": part}
    # what subclasses of lists and dictionaries hold
    state |= {
        f"items {place}": [*each] for place, each in enumerate(reduced[3:]) if isinstance(each, Iterator)
    }
    left_out = {entry.name for entry in fields(value) if not entry.compare} if is_dataclass(value) else set()
    for kind in type(value).__mro__:
        cached = (name for name, each in vars(kind).items() if isinstance(each, functools.cached_property))
        left_out.update(cached)
    return {name: each for name, each in state.items() if name not in left_out}


def own_attributes(network: Any) -> dict[str, Any]:
    """What is set on a network of the user's own, but for its state and what passes leave behind.

    Tensors that are no parameters may be activations, kept by some method, or constants set at the beginning.
    What packages in between keep for themselves (a trainer, a device) does not count.
    """
    left_out: set[str] = set()
    activations: set[str] = set()
    for kind in type(network).__mro__:
        owner = owner_of_class(kind)
        for method, names in attributes_set(kind).items() if owner != "ground" else ():
            if owner == "installed":
                left_out |= {name for name in names if name.startswith("_")}
            elif method == "forward":
                left_out |= names
            elif method != "__init__":
                activations |= names
    found = {f"buffer {name}": network._buffers[name] for name in network._non_persistent_buffers_set}
    for name, each in vars(network).items():
        if name not in left_out and not (name in activations and is_array(each)):
            found[name] = each
    return found


def replaced_methods(network: Any) -> dict[str, Any]:
    """The functions that were set on a network in place of its methods."""
    kinds = (types.FunctionType, types.MethodType, functools.partial)
    return {name: each for name, each in vars(network).items() if isinstance(each, kinds)}
