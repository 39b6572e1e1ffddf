"""What an evaluation of 5,000 images and ten estimators takes on the disk.

    python benchmarks/storage.py

The curves are those of a small network, so that they compress as real ones do; the size depends on the numbers
of images, estimators, points and scores alone, not on the size of the images.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import fpa
from fpa.explanation import Settings

IMAGES = 5000


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 10)).eval()
    images = torch.randn(IMAGES, 3, 8, 8)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(ig_steps=2, sg_samples=2)
        fpa.evaluate(model, images, settings=settings, folder=folder, examples=0, progress=False)
        for kind in ("block", "scores"):
            size = sum(path.stat().st_size for path in Path(folder).rglob(f"{kind}-*.parquet"))
            print(f"{kind:7} {size / 2**20:6.2f} MiB")


if __name__ == "__main__":
    main()
