"""Feature perturbation augmentation (FPA), the rectangle baseline and single cells, as batch transforms.

All draw random numbers in one place (`draw`) and turn them into a mask in another (`mask_of`), a pure
function: the same draws always give the same mask. Removing the pixels is `masking.py`'s job.
None reads a value back from the device, so all can be captured in a CUDA graph, the coin included.
"""

import inspect
import math
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import PIL.Image
import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import is_pure_tensor

from fpa.data.loaders import check_plain
from fpa.errors import InputError, at_least, warn
from fpa.masking import Constant, MaskingLike, get_masking
from fpa.seeds import generator as seeded
from fpa.values import checked

Draws = dict[str, Tensor]
Shape = tuple[int, int, int]

_REMEDY = "put it after v2.ToImage(), v2.ToDtype(torch.float32, scale=True) and v2.Normalize(...)"


class _BatchMasking(v2.Transform):
    """A transform that removes random pixels of a batch; a subclass says which.

    The images are the first tensor (or the `tv_tensors.Image`s) of whatever it is called with: a batch
    [N, C, H, W] or a single image [C, H, W], floating point, normalised. Labels and everything else pass
    through unchanged.
    """

    _transformed_types: ClassVar[tuple[Any, ...]] = (is_pure_tensor, tv_tensors.Image, PIL.Image.Image)

    @checked
    def __init__(self, p: float, masking: MaskingLike | None, generator: torch.Generator | None) -> None:
        super().__init__()
        self.p = _probability("p", p)
        self.masking = get_masking(masking)
        self.generator = generator
        if not self.masking.trains:
            name = type(self.masking).__name__.lower()
            raise InputError(f"the masking {name} is for evaluations only: it cannot be captured in a step")
        self._worker_seed: int | None = None
        self._looked = False

    def draw(
        self, shape: Shape, device: torch.device | str = "cpu", generator: torch.Generator | None = None
    ) -> Draws:
        """All random numbers for the mask of a batch of `shape` (N, H, W), on `device`."""
        at = device if generator is None else generator.device
        return self._draws(shape, lambda *size: torch.rand(size, generator=generator, device=at).to(device))

    def _draws(self, shape: Shape, uniform: Callable[..., Tensor]) -> Draws:
        """What `draw` returns, made of uniform numbers of the sizes asked for."""
        raise NotImplementedError

    def mask_of(self, draws: Draws, shape: Shape) -> Tensor:
        """The bool mask [N, H, W] that these draws stand for, True = removed."""
        raise NotImplementedError

    def mask(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A fresh mask [N, H, W] for a batch of images [N, C, H, W], without applying it."""
        self.check(images)
        shape = (images.shape[0], images.shape[2], images.shape[3])
        return self.mask_of(self.draw(shape, images.device, generator or self._own_generator()), shape)

    def check(self, images: Tensor) -> None:
        """Refuse what cannot be perturbed."""
        check_plain("images", images)
        name = type(self).__name__
        shape = list(images.shape)
        if images.ndim != 4:
            raise InputError(f"{name} needs images [N, C, H, W] or one image [C, H, W], got shape {shape}")
        if not images.is_floating_point():
            raise InputError(f"{name} needs normalised floating-point images, got {images.dtype}: {_REMEDY}")

    def check_inputs(self, flat_inputs: list[Any]) -> None:
        pictures = [value for value in flat_inputs if isinstance(value, PIL.Image.Image)]
        if pictures or not any(isinstance(value, Tensor) for value in flat_inputs):
            kind = "PIL image" if pictures else type(next(iter(flat_inputs), None)).__name__
            raise InputError(f"{type(self).__name__} needs normalised tensors, got a {kind}: {_REMEDY}")

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:
        images = check_plain("images", inpt).as_subclass(Tensor)
        batch = images[None] if images.ndim == 3 else images
        generator = self._own_generator()
        self._look(batch)
        mask = self.mask(batch, generator)
        masked = self.masking(batch, mask, self.masking.noise(batch, generator)).reshape(images.shape)
        return tv_tensors.wrap(masked, like=inpt) if isinstance(inpt, tv_tensors.TVTensor) else masked

    def _look(self, images: Tensor) -> None:
        """Say once that images seem not to be normalised yet: their masked pixels would not stay 0.

        The values have to be read for that, so it is done at the first call alone, and never in a step that
        is compiled or captured, where reading them would end the recording.
        """
        if torch.compiler.is_compiling() or self._looked or not images.is_floating_point():
            return
        if images.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        self._looked = True
        worker = get_worker_info()
        # Other maskings, and other values, are chosen for the images as they are; workers are many.
        if self.masking != Constant() or images.numel() == 0 or (worker is not None and worker.id > 0):
            return
        low, high = images.aminmax()
        if 0 <= low < high <= 1:  # of normalised images, about half of the values are below 0
            name = type(self).__name__
            warn(
                f"the images given to {name} lie in 0..1: if they are normalised afterwards, masked pixels "
                f"are not 0 there, as they are in evaluations; {_REMEDY}"
            )

    def _own_generator(self) -> torch.Generator | None:
        """The generator given at construction; in a DataLoader worker one of that worker's own.

        Workers are copies of one process, so they would all draw the same masks. A worker's seed differs
        for every worker and every epoch and follows `torch.manual_seed` or the loader's generator.
        """
        worker = get_worker_info()
        if worker is not None and self.generator is not None and worker.seed != self._worker_seed:
            self._worker_seed = worker.seed
            self.generator = seeded(self.generator.device, self.generator.initial_seed(), worker.seed)
        return self.generator

    def extra_repr(self) -> str:
        names = [name for name in inspect.signature(type(self)).parameters if name != "generator"]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def __getstate__(self) -> dict[str, Any]:
        """The generator as bytes: workers started with `spawn` would be sent its state as shared memory."""
        return self.__dict__ | {"generator": pickle.dumps(self.generator)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"generator": pickle.loads(state["generator"])})


class FPA(_BatchMasking):
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
        self.p1_max = _probability("p1_max", p1_max)
        self.p2 = _probability("p2", p2)
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


class Rectangle(_BatchMasking):
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
        if not 0 < area[0] <= area[1] <= 1:
            raise InputError(f"area must be two rising shares in (0, 1], got {tuple(area)}")
        if not 0 < aspect[0] <= aspect[1] < math.inf:
            raise InputError(f"aspect must be two rising positive numbers, got {tuple(aspect)}")
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


class Cell(_BatchMasking):
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


def _probability(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise InputError(f"{name} must be a probability in [0, 1], got {value!r}")
    return float(value)
