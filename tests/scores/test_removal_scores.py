"""The scores that remove pixels with passes of their own: plain loops, scipy, Captum, a linear model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients, NoiseTunnel, Saliency
from captum.metrics import infidelity as captum_infidelity
from scipy import stats
from torch import nn

import fpa
from blocks import block_of, images, linear, scored
from fpa.evaluation.result import Results
from fpa.explanation import Captum, captum_methods
from fpa.masking import Blur
from fpa.scores import SCORES, Given
from fpa.scores.correlation import random_subsets, spearman
from fpa.scores.faithfulness_correlation import FaithfulnessCorrelation
from fpa.scores.infidelity import random_squares
from fpa.scores.sensitivity_n import SensitivityN
from fpa.scores.single_deletion import GRID
from fpa.seeds import Stream

CORRELATIONS = ("sds", "faithfulness_correlation", "sensitivity_n")
SIDE = 12


@pytest.fixture(scope="module")
def net():
    """A small network that is not linear."""
    torch.manual_seed(3)
    layers = nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * SIDE * SIDE, 3)
    return nn.Sequential(*layers).double().eval()


@pytest.fixture(scope="module")
def batch():
    return images(3, channels=2, side=SIDE)


@pytest.fixture(scope="module")
def maps():
    return torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(4)).double()


@torch.no_grad()
def fall(net, image, mask):
    """What the logit of the class predicted loses without the pixels of a mask [H, W]."""
    logits = net(image[None])[0]
    return float((logits - net((image * ~mask)[None])[0])[logits.argmax()])


def test_insertion_equals_a_plain_loop(net, batch, maps):
    values = scored("insertion", block_of(net, batch, {"map": maps}, points=9))["map"]
    for image, importance, value in zip(batch, maps, values, strict=True):
        blurred, target = Blur().fill(image[None])[0], int(net(image[None]).argmax())
        order = importance.flatten().argsort(descending=True)
        curve = []
        for share in np.linspace(0, 1, 9):
            canvas = blurred.clone().flatten(1)
            seen = order[: round(share * SIDE**2)]
            canvas[:, seen] = image.flatten(1)[:, seen]
            curve.append(net(canvas.view(1, 2, SIDE, SIDE)).softmax(1)[0, target].item())
        assert value == pytest.approx(np.trapezoid(curve, dx=1 / 8), rel=1e-9)


def test_insertion_under_a_masking_that_ends_early_goes_to_the_end(net, batch, maps):
    fractions = [step / 20 for step in range(21)]
    whole = scored("insertion", block_of(net, batch, {"map": maps}, fractions=fractions))
    block = block_of(net, batch, {"map": maps}, fractions=fractions[:-1], masking="road")
    np.testing.assert_allclose(scored("insertion", block)["map"], whole["map"], rtol=1e-9)
    told = {"estimators": block.estimators, "masking": block.task.masking, "fractions": fractions[:-1]}
    assert SCORES["insertion"].passes(Given(**told)).forwards == 19 + 1
    # Curves that somebody ends earlier are taken as they are.
    early = scored("insertion", block_of(net, batch, {"map": maps}, fractions=[0, 0.25, 0.5], masking="road"))
    assert max(early["map"]) <= 0.5


def test_insertion_to_the_end_is_another_plan_than_insertion_that_ended_early(net):
    """Only there: blocks of other maskings are found by the plans that earlier versions wrote."""
    for masking, ended in (("road", {"until": 1.0}), ("mean", {}), ("blur", {})):
        plan = fpa.make_plan(["vg_abs"], masking=masking, scores=["insertion"])
        facts = plan.to_json(fpa.Engine(net))["scores"]["insertion"]
        known = {"title", "source", "higher_is_better", "sigma"}
        assert {name: value for name, value in facts.items() if name not in known} == ended


def test_road_is_a_with_imputed_pixels_up_to_95_percent(net, batch, maps):
    fractions = [0, 0.3, 0.6, 0.95, 1]
    block = block_of(net, batch, {"map": maps, "negated": -maps}, fractions=fractions)
    values = scored("road", block)
    np.testing.assert_allclose(values["negated"], [-value for value in values["map"]], rtol=1e-9)
    alone = fpa.perturbation_curves(net, batch, maps, fractions=fractions[:4], masking="road")
    area = np.trapezoid(alone.lif["map"] - alone.mif["map"], alone.fractions)
    expected = np.where(alone.unmasked > 0, 100 * area / alone.unmasked, np.nan)
    np.testing.assert_allclose(values["map"], expected, rtol=1e-9)
    assert SCORES["road"].passes(Given(block.estimators, fractions, block.task.masking)).forwards == 12
    assert SCORES["road"].fractions([0, 0.5, 0.9, 1]) == [0, 0.5, 0.9, 0.95]  # always up to where it says


def test_road_refuses_features_that_leave_nothing_before_any_work(net, batch, tmp_path):
    how = {"scores": ["road"], "features": SIDE // 2, "points": 3, "folder": tmp_path, "progress": False}
    with pytest.raises(fpa.InputError, match=r"removing 95 % of 4 features removes all of them"):
        fpa.evaluate(net, batch, ["vg_abs", "vgx_sum"], **how)
    assert not (tmp_path / "blocks").exists()


def subsets(block, score):
    """The masks [N, R, H, W] that a score removes, in groups over which it correlates."""
    if score == "sds":
        cells = torch.arange(GRID**2).view(GRID, GRID).repeat_interleave(SIDE // GRID, 0)
        masks = cells.repeat_interleave(SIDE // GRID, 1) == torch.arange(GRID**2)[:, None, None]
        return [masks.expand(len(block.labels), -1, -1, -1)]
    if score == "faithfulness_correlation":
        return [random_subsets(block, [14], 100, Stream.SUBSETS)]
    sizes = [1, 4, 13, 39, 115]
    return random_subsets(block, sizes, 40, Stream.SIZES).split(40, 1)


@pytest.mark.parametrize("score", CORRELATIONS)
def test_correlations_equal_scipys(net, batch, maps, score):
    block = block_of(net, batch, {"map": maps})
    for row, value in enumerate(scored(score, block)["map"]):
        parts = []
        for masks in subsets(block, score):
            told = [float(maps[row][mask].sum()) for mask in masks[row]]
            seen = [fall(net, batch[row], mask) for mask in masks[row]]
            correlation = stats.spearmanr if score == "sds" else stats.pearsonr
            parts.append(correlation(told, seen).statistic)
        assert value == pytest.approx(np.mean(parts), abs=1e-9)


@pytest.mark.parametrize("name", ["vg_abs", "vgx_abs~2", "sqsg_sum", "edges", "cam:gradcam"])
def test_single_deletion_scores_maps_without_a_sign_as_their_authors_do(net, batch, name):
    """The authors' formula: scipy's rank correlation of sums over cells and falls, whatever the sign."""
    block = block_of(net, batch, estimators=[name])
    cells = subsets(block, "sds")[0]
    for row, value in enumerate(scored("sds", block)[name]):
        told = [float(block.maps[name][row][cell].sum()) for cell in cells[row]]
        seen = [fall(net, batch[row], cell) for cell in cells[row]]
        assert value == pytest.approx(stats.spearmanr(told, seen).statistic, abs=1e-9)


def test_random_sets_have_their_size_and_differ(net, batch, maps):
    block = block_of(net, batch, {"map": maps})
    for masks, size in zip(subsets(block, "sensitivity_n"), [1, 4, 13, 39, 115], strict=True):
        assert (masks.sum((2, 3)) == size).all()
    hit = subsets(block, "faithfulness_correlation")[0].float().mean((0, 1))
    assert 0.02 < hit.min() < hit.max() < 0.25  # every pixel about one time in ten


@pytest.mark.parametrize("score", CORRELATIONS)
def test_on_a_linear_model_contributions_are_right_and_their_negatives_wrong(score):
    net, batch = linear(side=SIDE), images(3, side=SIDE)
    weight = net[1].weight.detach()[net(batch).argmax(1)].view(-1, SIDE, SIDE)
    right = weight * batch[:, 0]
    flat = torch.ones_like(right)
    maps = {"right": right, "scaled": 3 * right, "negated": -right, "flat": flat}
    values = scored(score, block_of(net, batch, maps))
    for name, expected in {"right": 1, "scaled": 1, "negated": -1}.items():
        np.testing.assert_allclose(values[name], expected, atol=1e-9)
    assert np.isnan(values["flat"]).all()  # a sum that is the same for all sets says nothing


@pytest.mark.parametrize("scaled", [False, True])
def test_infidelity_equals_captums(net, batch, scaled):
    name = "infidelity_scaled" if scaled else "infidelity"
    block = block_of(net, batch, estimators=["vg_sum", "vgx_sum", "ig_abs", "sqsg_sum"])
    values = scored(name, block)
    masks = random_squares(block, 100)[:, :, None]
    side = masks.flatten(2).sum(2).double().sqrt()
    assert side.min() == 1
    assert side.max() == SIDE // 2

    def removed(inputs):  # Captum repeats every image for its perturbations
        gone = inputs * masks.flatten(0, 1)
        return gone, inputs - gone

    def inside(inputs):  # for attributions that contain the input: which pixels, not by how much they change
        return masks.flatten(0, 1).expand_as(inputs).double(), removed(inputs)[1]

    perturbations = {"vg_sum": removed, "vgx_sum": inside, "ig_abs": inside}
    for key, perturb in perturbations.items():
        raw = block.raw_maps[key].expand_as(batch)
        how = {"target": block.task.targets, "n_perturb_samples": 100, "normalize": scaled}
        expected = captum_infidelity(net, perturb, batch, raw, **how)
        np.testing.assert_allclose(values[key], expected.detach(), rtol=1e-8)
    assert np.isnan(values["sqsg_sum"]).all()  # squares of gradients have no sign


def gradient(model, images, targets):
    """The gradient of the logit, as people write it."""
    images = images.detach().requires_grad_()
    return torch.autograd.grad(model(images).gather(1, targets[:, None]).sum(), images)[0]


def gradient_times_input(model, images, targets):
    return gradient(model, images, targets) * images


def normalised(model, images, targets):
    """Contributions that are brought to a largest one of 1."""
    values = gradient_times_input(model, images, targets)
    return values / values.abs().amax((1, 2, 3), keepdim=True)


def occluded(model, images, targets):
    """What the logit loses without each column."""
    columns = torch.arange(images.shape[-1])
    logits = model(images).gather(1, targets[:, None])
    falls = [logits - model(images * (columns != each)).gather(1, targets[:, None]) for each in columns]
    return (torch.stack(falls, 2) / images.shape[2])[:, :, None, :].expand_as(images) / images.shape[1]


@pytest.mark.parametrize("masking", ["zero", "mean"])
def test_gradients_and_contributions_from_elsewhere_score_as_the_same_maps_by_name(net, batch, masking):
    """Equal maps have equal infidelity, whoever made them, and whether they say what they are or not."""
    declared = {contains: fpa.Estimator(gradient, contains_input=contains) for contains in (False, True)}
    estimators = {
        "vg_sum": "vg_sum",
        "vgx_sum": "vgx_sum",
        "Captum's gradient": "captum:Saliency_sum",
        "Captum's contribution": "captum:InputXGradient_sum",
        "gradient": gradient,
        "gradient, absolute": fpa.Estimator(gradient, "abs"),
        "gradient, said": declared[False],
        "contribution": gradient_times_input,
        "contribution, made here": fpa.Estimator(gradient, times_input=True),
        "normalised": normalised,
        "occluded": occluded,
        "occluded, said": fpa.Estimator(occluded, contains_input=True),
        "path": IntegratedGradients(net),
        "path without the input": IntegratedGradients(net, multiply_by_inputs=False),
    }
    result = fpa.evaluate(
        net,
        batch,
        estimators,
        masking=masking,
        scores=["infidelity", "infidelity_scaled"],
        points=3,
        progress=False,
    )
    same = {
        "vg_sum": ["Captum's gradient", "gradient", "gradient, absolute", "gradient, said"],
        "vgx_sum": ["Captum's contribution", "contribution", "contribution, made here"],
        "occluded, said": ["occluded"],
        "path": ["path without the input"] if masking == "zero" else [],
    }
    for score, values in result.evaluation.values.items():
        for name, others in same.items():
            for other in others if score != "A" else ():
                np.testing.assert_allclose(values[other], values[name], rtol=1e-6, err_msg=other)
    scaled = result.evaluation.values["infidelity_scaled"]
    np.testing.assert_allclose(scaled["normalised"], scaled["vgx_sum"], rtol=1e-6)
    assert not np.allclose(scaled["vg_sum"], scaled["vgx_sum"]) or masking == "zero"


def test_which_of_captums_methods_are_gradients_is_what_captum_says():
    """Of those that explain the input, by name and as objects; windows and layers have no gradient of it."""
    from captum.attr import GradientAttribution, LayerAttribution

    conv = nn.Conv2d(1, 1, 1)
    model = nn.Sequential(conv, nn.Flatten())
    for method in captum_methods():
        by_name = Captum(method)
        explainer = by_name._class(model, conv) if by_name._takes_layer else by_name._class(model)
        of_input = isinstance(explainer, GradientAttribution) and not isinstance(explainer, LayerAttribution)
        expected = of_input and not explainer.multiplies_by_inputs
        assert by_name.is_gradient == fpa.Estimator(explainer).is_gradient == expected, method
    assert fpa.Estimator(NoiseTunnel(Saliency(model))).is_gradient


def test_the_best_scale_is_not_negative(net, batch):
    """A map and its negative do not score the same: the negative is no better than no map at all."""
    block = block_of(net, batch, estimators=["ig_sum"])
    negated = replace(block, known_raw_maps={"ig_sum": -block.raw_maps["ig_sum"]}, _shared={})
    nothing = replace(block, known_raw_maps={"ig_sum": 0 * block.raw_maps["ig_sum"]}, _shared={})
    right, wrong, zero = (scored("infidelity_scaled", each)["ig_sum"] for each in (block, negated, nothing))
    assert (np.array(right) < wrong).all()
    np.testing.assert_allclose(wrong, zero, rtol=1e-12)


@pytest.mark.parametrize("shape", [(12, 12), (9, 16)])
def test_every_pixel_is_as_often_in_a_square(shape):
    batch = images(4, side=16)[..., : shape[0], : shape[1]]
    model = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], 2)).double()
    masks = random_squares(block_of(model, batch), 20_000)
    sides = range(1, min(shape) // 2 + 1)
    expected = np.mean([np.prod([side / (length + side - 1) for length in shape]) for side in sides])
    np.testing.assert_allclose(masks.double().mean((0, 1)), expected, rtol=0.05)
    assert masks.any(3).any(2).all()  # each removes something


def test_models_are_compared_by_infidelity_over_the_mean_squared_fall(net, batch, tmp_path):
    """Logits twice as large explain nothing better or worse, and change no prediction."""
    twice = nn.Sequential(net, Twice())
    estimators = ["vg_sum", "vgx_sum", "sqsg_sum"]
    how = {"scores": ["infidelity", "infidelity_scaled"], "points": 3, "progress": False}
    models = {
        name: fpa.evaluate(each, batch, estimators, name=name, **how)
        for name, each in {"net": net, "twice": twice}.items()
    }
    first = models["net"].save(tmp_path / "net")
    models["net"] = fpa.load_result(first)
    for score in ("infidelity", "infidelity_scaled"):
        ours, theirs = (model.scores[score]["vg_sum"] for model in models.values())
        assert theirs.mean == pytest.approx(4 * ours.mean, rel=1e-4)
        shown = fpa.show.tables.markdown(Results("both", models)).split(f"{score} over the mean squared fall")
        rows = [line.split("|")[2:4] for line in shown[1].splitlines() if line.startswith("| VG")][:2]
        assert len(rows) == 2
        assert all(mine.strip() == other.strip() != "" for mine, other in rows)
    # A map of zeros has 1, and the best scale of at least 0 is never worse than that.
    scaled = models["net"].comparable("infidelity_scaled")
    falls = [
        np.mean([fall(net, image, mask) ** 2 for mask in masks])
        for image, masks in zip(batch, random_squares(block_of(net, batch), 100), strict=True)
    ]
    mean = models["net"].scores["infidelity_scaled"]["vg_sum"].mean
    assert scaled["vg_sum"].mean == pytest.approx(mean / np.mean(falls), rel=1e-5)
    assert scaled["vg_sum"].mean <= 1
    assert np.isnan(scaled["sqsg_sum"].mean)
    assert " over the mean squared fall" not in fpa.show.tables.markdown(models["net"].results)


class Twice(nn.Module):
    def forward(self, logits):
        return 2 * logits


def test_on_a_linear_model_gradients_and_contributions_have_no_infidelity():
    net, batch = linear(side=SIDE), images(2, side=SIDE)
    block = block_of(net, batch, estimators=["vg_sum", "vg_abs", "ig_sum", "vgx_sum"])
    for name in ("infidelity", "infidelity_scaled"):
        for values in scored(name, block).values():
            np.testing.assert_allclose(values, 0, atol=1e-18)
    twice = {name: 2 * raw for name, raw in block.raw_maps.items()}
    doubled = replace(block, known_raw_maps=twice, _shared={})
    assert min(scored("infidelity", doubled)["ig_sum"]) > 1e-6
    np.testing.assert_allclose(scored("infidelity_scaled", doubled)["ig_sum"], 0, atol=1e-18)


@pytest.mark.parametrize("score", [*CORRELATIONS, "insertion", "infidelity", "infidelity_scaled"])
def test_every_batch_size_and_every_part_of_the_images_gives_the_same(net, batch, score):
    whole = scored(score, block_of(net, batch, estimators=["ig_sum", "random"]))
    for engine, rows in ((fpa.Engine(net, batch_size=7), [0, 1, 2]), (net, [2, 0])):
        part = block_of(engine, batch[rows], estimators=["ig_sum", "random"], indices=rows)
        for name, values in scored(score, part).items():
            np.testing.assert_allclose(values, np.array(whole[name])[rows], rtol=1e-6, atol=1e-9)


def test_blurred_twins_have_the_sign_of_their_original(net, batch):
    block = block_of(net, batch, estimators=["vgx_sum~2", "vgx_abs~2", "vg_abs"])
    known = np.isfinite([*scored("infidelity", block).values()]).all(1).tolist()
    assert known == [True, False, True]


def test_passes_that_scores_share_are_counted_once():
    plan = fpa.make_plan(["ig_sum"], points=3, scores=["infidelity", "infidelity_scaled", "insertion"])
    passes, *of_scores = plan.work(7)
    assert passes.values == {"gradients": 200, "forwards": 104, "images": 7}
    assert [(note.values["scores"], note.values["forwards"]) for note in of_scores] == [
        (["infidelity", "infidelity_scaled"], 100),
        (["insertion"], 2),
    ]
    assert plan.passes == 200 + 2 + 100 + 2


def test_a_function_without_negative_values_has_no_infidelity(net, batch):
    """It counts as unsigned, as everywhere."""
    own = {"mine": lambda model, images, targets: images.abs().sum(1), "ig_sum": "ig_sum"}
    how = {"settings": fpa.Settings(2, 2), "points": 3, "progress": False, "scores": ["infidelity"]}
    values = fpa.evaluate(net, batch, own, **how).evaluation.values["infidelity"]
    assert np.isnan(values["mine"]).all()
    assert np.isfinite(values["ig_sum"]).all()


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan"), "a tenth"])
def test_sets_of_pixels_must_leave_a_choice(share):
    with pytest.raises(fpa.InputError, match="share must be "):
        FaithfulnessCorrelation(share=share)
    with pytest.raises(fpa.InputError, match="share must be "):
        SensitivityN(shares=(0.1, share))


def test_rank_scores_do_not_see_an_increasing_transform(net, batch, maps):
    values = scored("insertion", block_of(net, batch, {"map": maps, "transformed": maps.exp()}))
    assert values["map"] == values["transformed"]


def test_ties_share_their_mean_rank():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (2, 5, 20)).astype(float)
    expected = [stats.spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(spearman(torch.tensor(x), torch.tensor(y)), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("score", "estimators", "about", "reason"),
    [
        ("sds", ["vg_abs", "random"], {}, None),
        ("idsds", ["cam:gradcam"], {"augmentation": "cell"}, None),
        ("idsds", ["ig_sum"], {"augmentation": "fpa"}, "needs a model fine-tuned with deleted cells"),
        ("idsds", ["ig_sum"], {"augmentation": "cell"}, None),
        ("infidelity", ["sqsg_sum", "random"], {}, "needs signed raw maps"),
        ("infidelity", ["vg_abs"], {}, None),
        (
            "infidelity",
            ["vg_abs"],
            {"masking": fpa.get_masking(lambda images, mask: images)},
            "needs a masking",
        ),
    ],
)
def test_what_cannot_be_had_says_why(score, estimators, about, reason):
    facts = {"fractions": [0, 1], "masking": fpa.get_masking(), **about}
    missing = SCORES[score].missing(Given(fpa.get_estimators(estimators), **facts))
    assert missing is None if reason is None else missing.startswith(reason)


def test_fine_tuning_with_cells_makes_single_deletion_in_domain(tmp_path):
    torch.manual_seed(0)
    batch, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 2
    card = fpa.ModelCard("resnet-small", ["a", "b"], (3, 8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    model.card = card
    chosen = {"points": 3, "examples": 0, "progress": False}
    with pytest.raises(fpa.InputError, match="the score idsds needs a model fine-tuned with deleted cells"):
        fpa.evaluate(model, batch, ["ig_sum", "vg_sum"], scores="idsds", **chosen)
    tuned = fpa.finetune(model, (batch, labels), epochs=1, batch_size=8, fpa=fpa.Cell(), device="cpu")
    assert tuned.card.augmentation == "cell"
    assert tuned.card.recipe["cell"] == {"p": 0.5, "grid": 4}
    result = fpa.evaluate(tuned, batch, ["ig_sum", "vg_sum"], scores="all", **chosen)
    assert "idsds" in result.scores
    assert result.about["scores_left_out"]["sds"] == "is called idsds on this model"


def test_a_cell_is_removed_from_as_many_images_as_asked():
    augment = fpa.Cell(p=0.5, generator=torch.Generator().manual_seed(0))
    masks = augment.mask(torch.zeros(400, 1, 8, 12))
    cells = masks.unfold(1, 2, 2).unfold(2, 3, 3).flatten(3)
    assert (cells.all(3) == cells.any(3)).all()  # whole cells or nothing
    lost = cells.all(3).flatten(1)
    assert set(lost.sum(1).tolist()) == {0, 1}
    assert 160 < lost.any(1).sum() < 240
    assert lost.any(0).all()  # every cell in its turn
