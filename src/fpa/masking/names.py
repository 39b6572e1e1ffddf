"""Maskings by name, as JSON, and what an evaluation asks of them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fpa.errors import InputError, unknown
from fpa.given import identity_as_given
from fpa.masking.drop import Drop
from fpa.masking.fills import Blur, Bokeh, Constant, Fill, Maximum, Mean, Minimum, Uniform, black
from fpa.masking.masking import Channels, FunctionMasking, Masking, MaskingLike, code_of, lent
from fpa.masking.road import Road
from fpa.plugins import load_object
from fpa.seeds import Stream, generator
from fpa.values import checked, fields_as_json, name_of

_KINDS = (Constant, black, Mean, Minimum, Maximum, Uniform, Blur, Bokeh, Road, Drop)
MASKINGS: dict[str, Callable[..., Masking]] = {make.__name__.lower(): make for make in _KINDS}
"""What makes a masking of its parameters, by name; add yours."""

ALIASES = {"zero": "constant", "noise": "uniform"}
"""Names people use for two of them."""


@checked
def get_masking(
    masking: MaskingLike | None = None, mean: Channels | None = None, std: Channels | None = None
) -> Masking:
    """A masking by name, by name and parameters, or the masking or function itself; without any, 0.

    Besides the names in `MASKINGS`, `module:Class` is a masking of your own; `black` needs the normalisation
    of the images.

    >>> get_masking("blur"), get_masking({"name": "blur", "sigma": 4})
    (Blur(sigma=None), Blur(sigma=4.0))
    >>> get_masking("zero") == get_masking("constant") == get_masking()
    True
    """
    if masking is None or isinstance(masking, Masking):
        return Constant() if masking is None else masking
    if callable(masking):
        return FunctionMasking(masking)
    parameters = {"name": masking} if isinstance(masking, str) else dict(masking)
    name = parameters.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f"a masking must have a name, got {masking}")
    name = ALIASES.get(name, name)
    if name == "black" and not parameters:
        if mean is None or std is None:
            raise InputError("masking 'black' needs the mean and std the images were normalised with")
        return black(mean, std)
    if name not in MASKINGS and ":" not in name:
        raise unknown("masking", name, [*MASKINGS, *ALIASES, "module:Class"])
    return _with_parameters(name, MASKINGS.get(name) or load_object(name, "masking"), parameters)


def _with_parameters(name: str, make: Any, parameters: Mapping[str, Any]) -> Masking:
    """A masking made of its parameters by `make`: a class, an entry of `MASKINGS`, or a masking function."""
    maker = isinstance(make, type) or make in MASKINGS.values()
    try:
        # A function of images and mask is the masking itself: its parameters come after these two.
        accepted = list(inspect.signature(make).parameters)[0 if maker else 2 :]
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a masking or a function of images and mask: {error}") from error
    taken = ", ".join(accepted)
    if not set(parameters) <= set(accepted):
        given = ", ".join(map(str, parameters))
        raise InputError(f"the masking {name} takes {taken or 'no parameters'}, got {given}")
    if not maker:
        return get_masking(partial(make, **parameters) if parameters else make)
    try:
        return get_masking(make(**parameters))
    except (TypeError, ValueError) as error:
        raise InputError(f"the masking {name} ({taken}): {error}") from error


def masking_json(masking: MaskingLike | None) -> dict[str, Any]:
    """The one JSON form of a masking; `get_masking` reads it again where its name says where it is.

    >>> masking_json("blur"), masking_json({"name": "blur", "sigma": 4})
    ({'name': 'blur', 'sigma': None}, {'name': 'blur', 'sigma': 4.0})
    """
    masking = get_masking(masking)
    if hasattr(masking, "described"):
        return dict(masking.described())
    name = next((name for name, kind in MASKINGS.items() if kind is type(masking)), name_of(masking))
    return {"name": name, **(fields_as_json(masking) if hasattr(masking, "__dataclass_fields__") else {})}


def masking_code(masking: Masking) -> dict[str, Any] | None:
    """The identity of the user's own code in a masking, see `fpa.identity`; None for a masking of fpa's.

    The settings that `masking_json` tells are left out.

    >>> masking_code(Blur()) is None
    True
    """
    found = identity_as_given(code_of(masking))
    if found is None:
        return None
    told = masking_json(masking)
    for group in ("arguments", "attributes"):
        others = {key: value for key, value in found.get(group, {}).items() if key not in told}
        found = {key: value for key, value in found.items() if key != group}
        if others:
            found[group] = others
    return found


def fully_masked(masking: MaskingLike, images: Tensor, noise: Tensor | None = None) -> Tensor:
    """The images with every pixel removed, [N, C, H, W]; 0 where a masking has no such images."""
    masking = get_masking(masking)
    if masking.most < 1 or masking.selects:
        return torch.zeros_like(images)
    # A fill is there already: no mask has to be made and applied.
    if isinstance(masking, Fill):
        return masking.fill(lent(masking, images), lent(masking, noise)).expand_as(images)
    everything = torch.ones_like(images[:, 0], dtype=torch.bool)
    masked = masking(lent(masking, images), everything, lent(masking, noise))
    # What it returns may be memory that it uses again at its next call.
    return lent(masking, masked)


def noise_by_image(masking: Masking, images: Tensor, seed: int, indices: Sequence[int]) -> Tensor | None:
    """The noise of `masking` for these images, each drawn from the seed and the index of its image.

    >>> noise_by_image(Constant(), torch.ones(1, 3, 2, 2), 0, [5]) is None
    True
    """
    rows = []
    # One draw for a whole batch would be faster, but an image's noise would depend on the images before it:
    # on the batch size, the order and the number of processes.
    for image, index in zip(torch.split(images, 1), indices, strict=True):
        noise = masking.noise(lent(masking, image), generator(images.device, seed, index, Stream.MASKING))
        if noise is None:
            return None
        rows.append(noise)
    return torch.cat(rows) if rows else None
