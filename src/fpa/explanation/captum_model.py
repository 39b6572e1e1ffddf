"""A private copy of a model that Captum's hooks can work on."""

import copy
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from fpa.engine import Engine, same_logits
from fpa.errors import InputError, unknown

_RELUS = (functional.relu, functional.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)


_ACTIVATIONS = (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softmax, nn.MaxPool2d)


class FittedModel(nn.Module):
    """A model for Captum's hooks: nothing in place, every use of an activation a module of its own.

    Built by one pass over `images`, in which each activation gets as many modules as it has uses.
    """

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()
        self.model, self.mode = model, _RoutedRelus()
        self.functions = self.mode.functions = _Uses(nn.ReLU(), self.mode)
        uses: dict[int, _Uses] = {}
        for parent in [*model.modules()]:
            if isinstance(getattr(parent, "inplace", None), bool):
                setattr(parent, "inplace", False)  # noqa: B010
            for name, child in parent._modules.items():
                if child is not None and type(child) in _ACTIVATIONS:
                    parent._modules[name] = uses.setdefault(id(child), _Uses(child, self.mode))
        self.all_uses = [self.functions, *uses.values()]
        with torch.no_grad():
            self(images)
        self.mode.complete = True

    def forward(self, images: Tensor) -> Any:
        """What the model says, every use of an activation through its own module."""
        for uses in self.all_uses:
            uses.at = 0
        with self.mode:
            return self.model(images)

    def layer(self, name: str) -> nn.Module:
        """The layer of this name, which must be used once."""
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
            if isinstance(module, nn.Conv2d) and output.ndim == 4 and output.shape[2:].numel() > 1:
                found.append(module)

        with register_module_forward_hook(note), torch.no_grad():
            self(images)
        if not found:
            raise InputError(
                f"estimator {name}: the model has no convolution whose output is larger than one pixel; "
                f"name a layer as in {name}@LAYER"
            )
        return found[-1]


class _Uses(nn.Module):
    """Stands for an activation: each use of it in a pass goes to a copy of its own."""

    def __init__(self, module: nn.Module, mode: "_RoutedRelus") -> None:
        super().__init__()
        self.copies, self.at, self.mode = nn.ModuleList([module]), 0, mode

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if self.at == len(self.copies):
            if self.mode.complete:
                raise InputError("Captum cannot follow a model whose layers run a varying number of times")
            self.copies.append(copy.deepcopy(self.copies[0]))
        self.at += 1
        self.mode.inside = True
        try:
            return self.copies[self.at - 1](*arguments, **named)
        finally:
            self.mode.inside = False


class _RoutedRelus(TorchFunctionMode):
    """Sends a ReLU that is called as a function to a module, where Captum's hooks can be."""

    functions: _Uses
    inside = complete = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RELUS and not self.inside:
            return self.functions(*args[:1])
        return func(*args, **(kwargs or {}))


_FITTED: "weakref.WeakKeyDictionary[Engine, FittedModel]" = weakref.WeakKeyDictionary()


def fitted_model(engine: Engine, images: Tensor) -> FittedModel:
    """The engine's model in a form that Captum's hooks accept; it is checked to give the same logits."""
    if engine not in _FITTED:
        probe = images[:1].to(engine.dtype)
        fitted = FittedModel(engine.copy(), probe).eval().requires_grad_(False)
        expected = engine.predict(images[:1])
        with torch.no_grad():
            logits = fitted(probe).to(expected)
        # Wide enough for half precision and TF32: what is looked for is a ReLU that got lost.
        if not same_logits(logits, expected, 1e-2):
            raise InputError(
                "Captum's methods need a model without operations in place; this one changes without them "
                "(a ReLU called as a function in place, its result not used?): write x = relu(x)"
            )
        _FITTED[engine] = fitted
    return _FITTED[engine]
