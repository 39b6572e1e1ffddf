"""What worlds share in drawing scenes: random numbers by name, and places that keep apart."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fpa.seeds import uniform_by_index


def uniform_by_name(
    seed: int, numbers: Sequence[int], shapes: Mapping[str, tuple[int, ...]], device: torch.device | str
) -> dict[str, Tensor]:
    """Uniform numbers in 0..1 for scenes of these numbers, [N, *shape] for each of the named shapes.

    >>> drawn = uniform_by_name(0, [3, 8], {"place": (2,), "size": ()}, "cpu")
    >>> drawn["place"].shape, drawn["size"].shape
    (torch.Size([2, 2]), torch.Size([2]))
    """
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    uniform = uniform_by_index(seed, numbers, sum(sizes)).to(device)
    parts = zip(shapes, torch.split(uniform, sizes, dim=1), strict=True)
    return {name: part.reshape(-1, *shapes[name]) for name, part in parts}


def between(limits: tuple[float, float], uniform: Tensor) -> Tensor:
    """Uniform numbers in 0..1, stretched to lie between the limits."""
    return limits[0] + (limits[1] - limits[0]) * uniform


def keep_apart(candidates: Tensor, side: float, room: Callable[[int, int, Tensor], Tensor]) -> Tensor:
    """Places [N, K, 2] for K things, each the first of its candidates [N, K, tries, 2] that has room.

    `room(thing, other, gaps)`, for gaps [N, tries, 2] between the two, is negative where they overlap,
    [N, tries]. Where all candidates of a thing overlap, it gets the one with the most room. Candidates lie in
    a square of this side.
    """
    places: list[Tensor] = []
    for thing in range(candidates.shape[1]):
        tried = candidates[:, thing]
        least = tried.new_full(tried.shape[:2], torch.inf)
        for other, place in enumerate(places):
            # Opposite borders count as neighbours: then no place is likelier than another. Measured straight,
            # things would crowd at the border, where there is nothing on the other side to keep away from.
            straight = (tried - place[:, None]).abs()
            gaps = torch.minimum(straight, side - straight)
            least = torch.minimum(least, room(thing, other, gaps))
        fits = least >= 0
        best = torch.where(fits.any(1), fits.int().argmax(1), least.argmax(1))
        places.append(tried[torch.arange(len(best), device=best.device), best])
    return torch.stack(places, 1)
