"""Feature perturbation augmentation (FPA), the rectangle baseline and single cells, as batch transforms.

All draw random numbers in one place (`draw`) and turn them into a mask in another (`mask_of`), a pure
function: the same draws always give the same mask. Removing the pixels is `masking.py`'s job.
None reads a value back from the device, so all can be captured in a CUDA graph, the coin included.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fpa.errors import InputError, at_least
from fpa.masking import MaskingLike
from fpa.training.settings import check_rising
from fpa.training.transform import BatchMasking, Draws, Shape, probability
from fpa.values import checked


class FPA(BatchMasking):
    r"""Feature perturbation augmentation: mask random pixels and squares of a mini-batch.

    With probability `p` (one coin a mini-batch) the batch is perturbed: p1 is drawn once from
    U(0, `p1_max`), every pixel of every image is selected independently with probability p1 and masked;
    from a selected pixel, with probability `p2`, a square grows down and to the right, its side uniform in
    1..`s_max`, clipped at the border. `squares="everywhere"` is the paper's Algorithm 1 as printed:
    every pixel, selected or not, may start a square.

    Called on a single image [C, H, W] it treats it as a batch of one: p and p1 are then drawn per image.

    Args:
        p: Probability that a mini-batch is perturbed.
        p1_max: Upper end of the uniform distribution of p1, the share of selected pixels.
        p2: Probability that a selected pixel starts a square.
        s_max: Largest side of a square, in pixels; smaller than the image.
        squares: Which pixels may start a square, the "selected" ones or all of them ("everywhere").
        masking: What removing a pixel means, `masking(images, mask) -> images`; default 0.
        generator: Source of randomness, on any device; default PyTorch's global one.

    >>> augment = FPA(p=1.0, p1_max=0.25, p2=0.1, s_max=3, generator=torch.Generator().manual_seed(0))
    >>> images, labels = augment(torch.ones(8, 3, 32, 32), torch.arange(8))
    >>> images.shape, labels.tolist()
    (torch.Size([8, 3, 32, 32]), [0, 1, 2, 3, 4, 5, 6, 7])
    >>> images.unique().tolist()
    [0.0, 1.0]

    """

    @checked
    def __init__(
        self,
        p: float = 0.5,
        p1_max: float = 0.25,
        p2: float = 0.1,
        s_max: int = 3,
        squares: Literal["selected", "everywhere"] = "selected",
        masking: MaskingLike | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(p, masking, generator)
        self.p1_max = probability("p1_max", p1_max)
        self.p2 = probability("p2", p2)
        at_least("s_max", s_max, 1)
        self.s_max = s_max
        self.squares = squares

    def check(self, images: Tensor) -> None:  # noqa: D102
        super().check(images)
        height, width = images.shape[2:]
        if self.s_max > (most := min(height, width) - 1):  # the largest square would cover the image
            raise InputError(f"s_max must be in 1..{most} for images of {height}x{width}, got {self.s_max}")

    def _draws(self, shape: Shape, uniform: Callable[..., Tensor]) -> Draws:
        coin, p1 = uniform(2)
        return {"perturbed": coin < self.p, "p1": p1 * self.p1_max, "uniform": uniform(*shape)}

    def mask_of(self, draws: Draws, shape: Shape) -> Tensor:  # noqa: D102
        p1 = draws["p1"]
        perturbed = draws["perturbed"]
        if perturbed.device.type == "cpu" and not torch.compiler.is_compiling() and not perturbed:
            return torch.zeros(shape, dtype=torch.bool)
        masked = p1
        square = p1 * self.p2
        if self.squares == "everywhere":
            masked = self.p2 + (1 - self.p2) * p1
            square = torch.full_like(p1, self.p2)
        # A coin that says no makes both thresholds 0, and no uniform number is below 0.
        return perturbation_mask(draws["uniform"], masked * perturbed, square * perturbed, self.s_max)


def perturbation_mask(uniform: Tensor, masked_below: Tensor, square_below: Tensor, s_max: int) -> Tensor:
    """The mask [N, H, W] of FPA from one uniform number a pixel.

    A pixel is masked if its u < `masked_below`; it starts a square if u < q = `square_below`, of side
    min(s_max, 1 + floor(s_max u / q)): given u < q, u / q is uniform again.

    >>> u = torch.tensor([[[0.9, 0.9, 0.9], [0.9, 0.04, 0.9], [0.3, 0.9, 0.9]]])
    >>> perturbation_mask(u, torch.tensor(0.5), torch.tensor(0.05), s_max=2).int().tolist()
    [[[0, 0, 0], [0, 1, 1], [1, 1, 1]]]
    """
    selected = uniform < masked_below
    if s_max == 1:
        return selected | (uniform < square_below)
    if uniform.device.type == "cpu" and not torch.compiler.is_compiling():
        return _stamp_squares(selected, uniform, square_below, s_max)
    return _grow_squares(selected, uniform, square_below, s_max)


def _sides(uniform: Tensor, square_below: Tensor, s_max: int) -> Tensor:
    return (torch.floor(s_max * uniform / square_below) + 1).clamp(max=s_max)


def _stamp_squares(selected: Tensor, uniform: Tensor, square_below: Tensor, s_max: int) -> Tensor:
    """Squares one by one: their number is small and known on the CPU, where this is fastest."""
    height, width = uniform.shape[1:]
    flat = uniform.flatten()
    corner = (flat < square_below).nonzero().squeeze(1)
    side = _sides(flat[corner], square_below, s_max).long()
    tall = torch.minimum(side, height - corner // width % height)
    wide = torch.minimum(side, width - corner % width)
    offset = torch.arange(s_max)
    # Offsets beyond a square repeat its last row or column: every square is stamped s_max by s_max.
    down = torch.minimum(offset, tall[:, None] - 1) * width
    right = torch.minimum(offset, wide[:, None] - 1)
    mask = selected.flatten()
    mask[(corner[:, None, None] + down[:, :, None] + right[:, None, :]).flatten()] = True
    return mask.view_as(selected)


def _grow_squares(selected: Tensor, uniform: Tensor, square_below: Tensor, s_max: int) -> Tensor:
    """All squares at once, in s_max - 1 steps of fixed shape: no synchronisation with the host.

    Each pixel holds how far the square it belongs to still reaches; a step hands it on, less one, to the
    pixels below, to the right and diagonally between.
    """
    starts = uniform < square_below
    # Where square_below is 0 nothing starts, and the division by it does not matter.
    side = torch.where(starts, _sides(uniform, square_below, s_max), 0.0)
    # The reach of the largest square must fit.
    reach = torch.where(selected & ~starts, 1.0, side).to(torch.int8 if s_max <= 127 else torch.int16)
    for _ in range(s_max - 1):
        row = torch.maximum(reach, torch.nn.functional.pad(reach[:, :, :-1], (1, 0)))  # from the left
        from_above = torch.nn.functional.pad(row[:, :-1], (0, 0, 1, 0))
        reach = torch.maximum(reach, torch.maximum(row, from_above) - 1)
    return reach > 0


class Rectangle(BatchMasking):
    """Mask one random rectangle an image (random erasing), the paper's baseline.

    The share of the image it covers is uniform in `area`, its height over its width uniform in `aspect`, its
    place uniform; a rectangle that does not fit is drawn again, up to 64 times, then the image is left alone.

    Args:
        p: Probability of being perturbed, of a mini-batch or of an image, see `coin`.
        area: Smallest and largest share of the image.
        aspect: Smallest and largest height over width.
        coin: "batch": one toss per mini-batch, as in FPA; "image": one per image, as in random erasing.
        masking: What removing a pixel means, `masking(images, mask) -> images`; default 0.
        generator: Source of randomness, on any device; default PyTorch's global one.

    >>> augment = Rectangle(p=1.0, generator=torch.Generator().manual_seed(0))
    >>> share = augment.mask(torch.ones(4, 3, 32, 32)).float().mean((1, 2))
    >>> bool(((share > 0.01) & (share < 0.45)).all())
    True

    """

    ATTEMPTS: ClassVar[int] = 64

    @checked
    def __init__(
        self,
        p: float = 0.5,
        area: tuple[float, float] = (0.02, 0.4),
        aspect: tuple[float, float] = (0.3, 1 / 0.3),
        coin: Literal["batch", "image"] = "batch",
        masking: MaskingLike | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(p, masking, generator)
        check_rising("area", area, most=1)
        check_rising("aspect", aspect)
        self.area = tuple(area)
        self.aspect = tuple(aspect)
        self.coin = coin

    def _draws(self, shape: Shape, uniform: Callable[..., Tensor]) -> Draws:
        coin = uniform(shape[0] if self.coin == "image" else 1)
        sizes = uniform(2, shape[0], self.ATTEMPTS)
        return {"perturbed": coin < self.p, "sizes": sizes, "place": uniform(2, shape[0])}

    def mask_of(self, draws: Draws, shape: Shape) -> Tensor:  # noqa: D102
        _, height, width = shape
        areas, aspects = draws["sizes"]
        area = (self.area[0] + areas * (self.area[1] - self.area[0])) * (height * width)
        aspect = self.aspect[0] + aspects * (self.aspect[1] - self.aspect[0])
        tall = (area * aspect).sqrt().round()
        wide = (area / aspect).sqrt().round()
        fits = (tall >= 1) & (wide >= 1) & (tall < height) & (wide < width)
        first = fits.int().argmax(1, keepdim=True)
        tall = tall.gather(1, first)
        wide = wide.gather(1, first)
        drawn = fits.gather(1, first) & draws["perturbed"][:, None]
        down, right = draws["place"][:, :, None]
        top = (down * (height - tall + 1)).floor().minimum(height - tall)
        left = (right * (width - wide + 1)).floor().minimum(width - wide)
        rows, columns = (torch.arange(side, device=tall.device) for side in (height, width))
        inside_rows = (rows >= top) & (rows < top + tall) & drawn
        inside_columns = (columns >= left) & (columns < left + wide)
        return torch.logical_and(inside_rows[:, :, None], inside_columns[:, None, :])


def cell_numbers(height: int, width: int, grid: int = 4, device: torch.device | str = "cpu") -> Tensor:
    """The number of the cell of every pixel, int64 [H, W]: a grid of `grid` x `grid` cells, row after row.

    >>> cell_numbers(2, 4, grid=2).tolist()
    [[0, 0, 1, 1], [2, 2, 3, 3]]
    """
    if grid > min(height, width):
        raise InputError(f"a grid of {grid} x {grid} cells does not fit into {height} x {width} pixels")
    down, across = (torch.arange(side, device=device) * grid // side for side in (height, width))
    return down[:, None] * grid + across


class Cell(BatchMasking):
    """Mask one random cell of a grid in some images: what single deletion (`fpa.scores`) does to a model.

    Args:
        p: Probability that an image loses a cell; one toss per image.
        grid: Cells down and across.
        masking: What removing a pixel means, `masking(images, mask) -> images`; default 0.
        generator: Source of randomness, on any device; default PyTorch's global one.

    >>> augment = Cell(p=1.0, generator=torch.Generator().manual_seed(0))
    >>> augment.mask(torch.ones(3, 1, 8, 8)).float().mean((1, 2)).tolist()
    [0.0625, 0.0625, 0.0625]

    """

    @checked
    def __init__(
        self,
        p: float = 0.5,
        grid: int = 4,
        masking: MaskingLike | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(p, masking, generator)
        at_least("grid", grid, 1)
        self.grid = grid

    def check(self, images: Tensor) -> None:  # noqa: D102
        super().check(images)
        cell_numbers(images.shape[2], images.shape[3], self.grid)

    def _draws(self, shape: Shape, uniform: Callable[..., Tensor]) -> Draws:
        coin, cell = uniform(2, shape[0])
        return {"perturbed": coin < self.p, "cell": cell}

    def mask_of(self, draws: Draws, shape: Shape) -> Tensor:  # noqa: D102
        cell = (draws["cell"] * self.grid**2).floor().clamp(max=self.grid**2 - 1)
        numbers = cell_numbers(shape[1], shape[2], self.grid, cell.device)
        return (numbers == cell[:, None, None]) & draws["perturbed"][:, None, None]
