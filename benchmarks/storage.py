"""What 5,000 images and ten estimators take on the disk: the curves, and one score in long form.

    python benchmarks/storage.py

The values are random, so nothing compresses by chance: real curves take no more.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from fpa.evaluation.description import Description, SubjectFacts
from fpa.evaluation.shards import EvaluationFolder
from fpa.evaluation.stored_block import BlockNotes, StoredBlock, curve_column
from fpa.evaluation.stored_plan import StoredPlan
from fpa.explanation.estimator import PAPER

IMAGES = 5000
POINTS = 21


def made_up_description() -> Description:
    """What evaluation.json would say: nothing but the estimators."""
    plan = StoredPlan(
        estimators={name: each.facts(name) for name, each in PAPER.items()},
        masking={"name": "constant"},
        maskings={},
        features="pixels",
        fractions=tuple(step / (POINTS - 1) for step in range(POINTS)),
        outputs=("logit",),
        divided={"logit": True},
        scores={},
        seed=0,
    )
    return Description(plan=plan, model="", block_size=1, images=None, subject=SubjectFacts())


def main() -> None:
    rng = np.random.default_rng(0)
    for block in (32, 1024):  # the blocks of a CPU and of a GPU at 32 px
        with tempfile.TemporaryDirectory() as name:
            folder = EvaluationFolder(name)
            description = replace(made_up_description(), block_size=block)
            for number, start in enumerate(range(0, IMAGES, block)):
                index = np.arange(start, min(start + block, IMAGES))
                columns = dict.fromkeys(("index", "label", "target"), index)
                columns["looks"] = rng.normal(size=(len(index), 16)).astype(np.float32)
                columns["unmasked/logit"] = rng.normal(size=len(index)).astype(np.float32)
                for side in ("mif", "lif"):
                    for estimator in PAPER:
                        curve = rng.normal(size=(len(index), POINTS)).astype(np.float32)
                        columns[curve_column("", "logit", side, estimator)] = curve
                values = {("A", estimator): rng.normal(size=len(index)) for estimator in PAPER}
                folder.write(number, StoredBlock(columns, values, BlockNotes(left_out=[])), description)
            for kind, what in (("block", "curves"), ("scores", "one score")):
                size = sum(path.stat().st_size for path in Path(name).rglob(f"{kind}-*.parquet"))
                print(f"blocks of {block:4} images, {what:9} {size / 2**20:6.2f} MiB")


if __name__ == "__main__":
    main()
