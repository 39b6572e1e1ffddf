"""A study on CUDA: what is lost of an evaluation and made again gives the same areas."""

import pytest
import torch

from fpa.recipe import load_recipe
from fpa.study import read_study, run_study

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_blocks_made_again_give_every_area_within_five_hundredths(tmp_path):
    recipe = load_recipe("shapes", {"augmentations": ["none", "fpa"], "data.evaluation_images": 1000})
    before = run_study(recipe, tmp_path, device="cuda")
    lost = [tmp_path / name / "curves" / "block-000000.parquet" for name in ("none", "fpa")]
    for path in lost:
        path.unlink()
    run_study(recipe, tmp_path, device="cuda")
    after = read_study(tmp_path)
    for name, model in before.models.items():
        for estimator, score in model.fidelity.items():
            assert abs(score.area - after.models[name].fidelity[estimator].area) < 0.05
