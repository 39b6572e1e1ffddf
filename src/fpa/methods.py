"""Other people's explanations as estimators: Captum's methods by name, precomputed maps, Quantus' functions.

Captum's hooks need a model in which nothing works in place and every activation is a module used once.
Few models are so, hence they get a private copy that is; the user's model is never touched.
"""

import copy
import hashlib
import inspect
import pickle
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fpa.engine import Engine, untouched
from fpa.errors import InputError, unknown
from fpa.estimators import Estimator, Method, Reduction, Task, checked_map, in_parts, reference_images
from fpa.seeds import derive
from fpa.store import check_torch_file, what_it_is

_RANDOM_STREAM = 5  # 1 to 4: SmoothGrad, the random map, the order of ties, the noise of a masking
_GRID = 8  # windows a side: of Occlusion (which moves by half of one) and of the methods that remove patches
_SCAN_BYTES = 64 << 20

# Methods that fit the pattern of the others but not an evaluation image by image.
_UNFIT = {
    "DeepLiftShap": "it needs a set of reference images: captum:DeepLift takes the masked image",
    "LayerDeepLiftShap": "it needs a set of reference images: captum:LayerDeepLift takes the masked image",
    "FeaturePermutation": "an image's map would depend on the other images of its batch",
    "LayerFeaturePermutation": "an image's map would depend on the other images of its batch",
    "ShapleyValues": "it needs all orders of the features: captum:ShapleyValueSampling draws some",
}


def by_name(name: str) -> Estimator:
    """The estimator `captum:METHOD[_sum|_abs][@LAYER]` or `maps:FILE[#ARRAY]`.

    >>> by_name("captum:LayerGradCam_abs@layer4").raw
    Captum(method='LayerGradCam', layer='layer4')
    """
    source, _, rest = name.partition(":")
    if source == "maps":
        file, _, array = rest.partition("#")
        return Estimator(Maps(Path(file), array or None))
    rest, _, layer = rest.partition("@")
    match = re.fullmatch(rf"(.*?)(?:_({'|'.join(get_args(Reduction))}))?", rest)
    assert match is not None  # the pattern takes any text
    reduction: Reduction = "abs" if match[2] == "abs" else "sum"
    return Estimator(Captum(match[1], layer or None), reduction)


@dataclass(frozen=True)
class Captum(Method):
    """A class of `captum.attr`, with settings that suit images.

    References are the fully masked image (`Settings.reference`), windows and patches are an eighth of the
    image, maps of a layer are summed over its channels and brought to image size bilinearly. `layer` names a
    layer of the model for methods that need one, by default the last convolution.
    """

    method: str
    layer: str | None = None

    def __post_init__(self) -> None:
        known = captum_methods()
        if self.method in _UNFIT and self.method not in known:
            raise InputError(f"captum:{self.method} cannot be used by name: {_UNFIT[self.method]}")
        if self.method not in known:
            raise unknown("Captum method", self.method, known)
        if self.layer is not None and not self._takes_layer:
            raise InputError(f"captum:{self.method} takes no layer, got @{self.layer}")

    @property
    def _class(self) -> Any:
        return getattr(_captum(), self.method)

    @property
    def _takes_layer(self) -> bool:
        return "layer" in inspect.signature(self._class.__init__).parameters

    def described(self) -> Any:
        """The method, its layer and Captum's version."""
        from importlib.metadata import version

        return {"name": f"captum:{self.method}", "layer": self.layer, "captum": version("captum")}

    def raw_map(self, name: str, task: Task) -> Tensor:
        """What Captum says of the images, on a copy of the model that fits its hooks."""
        fitted, first = _fitted(task.engine, task.images), task.images[:1].to(task.engine.dtype)
        place: list[nn.Module] = []
        if self._takes_layer:
            place = [fitted.layer(self.layer) if self.layer else fitted.last_convolution(name, first)]
        explainer = self._class(fitted, *place)
        accepted = inspect.signature(explainer.attribute).parameters
        random = "n_samples" in accepted
        removes = "feature_mask" in accepted or "sliding_window_shapes" in accepted
        reference = task.masking if removes else task.settings.reference
        baselines = None
        if "baselines" in accepted:
            baselines = reference_images(reference, task.images, task.masking, task.seed, task.indices)
        of_layer = isinstance(explainer, _captum().LayerAttribution)

        def run(rows: Tensor, at: slice) -> Tensor:
            batch = task.engine.batch_size("gradients", task.images[:1])
            chosen = {
                "baselines": None if baselines is None else baselines[at].to(rows),
                "abs": False,  # the reduction's affair
                "n_steps": task.settings.ig_steps,
                "internal_batch_size": 2 * len(rows),  # LayerConductance takes no less
                "perturbations_per_eval": max(1, batch // len(rows)),
                "interpolate_mode": "bilinear",
                **_windows(rows),
            }
            raw = explainer.attribute(
                rows.requires_grad_(),
                target=task.targets[at],
                **{key: value for key, value in chosen.items() if key in accepted},
            )
            return _at_image_size(name, raw, rows) if of_layer else raw

        def seeded(rows: Tensor, at: slice) -> Tensor:
            """One image at a time, so that its random numbers are its own."""
            parts = []
            for row, number in enumerate(range(at.start, at.start + len(rows))):
                with _random_numbers(derive(task.seed, task.indices[number], _RANDOM_STREAM), rows.device):
                    parts.append(run(rows[row : row + 1].detach(), slice(number, number + 1)).detach())
            return torch.cat(parts)

        # Captum keeps copies of what passes through the activations, and DeepLift the reference beside
        # the image: about four times what a gradient needs.
        with _translated(name):
            return in_parts(task.engine, name, task.images, seeded if random else run, share=4)


def captum_methods() -> list[str]:
    """The methods of Captum that can be had by name.

    >>> {"DeepLift", "GuidedBackprop", "LayerGradCam", "Occlusion"} <= set(captum_methods())
    True
    """
    attr = _captum()
    found = []
    for name in attr.__all__:
        if not inspect.isclass(getattr(attr, name)) or not hasattr(getattr(attr, name), "attribute"):
            continue
        made, called = (
            [key for key, entry in inspect.signature(function).parameters.items() if _required(entry)][1:]
            for function in (getattr(attr, name).__init__, getattr(attr, name).attribute)
        )
        takes_target = "target" in inspect.signature(getattr(attr, name).attribute).parameters
        fits = made[:1] in (["model"], ["forward_func"]) and set(made[1:]) <= {"layer"}
        given = {"inputs", "baselines", "sliding_window_shapes"}
        if fits and takes_target and set(called) <= given and name not in _UNFIT:
            found.append(name)
    return found


def _required(entry: inspect.Parameter) -> bool:
    return entry.default is inspect.Parameter.empty and entry.kind is not inspect.Parameter.VAR_KEYWORD


def _captum() -> Any:
    try:
        import captum.attr
    except ImportError as error:
        raise InputError("the estimators captum:... need the package captum: pip install captum") from error
    return captum.attr


def _windows(images: Tensor) -> dict[str, Any]:
    """What to remove at a time: a sliding window, or patches side by side; all channels together."""
    channels, *sides = images.shape[1:]
    window = [max(1, side // _GRID) for side in sides]
    cells = [min(side, _GRID) for side in sides]
    rows, columns = (
        torch.arange(side, device=images.device) * count // side
        for side, count in zip(sides, cells, strict=True)
    )
    return {
        "sliding_window_shapes": (channels, *window),
        "strides": (channels, *(max(1, side // 2) for side in window)),
        "feature_mask": (rows[:, None] * cells[1] + columns).expand(1, *images.shape[1:]).contiguous(),
    }


def _at_image_size(name: str, raw: Any, images: Tensor) -> Tensor:
    if not isinstance(raw, Tensor) or raw.ndim != 4:
        found = list(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        raise InputError(
            f"estimator {name}: the layer gives {found} for {len(images)} images, not [N, channels, h, w]: "
            "name a convolution or a block of them"
        )
    summed = raw.sum(1, keepdim=True)
    enlarged: Tensor = _captum().LayerAttribution.interpolate(summed, tuple(images.shape[2:]), "bilinear")
    return enlarged


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Captum's complaints as ours, without its notices about hooks, which touch only our copy."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Setting (forward, )?backward hooks")
        try:
            yield
        except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            told = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"estimator {name}: Captum cannot explain this model: {told}") from error


@contextmanager
def _random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Global random numbers from this seed, as Captum draws them, and as they were afterwards."""
    legacy = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(legacy)  # noqa: NPY002


_RELUS = (functional.relu, functional.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)
_ACTIVATIONS = (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softmax, nn.MaxPool2d)


class _Fitted(nn.Module):
    """A model for Captum's hooks: nothing in place, every use of an activation a module of its own.

    Built by one pass over `images`, in which each activation gets as many modules as it has uses.
    """

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()
        self.model, self.complete = model, False
        self.mode = _RoutedRelus(self)
        self.functions = _Uses(nn.ReLU(), self)
        uses: dict[int, _Uses] = {}
        for parent in [*model.modules()]:
            if isinstance(getattr(parent, "inplace", None), bool):
                setattr(parent, "inplace", False)  # noqa: B010
            for name, child in parent._modules.items():
                if child is not None and type(child) in _ACTIVATIONS:
                    parent._modules[name] = uses.setdefault(id(child), _Uses(child, self))
        self.all_uses = [self.functions, *uses.values()]
        with torch.no_grad():
            self(images)
        self.complete = True

    def forward(self, images: Tensor) -> Any:
        for uses in self.all_uses:
            uses.at = 0
        with self.mode:
            return self.model(images)

    def layer(self, name: str) -> nn.Module:
        known = [known for known, _ in self.model.named_modules() if known and ".copies" not in known]
        if name not in known:
            raise unknown("layer", name, known)
        module = self.model.get_submodule(name)
        if not isinstance(module, _Uses):
            return module
        if len(module.copies) > 1:
            raise InputError(
                f"the layer {name} is used {len(module.copies)} times in a pass: name another, or its block"
            )
        return module.copies[0]

    def last_convolution(self, name: str, images: Tensor) -> nn.Module:
        """The last to run whose output is more than one pixel (squeeze-and-excitation ends in one)."""
        found: list[nn.Module] = []

        def note(module: nn.Module, _: Any, output: Tensor) -> None:
            if output.ndim == 4 and output.shape[2:].numel() > 1:
                found.append(module)

        convolutions = [module for module in self.model.modules() if isinstance(module, nn.Conv2d)]
        handles = [module.register_forward_hook(note) for module in convolutions]
        try:
            with torch.no_grad():
                self(images)
        finally:
            for handle in handles:
                handle.remove()
        if not found:
            raise InputError(
                f"estimator {name}: the model has no convolution whose output is larger than one pixel; "
                f"name a layer as in {name}@LAYER"
            )
        return found[-1]


class _Uses(nn.Module):
    """Stands for an activation: each use of it in a pass goes to a copy of its own."""

    def __init__(self, module: nn.Module, owner: _Fitted) -> None:
        super().__init__()
        self.copies, self.at = nn.ModuleList([module]), 0
        self.owner = [owner]  # in a list, so that the owner is no submodule

    def forward(self, *arguments: Any, **named: Any) -> Any:
        owner = self.owner[0]
        if self.at == len(self.copies):
            if owner.complete:
                raise InputError("Captum cannot follow a model whose layers run a varying number of times")
            self.copies.append(copy.deepcopy(self.copies[0]))
        self.at += 1
        owner.mode.inside = True
        try:
            return self.copies[self.at - 1](*arguments, **named)
        finally:
            owner.mode.inside = False


class _RoutedRelus(TorchFunctionMode):
    """Sends a ReLU that is called as a function to a module, where Captum's hooks can be."""

    def __init__(self, owner: _Fitted) -> None:
        super().__init__()
        self.owner, self.inside = [owner], False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RELUS and not self.inside:
            return self.owner[0].functions(*args[:1])
        return func(*args, **(kwargs or {}))


_FITTED: "weakref.WeakKeyDictionary[Engine, _Fitted]" = weakref.WeakKeyDictionary()


def _fitted(engine: Engine, images: Tensor) -> _Fitted:
    """The engine's model made fit for Captum, once an engine, and proved to give the same logits."""
    if engine not in _FITTED:
        probe = images[:1].to(engine.dtype)
        fitted = _Fitted(engine.copy(), probe).eval().requires_grad_(False)
        expected = engine.predict(images[:1])
        with torch.no_grad():
            found = fitted(probe).to(expected)
        # Wide enough for half precision and TF32: what is looked for is a ReLU that got lost.
        most = 1e-2 * expected.abs().max().clamp(min=1e-3)
        if not bool((((found - expected).abs() <= most) | ~expected.isfinite()).all()):
            raise InputError(
                "Captum's methods need a model without operations in place; this one changes without them "
                "(a ReLU called as a function in place, its result not used?): write x = relu(x)"
            )
        _FITTED[engine] = fitted
    return _FITTED[engine]


@dataclass(frozen=True, eq=False)
class Maps(Method):
    """Maps computed before: [N, H, W], [N, 1, H, W] or [N, C, H, W], image i of the data set in row i.

    `source` is an array, a tensor or a file: .npy, .npz, .safetensors or .pt (a tensor or a dict of them,
    loaded without executing code); `array` names one of several in a file. Files are memory-mapped, except
    .npz. The estimator counts as signed if any value is negative.

    >>> Estimator(Maps(torch.ones(5, 4, 4))).signed, Estimator(Maps(-torch.ones(5, 4, 4))).signed
    (False, True)
    """

    source: Any
    array: str | None = None
    needs_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            object.__setattr__(self, "source", Path(self.source))
        shape = list(self.values.shape)
        if self.values.ndim not in (3, 4) or self.values.is_complex():
            raise InputError(
                f"{self._called} must be real numbers [N, H, W] or [N, C, H, W], "
                f"got {self.values.dtype} {shape}"
            )

    @property
    def _called(self) -> str:
        if not isinstance(self.source, Path):
            return "the maps"
        return f"the maps in {self.source}" + (f" ({self.array})" if self.array else "")

    @cached_property
    def values(self) -> Tensor:
        """The maps as they were given."""
        if isinstance(self.source, Path):
            return _read(self.source, self.array)
        if isinstance(self.source, Tensor):
            return self.source.detach()
        return _as_tensor(self.source, self._called)

    @cached_property
    def _scanned(self) -> tuple[str, bool]:
        digest, negative = hashlib.sha256(f"{self.values.dtype} {list(self.values.shape)}".encode()), False
        step = max(1, _SCAN_BYTES // max(1, self.values[:1].nbytes))
        for start in range(0, len(self.values), step):
            here = self.values[start : start + step].cpu().contiguous()
            digest.update(here.flatten().view(torch.uint8).numpy().data)
            negative = negative or bool((here < 0).any())
        return digest.hexdigest()[:16], negative

    @property
    def nonnegative(self) -> bool:
        """Whether no value is negative."""
        return not self._scanned[1]

    def described(self) -> Any:
        """A hash of the values, so that a file may move but not change."""
        return {"name": "maps", "sha256": self._scanned[0]}

    def check(self, name: str, indices: Sequence[int], shape: Sequence[int] | None = None) -> None:
        """Refuse images without a map, and maps of another size."""
        count = len(self.values)
        outside = [index for index in indices if not 0 <= index < count]
        if outside:
            raise InputError(
                f"estimator {name}: {self._called} are {count}, one for each image of the data set in its "
                f"order, but there is an image number {outside[0]} (the first has number 0)"
            )
        if shape is None:
            return
        channels, *sides = shape
        own = list(self.values.shape[1:])
        if own[-2:] != sides or (len(own) == 3 and own[0] not in (1, channels)):
            raise InputError(
                f"estimator {name}: {self._called} must be {sides} or {[channels, *sides]} for an image, "
                f"got {own}"
            )

    def raw_map(self, name: str, task: Task) -> Tensor:
        """The rows of these images."""
        rows = self.values[torch.as_tensor(task.indices, device=self.values.device)]
        return checked_map(name, rows, task.images.shape).to(task.images)


def _read(path: Path, array: str | None) -> Tensor:
    """One array of a file, memory-mapped where the format allows it."""
    kinds = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors, ".pt": _torch, ".pth": _torch}
    if path.suffix not in kinds:
        raise InputError(f"maps are read from {', '.join(kinds)} files, got {path}")
    if not path.is_file():
        raise InputError(f"there is no file of maps {path}")
    with path.open("rb") as file:
        other = what_it_is(file.read(64))
    if other is not None:
        raise InputError(f"{path} is not a file of maps: {other}")
    try:
        arrays, get = kinds[path.suffix](path)
        if array is None and len(arrays) != 1:
            listed = ", ".join(sorted(arrays)[:16])
            raise InputError(
                f"{path} holds {len(arrays)} arrays ({listed}): name one as in maps:{path}#ARRAY"
            )
        if array is not None and array not in arrays:
            raise unknown(f"array of {path}", array, arrays)
        return _as_tensor(get(arrays[0] if array is None else array), f"the maps in {path}")
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(
            f"the maps in {path} cannot be read: it holds more than tensors, and loading that could execute "
            "code; save a tensor or a dict of tensors"
        ) from error
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(f"the maps in {path} cannot be read: {said}") from error


_Arrays = tuple[list[str], Callable[[str], Any]]


def _npy(path: Path) -> _Arrays:
    # Copy on write: torch takes no read-only arrays.
    return [path.stem], lambda _: np.load(path, mmap_mode="c", allow_pickle=False)


def _npz(path: Path) -> _Arrays:
    with np.load(path, allow_pickle=False) as arrays:
        names = list(arrays.files)

    def get(name: str) -> Any:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[name]

    return names, get


def _safetensors(path: Path) -> _Arrays:
    from safetensors import safe_open

    file: Any = safe_open(path, framework="pt")
    return list(file.keys()), file.get_tensor


def _torch(path: Path) -> _Arrays:
    check_torch_file(path, "file of maps")
    try:
        held = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except RuntimeError:  # written in the older format, which cannot be mapped
        held = torch.load(path, weights_only=True, map_location="cpu")
    arrays = {path.stem: held} if isinstance(held, Tensor) else held
    if not isinstance(arrays, dict) or not all(isinstance(value, Tensor) for value in arrays.values()):
        raise InputError(f"{path} must hold a tensor or a dict of tensors, got {type(held).__name__}")
    return [str(name) for name in arrays], {str(name): value for name, value in arrays.items()}.__getitem__


def _as_tensor(values: Any, called: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        # Neither read-only memory nor another byte order is for torch.
        native = np.require(values, values.dtype.newbyteorder("="), ["W"])
        return torch.from_numpy(native)
    except TypeError as error:
        raise InputError(f"{called} must be numbers, got {values.dtype}") from error


@dataclass(frozen=True)
class Quantus(Method):
    """A function `explain_func(model, inputs, targets, **arguments) -> array`, called as Quantus calls it."""

    explain_func: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)

    def described(self) -> Any:
        """The function's name and arguments, as far as they can be seen."""
        function, arguments = self.explain_func, dict(self.arguments)
        while hasattr(function, "func"):  # functools.partial
            arguments = {**getattr(function, "keywords", {}), **arguments}
            function = function.func
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return {"name": name, **{key: repr(value) for key, value in sorted(arguments.items())}}

    def raw_map(self, name: str, task: Task) -> Tensor:
        """The function's arrays, from NumPy copies of the images and targets."""
        engine, arguments = task.engine, dict(self.arguments)
        accepted = inspect.signature(self.explain_func).parameters
        takes_device = "device" in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        if engine.device.type != "cpu" and takes_device:
            arguments.setdefault("device", str(engine.device))

        def run(rows: Tensor, at: slice) -> Any:
            inputs, targets = rows.cpu().numpy(), task.targets[at].cpu().numpy()
            return self.explain_func(model=engine.model, inputs=inputs, targets=targets, **arguments)

        with untouched(engine.model):
            return in_parts(engine, name, task.images, run)


def from_quantus(explain_func: Callable[..., Any], **arguments: Any) -> Quantus:
    """A Quantus-style function as the raw map of an estimator; `arguments` are handed to it.

    It is called with `model`, `inputs` [N, C, H, W] and `targets` [N] by name, the last two NumPy arrays,
    and returns an array [N, C, H, W], [N, 1, H, W] or [N, H, W].

    >>> from fpa import explain
    >>> def brightness(model, inputs, targets, scale=1):
    ...     return scale * inputs.mean(1)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    >>> maps = explain(model, torch.ones(1, 3, 2, 2), {"mine": from_quantus(brightness, scale=3)})
    >>> maps["mine"].tolist()
    [[[3.0, 3.0], [3.0, 3.0]]]
    """
    return Quantus(explain_func, arguments)


def is_quantus(function: Callable[..., Any]) -> bool:
    """Whether a function's arguments have the names Quantus requires: model, inputs, targets.

    >>> is_quantus(lambda model, inputs, targets, **others: inputs)
    True
    >>> is_quantus(lambda model, images, targets: images)
    False
    """
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # built in
        return False
    return {"model", "inputs", "targets"} <= set(names)
