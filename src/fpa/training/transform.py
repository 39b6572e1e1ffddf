"""What all perturbations of training batches share: torchvision's transform around a draw and a mask."""

import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import PIL.Image
import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import is_pure_tensor

from fpa.errors import InputError, warn
from fpa.masking import Constant, MaskingLike, get_masking, lent
from fpa.masking.fills import Fill
from fpa.seeds import generator as seeded
from fpa.training.settings import check_probability
from fpa.values import check_plain, checked

Draws = dict[str, Tensor]
Shape = tuple[int, int, int]

_REMEDY = "put it after v2.ToImage(), v2.ToDtype(torch.float32, scale=True) and v2.Normalize(...)"


class BatchMasking(v2.Transform):
    """A transform that removes random pixels of a batch; a subclass says which.

    The images are the first tensor (or the `tv_tensors.Image`s) of whatever it is called with: a batch
    [N, C, H, W] or a single image [C, H, W], floating point, normalised. Labels and everything else pass
    through unchanged.
    """

    _transformed_types: ClassVar[tuple[Any, ...]] = (is_pure_tensor, tv_tensors.Image, PIL.Image.Image)

    @checked
    def __init__(self, p: float, masking: MaskingLike | None, generator: torch.Generator | None) -> None:
        super().__init__()
        self.p = probability("p", p)
        self.masking = get_masking(masking)
        self.generator = generator
        if self.masking.selects:
            fills = f"{type(self).__name__} needs a masking that fills, and drop fills nothing"
            raise InputError(f"{fills}: FPA by dropping is fpa.DropTokens, for vision transformers")
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
        if isinstance(self.masking, Fill):
            self.masking.check(images)

    def check_inputs(self, flat_inputs: list[Any]) -> None:  # noqa: D102
        pictures = [value for value in flat_inputs if isinstance(value, PIL.Image.Image)]
        if pictures or not any(isinstance(value, Tensor) for value in flat_inputs):
            kind = "PIL image" if pictures else type(next(iter(flat_inputs), None)).__name__
            raise InputError(f"{type(self).__name__} needs normalised tensors, got a {kind}: {_REMEDY}")

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:  # noqa: D102
        images = check_plain("images", inpt).as_subclass(Tensor)
        batch = images[None] if images.ndim == 3 else images
        generator = self._own_generator()
        self._look(batch)
        mask = self.mask(batch, generator)
        noise = self.masking.noise(lent(self.masking, batch), generator)
        masked = self.masking(lent(self.masking, batch), mask, noise).reshape(images.shape)
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

    def extra_repr(self) -> str:  # noqa: D102
        names = [name for name in inspect.signature(type(self)).parameters if name != "generator"]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def __getstate__(self) -> dict[str, Any]:
        """The generator as bytes: workers started with `spawn` would be sent its state as shared memory."""
        return self.__dict__ | {"generator": pickle.dumps(self.generator)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"generator": pickle.loads(state["generator"])})


def probability(name: str, value: float) -> float:
    """The value as a float, if it is a probability."""
    check_probability(name, value)
    return float(value)
