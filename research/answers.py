"""How far the answers of a network to the fixed images move with the arithmetic: what tolerances must allow.

    python research/answers.py                   # float32 beside float64, on the CPU
    python research/answers.py --device cuda     # the CPU beside a GPU, both in float32

Three networks of torchvision with random weights. The differences are shares of the root mean square, as
`fpa.evaluation.answers` compares them.
"""

import argparse
import copy

import numpy as np
import torch
import torchvision

from fpa.engine.engine import Engine
from fpa.evaluation.probing import answers_now

NETWORKS = ("resnet18", "resnet50", "resnet152")
SHAPE = torch.Size([3, 224, 224])


def apart(before: list[list[float]] | None, now: list[list[float]] | None) -> float:
    """The root mean square of the difference, as a share of that of the first."""
    old = np.array(before)
    new = np.array(now)
    return float(np.sqrt(np.mean((old - new) ** 2) / np.mean(old**2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", help="the other device; default: the CPU, in float64")
    device = parser.parse_args().device
    for name in NETWORKS:
        torch.manual_seed(0)
        model = torchvision.models.get_model(name).eval()
        other = copy.deepcopy(model).double() if device is None else copy.deepcopy(model)
        ours = answers_now(Engine(model), SHAPE)
        theirs = answers_now(Engine(other.to(device or "cpu")), SHAPE)
        logits = apart(ours.logits, theirs.logits)
        gradients = apart(ours.gradients, theirs.gradients)
        print(f"{name}: logits {logits:.1e}, gradients {gradients:.1e}", flush=True)


if __name__ == "__main__":
    main()
