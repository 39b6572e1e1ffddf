"""A copy of a model that hooks can work on: nothing in place, every use of an activation a module."""

import copy
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fpa.engine import Engine, same_logits
from fpa.engine.outputs import OUTPUTS
from fpa.errors import InputError, unknown

_RELUS = (functional.relu, functional.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)
ACTIVATIONS = (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softmax, nn.MaxPool2d)


class HookableModel(nn.Module):
    """A model for Captum's hooks: nothing in place, every use of an activation a module of its own.

    In a first pass each activation gets as many modules as it has uses; afterwards it is `complete`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.functions = _Uses(nn.ReLU())
        uses: dict[int, _Uses] = {}
        for parent in [*model.modules()]:
            # A hook sees the very tensor that an operation in place overwrites afterwards.
            if isinstance(getattr(parent, "inplace", None), bool):
                setattr(parent, "inplace", False)  # noqa: B010
            # By identity: an activation that several parents hold stays one activation with many uses.
            for name, child in parent._modules.items():
                if child is not None and type(child) in ACTIVATIONS:
                    parent._modules[name] = uses.setdefault(id(child), _Uses(child))
        self.all_uses = [self.functions, *uses.values()]
        self.grids: dict[torch.Size, Any] = {}  # where its layers' outputs are, by the shape of an image

    def forward(self, images: Tensor, targets: Tensor | None = None, output: str = "logit") -> Any:
        """What the model says, every use of an activation through its own module.

        The logits, or with `targets` [N] the output [N] for these classes.
        """
        for uses in self.all_uses:
            uses.at = 0
        with _RoutedRelus(self.functions):
            logits = self.model(images)
        return logits if targets is None else OUTPUTS[output](logits, targets, targets)

    def layer(self, name: str) -> nn.Module:
        """The layer of this name, which must be used once."""
        known = [known for known, _ in self.model.named_modules() if known and ".copies" not in known]
        if name not in known and f"model.{name}" in known:  # the name in a model that is wrapped
            name = f"model.{name}"
        if name not in known:
            raise unknown("layer", name, known)
        module = self.model.get_submodule(name)
        uses = [*module.copies] if isinstance(module, _Uses) else [module]
        if len(uses) > 1:
            raise InputError(f"layer {name} is used {len(uses)} times in a pass: name another, or its block")
        return uses[0]


class _Uses(nn.Module):
    """Stands for an activation: each use of it in a pass goes to a copy of its own.

    Captum's hooks keep what went through a module last; with two uses of one module they would take the
    input of the second for that of the first.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.copies = nn.ModuleList([module])
        self.at = 0
        self.complete = False

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if self.at == len(self.copies):
            if self.complete:
                raise InputError("Captum cannot follow a model whose layers run a varying number of times")
            self.copies.append(copy.deepcopy(self.copies[0]))
        self.at += 1
        with torch._C.DisableTorchFunction():  # a ReLU module calls the function: that is no further use
            return self.copies[self.at - 1](*arguments, **named)


class _RoutedRelus(TorchFunctionMode):
    """Sends a ReLU that is called as a function to a module, where Captum's hooks can be."""

    def __init__(self, functions: _Uses) -> None:
        super().__init__()
        self.functions = functions

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func in _RELUS:
            return self.functions(*args[:1])
        return func(*args, **(kwargs or {}))


_HOOKABLE: "weakref.WeakKeyDictionary[Engine, HookableModel]" = weakref.WeakKeyDictionary()


def hookable_model(engine: Engine, images: Tensor) -> HookableModel:
    """The engine's model in a form that Captum's hooks accept; it is checked to give the same logits."""
    if engine not in _HOOKABLE:
        probe = images[:1].to(engine.dtype)
        expected = engine.predict(images[:1])
        hookable = HookableModel(engine.copy()).eval().requires_grad_(False)
        with torch.no_grad():
            logits = hookable(probe).to(expected)
        for uses in hookable.all_uses:
            uses.complete = True
        # Wide enough for half precision and TF32: what is looked for is a ReLU that got lost.
        if not same_logits(logits, expected, 1e-2):
            problem = "Captum's methods need a model without in-place operations"
            cause = "an in-place call of relu whose result is not used?"
            raise InputError(f"{problem}; this one changes without them ({cause}): write x = relu(x)")
        _HOOKABLE[engine] = hookable
    return _HOOKABLE[engine]
