"""Copies of a model that run faster: batch norms folded into convolutions, weights in bfloat16."""

import copy
from collections import Counter

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


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
    nodes = _graph(model)
    # A layer that runs twice, or whose weights are read elsewhere, must stay as it is.
    uses = Counter(
        str(node.target) if node.op == "call_module" else str(node.target).rpartition(".")[0]
        for node in nodes
        if node.op in ("call_module", "get_attr")
    )
    folded = 0
    for node in nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        norm_name = str(node.target)
        conv_name = str(before.target)
        norm = modules.get(norm_name)
        conv = modules.get(conv_name)
        # Subclasses may compute something else; a norm without running statistics has nothing to fold.
        if type(norm) is not nn.BatchNorm2d or type(conv) is not nn.Conv2d or norm.running_mean is None:
            continue
        if uses[norm_name] != 1 or uses[conv_name] != 1 or _hooked(norm) or _hooked(conv):
            continue
        # In float64, so that a weight is rounded once and not at every step of the fusion.
        exact = fuse_conv_bn_eval(copy.deepcopy(conv).double(), copy.deepcopy(norm).double())
        fused = exact.to(conv.weight.dtype).requires_grad_(False)
        conv.weight = fused.weight
        conv.bias = fused.bias
        model.set_submodule(norm_name, nn.Identity())
        folded += 1
    return folded


def _graph(model: nn.Module) -> list[fx.Node]:
    """The operations of a model in order; none where they cannot be followed."""
    try:
        return list(fx.Tracer().trace(model).nodes)
    except Exception:
        return []


def _hooked(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return any((*hooks, module._backward_hooks, module._backward_pre_hooks))


def private_copy(model: nn.Module) -> nn.Module | None:
    """A frozen copy in eval mode; None where the model cannot be copied."""
    try:
        with torch.inference_mode(False):
            private = copy.deepcopy(model)
    except Exception:
        return None
    private.zero_grad()  # gradients were copied too, and are as large as the weights
    return private.eval().requires_grad_(False)


def bfloat16_copy(module: nn.Module) -> nn.Module:
    """A bfloat16 copy; a linear layer that ends the model stays float32, so that logits keep their digits."""
    half = copy.deepcopy(module).to(torch.bfloat16)
    nodes = _graph(module)
    end = nodes[-1].args[0] if nodes else None
    if isinstance(end, fx.Node) and end.op == "call_module" and len(end.users) == 1:
        exact = module.get_submodule(str(end.target))
        last_layer = half.get_submodule(str(end.target))
        if type(last_layer) is nn.Linear:
            last_layer.load_state_dict(exact.state_dict(), assign=True)
            last_layer.requires_grad_(False)
            last_layer.register_forward_pre_hook(lambda _, arguments: (arguments[0].float(),))
    return half
