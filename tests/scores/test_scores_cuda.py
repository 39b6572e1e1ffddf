"""Every score on a GPU: the same as on the CPU, in the same arithmetic."""

import numpy as np
import pytest
import torch

import fpa

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_scores_on_cuda_equal_those_on_the_cpu():
    again = ["max_sensitivity", "mprt_smooth", "mprt_efficient"]
    found = {}
    for device in ("cpu", "cuda"):
        model = fpa.load_model("shapes-fpa", device)
        how = {"scores": ["all", *again], "score_images": 4, "examples": 0, "progress": False}
        few = fpa.Settings(ig_steps=10, sg_samples=3)
        names = ["ig_sum", "vg_abs", "vgx_sum", "sqsg_sum"]
        result = fpa.evaluate(model, "shapes", names, settings=few, count=32, precision="float32", **how)
        found[device] = result.scores
    assert len(found["cpu"]) > 18
    for score, by in found["cpu"].items():
        for name, summary in by.items():
            other = found["cuda"][score][name]
            assert other.used == summary.used, score
            drawn = ("faithfulness_correlation", "sensitivity_n", "infidelity", "infidelity_scaled")
            if score in drawn or name == "sqsg_sum":
                # A generator of another device draws other numbers: the means agree within their intervals.
                allowed = summary.interval + other.interval
            else:
                allowed = 0.02 * max(abs(summary.mean), 1e-3) + 0.02
            if summary.used and score not in again:
                assert np.isclose(summary.mean, other.mean, atol=allowed, rtol=0), (score, name)
