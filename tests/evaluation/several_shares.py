"""What each of several processes does in the tests of shared evaluations; its arguments: what, and a folder.

The images and the network are the same in all of them, and in the test.
"""

import errno
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import fpa
from fpa.data.source import image_source
from fpa.engine.engine import Engine
from fpa.errors import InputError
from fpa.evaluation import loop
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.plan import make_plan
from fpa.evaluation.sharing import share_of
from fpa.explanation import Settings

SIZE = 4
COUNTS = {"even": 24, "uneven": 15, "few": 6, "resumed": 24}
"""Images by folder: six blocks, four of which the last is short, two for three processes, six again."""


def images(count):
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 4)).eval()


def stream(count):
    """The same images, of which nobody knows beforehand how many there are."""
    yield from torch.split(images(count), 5)


def evaluate(folder, count, *, part=None, points=5, data=None, wait=1.0):
    """Evaluate; returns the numbers of the images that this process has computed."""
    computed = []
    real = loop.compute_block

    def counting(block, *rest):
        computed.extend(block.indices)
        return real(block, *rest)

    plan = make_plan(["ig_sum", "vg_abs", "random"], settings=Settings(ig_steps=2), points=points)
    loop.compute_block = counting
    try:
        evaluate_blocks(
            Engine.of(network()),
            image_source(images(count) if data is None else data),
            plan,
            folder,
            block_size=SIZE,
            examples=3,
            progress=False,
            share=share_of(part, wait=wait, device="cpu"),
        )
    finally:
        loop.compute_block = real
    return computed


def in_a_job(output):
    """All that is tested of processes that were started together, in one start of them."""
    rank = int(os.environ["RANK"])
    told = {name: evaluate(output / name, count, part="job") for name, count in COUNTS.items()}
    told["stream"] = evaluate(output / "stream", 15, part="job", data=stream(15))
    made = fpa.evaluate(
        network(), images(10), ["ig_sum", "vg_abs"], folder=output / "python", part="job", points=3,
        ig_steps=2, examples=0, progress=False, device="cpu",
    )  # fmt: skip
    told["python"] = [len(made.evaluation.indices), made.fidelity["ig_sum"].area]
    try:
        evaluate(output / "even", 24, part="job", points=7)
    except InputError as error:
        told["refused"] = str(error)
    (output / f"{rank}.json").write_text(json.dumps(told))


def dying(output):
    """The last process is killed when it has made one block."""
    rank = int(os.environ["SLURM_PROCID"])
    real = loop.EvaluationFolder.write

    def killed(self, number, *rest, **named):
        real(self, number, *rest, **named)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.EvaluationFolder.write = killed
    evaluate(output, 24, part="job")


def without_locks(output):
    """One of two plain runs of the same plan, on a file system that has no locks."""
    import fcntl

    def missing(*_):
        raise OSError(errno.ENOLCK, "no locks here")

    fcntl.flock = missing
    evaluate(output, 24)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        globals()[sys.argv[1]](Path(sys.argv[2]))
    except InputError as problem:
        print(f"refused: {problem}", file=sys.stderr)
        sys.exit(2)
