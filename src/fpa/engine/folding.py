"""Copies of a model that run faster: batch norms folded into convolutions, weights in bfloat16."""

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights


def fold_batch_norm(model: nn.Module) -> int:
    """Merge, in place, each batch norm into the convolution that alone feeds it; returns how many.

    The model must be in eval mode. Nothing is changed where its graph cannot be followed.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    >>> fold_batch_norm(net), type(net[1]).__name__
    (1, 'Identity')
    """
    modules = dict(model.named_modules())
    if not any(type(module) is nn.BatchNorm2d for module in modules.values()):
        return 0
    try:
        nodes = list(fx.Tracer().trace(model).nodes)
    except Exception:
        return 0
    uses: dict[str, int] = {}
    for node in nodes:
        if node.op in ("call_module", "get_attr"):
            name = str(node.target) if node.op == "call_module" else str(node.target).rpartition(".")[0]
            uses[name] = uses.get(name, 0) + 1
    folded = 0
    for node in nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        norm_name, conv_name = str(node.target), str(before.target)
        norm, conv = modules.get(norm_name), modules.get(conv_name)
        if type(norm) is not nn.BatchNorm2d or type(conv) is not nn.Conv2d or norm.running_mean is None:
            continue
        if uses[norm_name] != 1 or uses[conv_name] != 1 or _hooked(norm) or _hooked(conv):
            continue
        _merge(conv, norm)
        parent, _, leaf = norm_name.rpartition(".")
        setattr(modules[parent], leaf, nn.Identity())
        folded += 1
    return folded


def _merge(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    def exact(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().double()

    assert norm.running_mean is not None
    assert norm.running_var is not None
    weight, bias = fuse_conv_bn_weights(
        conv.weight.detach().double(),
        exact(conv.bias),
        norm.running_mean.double(),
        norm.running_var.double(),
        norm.eps,
        exact(norm.weight),
        exact(norm.bias),
    )
    dtype = conv.weight.dtype
    conv.weight = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
    conv.bias = nn.Parameter(bias.detach().to(dtype), requires_grad=False)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def private_copy(model: nn.Module) -> nn.Module | None:
    """A frozen copy in eval mode; None where the model cannot be copied."""
    try:
        with torch.inference_mode(False):
            private = copy.deepcopy(model)
    except Exception:
        return None
    for parameter in private.parameters():
        parameter.grad = None
    return private.eval().requires_grad_(False)


def bfloat16_copy(module: nn.Module) -> nn.Module:
    """A bfloat16 copy; a linear layer that ends the model stays float32, so that logits keep their digits."""
    half = copy.deepcopy(module).to(torch.bfloat16)
    try:
        nodes = list(fx.Tracer().trace(module).nodes)
    except Exception:
        return half
    end = nodes[-1].args[0]
    if isinstance(end, fx.Node) and end.op == "call_module" and len(end.users) == 1:
        exact, head = module.get_submodule(str(end.target)), half.get_submodule(str(end.target))
        if type(head) is nn.Linear:
            head.load_state_dict(exact.state_dict(), assign=True)
            head.requires_grad_(False)
            head.register_forward_pre_hook(_to_float32)
    return half


def _to_float32(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (arguments[0].float(),)
