"""The engine on CUDA: compiled, in low precision, out of memory."""

import numpy as np
import pytest
import torch

from fpa.data.source import image_source
from fpa.engine import Engine, Precision
from fpa.evaluation.description import SubjectFacts
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.plan import make_plan
from fpa.evaluation.shards import read_evaluation
from fpa.explanation import Settings, explain
from fpa.models.architectures import build_model
from fpa.perturbation.curves import perturbation_curves
from fpa.scores.fidelity import Fidelity

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

FEW = Settings(ig_steps=8, sg_samples=3)


@pytest.fixture(scope="module")
def net():
    model = build_model("resnet-small", 8, (3, 32, 32), seed=0).cuda()
    with torch.no_grad():
        for _ in range(5):
            model(torch.randn(64, 3, 32, 32, device="cuda"))
    return model.eval()


@pytest.fixture(scope="module")
def images():
    return torch.randn(48, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def area(curves, name):
    values = (curves.mif[name].cpu().numpy(), curves.lif[name].cpu().numpy(), curves.fractions.numpy())
    return Fidelity.from_curves(*values, normalise="none").area


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_compiled_low_precision_stays_near_float32(net, images, precision):
    exact = Engine(net, precision=Precision(), compile=False)
    fast = Engine(net, precision=Precision(precision, precision), compile=True)
    one, two = (explain(engine, images, settings=FEW) for engine in (exact, fast))
    for name in ("ig_sum", "vgx_sum", "sg_abs"):
        a, b = one[name].flatten(1).double(), two[name].flatten(1).double()
        alike = torch.nn.functional.cosine_similarity(a, b).mean()
        assert alike > (0.999 if precision == "tf32" else 0.97)
    before = perturbation_curves(exact, images, one)
    after = perturbation_curves(fast, images, one)
    for name in one:
        assert torch.equal(before.unmasked, after.unmasked)  # always float32, from the model as given
        spread = before.mif[name].std()
        assert (before.mif[name] - after.mif[name]).abs().mean() < 0.05 * spread


def test_results_do_not_depend_on_the_batch_size(net, images):
    maps = explain(Engine(net, precision=Precision()), images, settings=FEW)
    small, large = (
        perturbation_curves(Engine(net, precision=Precision(), batch_size=size), images, maps)
        for size in (7, 512)
    )
    for name in maps:
        assert abs(area(small, name) - area(large, name)) < 0.01 * abs(small.unmasked).mean().item()


def test_global_switches_come_back(net, images):
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    matmul = torch.get_float32_matmul_precision()
    explain(Engine(net, precision=Precision("tf32", "tf32"), compile=True), images[:4], settings=FEW)
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == before
    assert torch.get_float32_matmul_precision() == matmul


def test_blocks_resume_on_cuda(net, images, tmp_path):
    subject = SubjectFacts(name="net", classes=tuple("abcd"))
    plan = make_plan(settings=FEW)

    def run(chosen, folder):
        source = image_source(chosen)
        evaluate_blocks(Engine(net), source, plan, folder, subject=subject, block_size=16, progress=False)
        return read_evaluation(folder)[0]

    whole = run(images, tmp_path / "a")
    run(images[:32], tmp_path / "b")
    (tmp_path / "b/blocks/block-000001.parquet").unlink()
    again = run(images, tmp_path / "b")
    np.testing.assert_allclose(whole.unmasked, again.unmasked, rtol=1e-4)
    np.testing.assert_allclose(whole.lif["random"], again.lif["random"], rtol=0.05, atol=0.05)


def test_a_full_device_halves_the_batch_and_tells(images):
    model = build_model("resnet50", 10, (3, 224, 224)).cuda().eval()
    total = torch.cuda.get_device_properties(0).total_memory
    pictures = torch.randn(2, 3, 224, 224)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(3 * 2**30 / total)
    try:
        engine = Engine(model, batch_size=512, compile=False)
        with pytest.warns(UserWarning, match="out of memory at 512 rows per batch"):
            maps = explain(engine, pictures, ["ig_sum"], settings=Settings(ig_steps=300))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert maps["ig_sum"].isfinite().all()
