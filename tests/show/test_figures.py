import errno
import logging
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colors
from matplotlib.figure import Figure
from PIL import Image

from fpa.errors import InputError
from fpa.evaluation.result import Result
from fpa.scores.fidelity import common_images
from fpa.show import figures
from fpa.show.names import model_looks
from fpa.training.augment import FPA, Rectangle
from studies import SIGNED, described, made_up_evaluation, made_up_study, with_plan, with_signs

pytestmark = pytest.mark.drawn

BLUE, RED, GREY = "#0072B2", "#C8102E", "#8C8C8C"


@pytest.fixture(scope="module")
def study():
    return made_up_study()


def changed(study, curves=lambda name, values: values, unmasked=None, names=None):
    """The study with other curves or names of estimators, scored anew."""
    names = names or {}

    def called(values):
        return {names.get(name, name): value for name, value in values.items()}

    evaluations = {
        key: replace(
            model.evaluation,
            unmasked=model.evaluation.unmasked if unmasked is None else unmasked,
            mif=called({name: curves(name, each.copy()) for name, each in model.evaluation.mif.items()}),
            lif=called({name: curves(name, each.copy()) for name, each in model.evaluation.lif.items()}),
            importance=called(model.evaluation.importance),
        )
        for key, model in study.models.items()
    }
    estimators = called(study.first.plan["estimators"])
    estimators |= {new: {"sign": estimators[new]["sign"]} for new in names.values()}
    keep = common_images(*(evaluation.unmasked for evaluation in evaluations.values()))
    models = {}
    for key, old in study.models.items():
        description = described(old, plan=old.plan | {"estimators": estimators}).description
        examples = replace(old.examples, maps=called(old.examples.maps), ranks=called(old.examples.ranks))
        models[key] = Result.of(key, evaluations[key], description, keep=keep, examples=examples)
    return replace(study, models=models)


def line(axis, label):
    (found,) = [line for line in axis.get_lines() if line.get_label() == label]
    return found


def of_colour(axis, colour):
    return [line for line in axis.get_lines() if colors.same_color(line.get_color(), colour)]


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def plain_mean(evaluation, side, estimator):
    """The mean of the normalised curves, image by image and point by point."""
    rows = []
    for image, unmasked in enumerate(evaluation.unmasked):
        curve = [float(value) for value in getattr(evaluation, side)[estimator][image]]
        if np.isfinite(curve).all() and unmasked > 0:
            rows.append([value / unmasked for value in curve])
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize(
    ("signed", "columns"),
    [
        (True, ["random", "ig_sum", "vgx_sum", "sgx_sum"]),
        (False, ["random", "ig_abs", "vg_abs", "vgx_abs", "sg_abs", "sgx_abs", "sqsg_sum"]),
    ],
)
def test_curves_are_means_of_normalised_curves_mif_above_lif(study, signed, columns):
    axes = np.array(figures.perturbation_curves(study, signed).axes).reshape(2, -1)
    assert axes.shape[1] == len(columns)
    for row, side in zip(axes, ("mif", "lif"), strict=True):
        assert row[0].get_ylabel().startswith(side.upper())
        for axis, estimator in zip(row, columns, strict=True):
            for augmentation, model in study.models.items():
                drawn = line(axis, augmentation)
                assert drawn.get_xdata() == pytest.approx(np.arange(21) / 20)
                assert drawn.get_ydata() == pytest.approx(plain_mean(model.evaluation, side, estimator))
    looks = {(drawn.get_color(), str(drawn._unscaled_dash_pattern)) for drawn in axes[0, 0].get_lines()[:3]}
    assert len({colour for colour, _ in looks}) == len({dashes for _, dashes in looks}) == 3


def test_the_band_is_the_95_percent_interval_of_the_mean(study):
    axis = figures.perturbation_curves(study).axes[1]
    values = study.models["fpa"].evaluation.mif["ig_sum"] / study.models["fpa"].evaluation.unmasked[:, None]
    half = 1.96 * values.std(0, ddof=1) / np.sqrt(len(values))
    (band,) = [band for band in axis.collections if colors.same_color(band.get_facecolor()[0, :3], BLUE)]
    edges = band.get_paths()[0].vertices[:, 1]
    for edge in (values.mean(0) - half, values.mean(0) + half):
        assert all(np.abs(edges - value).min() < 1e-12 for value in edge)


def test_axes_hold_all_values_negative_or_far_above_one_and_a_row_shares_them(study):
    far = changed(study, lambda name, values: np.hstack([values[:, :1], 60 * values[:, 1:] - 30]))
    figure = figures.perturbation_curves(far)
    for row in np.array(figure.axes).reshape(2, -1):
        assert len({axis.get_ylim() for axis in row}) == 1
        low, high = row[0].get_ylim()
        values = np.concatenate([line(axis, name).get_ydata() for axis in row for name in far.models])
        assert low < values.min() < -1
        assert high > values.max() > 30


def test_images_that_are_not_finite_or_not_positive_are_left_out(study):
    def spoil(name, values):
        values[3] = np.nan
        return values

    unmasked = study.models["fpa"].evaluation.unmasked.copy()
    unmasked[5] = -1.0
    spoilt = changed(study, spoil, unmasked)
    axis = figures.perturbation_curves(spoilt).axes[1]
    drawn = line(axis, "fpa").get_ydata()
    assert np.isfinite(drawn).all()
    assert drawn == pytest.approx(plain_mean(spoilt.models["fpa"].evaluation, "mif", "ig_sum"))


def test_one_image_has_a_curve_and_no_band(study):
    one = study.models["fpa"]
    fidelity = {name: one.evaluation.fidelity(name, keep=np.arange(40) == 2) for name in one.fidelity}
    single = replace(study, models={"fpa": replace(one, fidelity=fidelity)})
    drawn = line(figures.perturbation_curves(single).axes[1], "fpa").get_ydata()
    assert drawn == pytest.approx(one.evaluation.mif["ig_sum"][2] / one.evaluation.unmasked[2])
    assert np.isfinite(figures.fidelity_dots(single).axes[0].get_xlim()).all()


def test_lif_curves_stand_above_the_sorted_scores_on_one_x_axis(study):
    figure = figures.lif_over_scores(study, "none", ["vgx_sum", "ig_abs"])
    above, below = np.array(figure.axes).reshape(2, 2)
    model = study.models["none"]
    for top, bottom, name in zip(above, below, ("vgx_sum", "ig_abs"), strict=True):
        assert line(top, "none").get_ydata() == pytest.approx(plain_mean(model.evaluation, "lif", name))
        assert bottom.get_lines()[0].get_ydata() == pytest.approx(model.evaluation.importance[name])
        assert bottom.get_lines()[0].get_xdata()[[0, -1]].tolist() == [0, 1]
        assert top.get_xlim() == bottom.get_xlim()
    assert "50% of the pixels" in " ".join(texts(below[0]))
    with pytest.raises(InputError, match="'ig_som': did you mean 'ig_sum'"):
        figures.lif_over_scores(study, "none", ["ig_som"])
    with pytest.raises(InputError, match="unknown model 'fap'"):
        figures.lif_over_scores(study, "fap")


def test_the_area_in_the_title_is_that_between_the_curves():
    x, mif, lif = [0, 0.25, 1], [1, 0.5, -0.5], [1, 3, 0]
    area = 100 * (0.25 * (0 + 2.5) / 2 + 0.75 * (2.5 + 0.5) / 2)
    axis = figures.definition_of_area(x, mif, lif).axes[0]
    assert axis.get_title() == f"Fidelity A = {area:.1f}"
    assert line(axis, "MIF").get_ydata().tolist() == mif
    assert line(axis, "LIF").get_ydata().tolist() == lif
    assert {"MIF", "LIF", "A"} <= set(texts(axis))
    reverse = figures.definition_of_area(x, lif, mif).axes[0]
    assert reverse.get_title() == f"Fidelity A = {-area:.1f}"


@pytest.mark.parametrize("level", [0.5, 0.9, 1.0])
def test_the_share_that_carries_the_score_is_the_smallest(level):
    scores = np.random.default_rng(1).standard_t(2, (9, 11))
    for share, part in zip(
        figures.share_carrying(scores, level), (scores[scores > 0], -scores[scores < 0]), strict=True
    ):
        carried, pixels = 0.0, 0
        for score in sorted(part, reverse=True):
            if carried >= level * part.sum() * (1 - 1e-12):
                break
            carried, pixels = carried + score, pixels + 1
        assert share == pixels / scores.size
    assert figures.share_carrying(np.full((2, 5), 0.1), 0.9) == (0.9, 0.0)


def test_the_truncated_map_keeps_the_largest_of_both_signs():
    scores = np.random.default_rng(2).permutation(np.linspace(-1, 0.9, 400)).reshape(20, 20)
    kept = figures.truncated(scores)
    threshold = np.percentile(np.abs(scores), 98)
    for before, after in zip(scores.flat, kept.flat, strict=True):
        assert after == (before if abs(before) >= threshold else 0)
    assert (kept != 0).sum() == 8
    assert (figures.truncated(-scores) == -kept).all()
    both = figures.truncated([[5.0, -5.0, 1.0, 2.0]], 75)
    assert both.tolist() == [[5, -5, 0, 0]]


def test_the_sign_panel_shows_the_image_its_maps_and_its_own_curves(study):
    which, model = 2, study.models["fpa"]
    figure = figures.sign_fluctuation(study, "fpa", which, "vgx_sum")
    image, signed, truncated, curves, negative, positive = figure.axes[:6]
    scores = model.examples.maps["vgx_sum"][which].astype(np.float64)
    assert (image.images[0].get_array() == model.examples.images[which].transpose(1, 2, 0)).all()
    assert (signed.images[0].get_array() == scores).all()
    assert (truncated.images[0].get_array() == figures.truncated(scores)).all()
    for axis in (signed, truncated):
        low, high = axis.images[0].get_clim()
        assert high == -low == pytest.approx(np.percentile(np.abs(scores), 99))
    for label in ("MIF", "LIF"):
        curve = getattr(model.evaluation, label.lower())["vgx_sum"][which] / model.evaluation.unmasked[which]
        assert line(curves, label).get_ydata() == pytest.approx(curve)
    assert negative.get_lines()[0].get_ydata() == pytest.approx(sorted(scores[scores < 0]))
    assert positive.get_lines()[0].get_ydata() == pytest.approx(sorted(scores[scores > 0], reverse=True))
    for axis, share in zip((positive, negative), figures.share_carrying(scores, 0.9), strict=True):
        assert any(text.startswith(f"{share:.1%} of the pixels carry 90%") for text in texts(axis))


def test_the_sign_panel_finds_the_curves_by_the_number_of_the_image(study):
    model = study.models["fpa"]
    moved = replace(model, examples=replace(model.examples, indices=np.array([7, 3, 11, 0])))
    figure = figures.sign_fluctuation(replace(study, models={"fpa": moved}), "fpa", 1)
    drawn = line(figure.axes[3], "LIF").get_ydata()
    assert drawn == pytest.approx(model.evaluation.lif["ig_sum"][3] / model.evaluation.unmasked[3])
    lost = replace(model, examples=replace(model.examples, indices=np.array([70, 3, 11, 0])))
    with pytest.raises(InputError, match="there are no curves of image 70"):
        figures.sign_fluctuation(replace(study, models={"fpa": lost}), "fpa", 0)


def test_the_sign_panel_takes_unsigned_and_constant_maps_and_refuses_broken_ones():
    image, x, curve = np.zeros((1, 4, 4), dtype=np.uint8), [0, 0.5, 1], [2.0, 1.0, 0.0]
    for scores in (np.zeros((4, 4)), np.ones((4, 4))):
        assert "no negative scores" in texts(figures.sign_panel(image, scores, x, curve, curve))
    with pytest.raises(InputError, match="finite"):
        figures.sign_panel(image, np.full((4, 4), np.nan), x, curve, curve)
    with pytest.raises(InputError, match="starts at -1"):
        figures.sign_panel(image, np.ones((4, 4)), x, [-1.0, 0.0, 0.0], [-1.0, 0.0, 0.0])


@pytest.mark.parametrize(("which", "estimator", "message"), [(4, "ig_sum", "image 4"), (0, "ig", "unknown")])
def test_the_sign_panel_names_what_a_study_does_not_have(study, which, estimator, message):
    with pytest.raises(InputError, match=message):
        figures.sign_fluctuation(study, "fpa", which, estimator)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_examples_show_masked_pixels_as_the_fill_and_the_others_as_they_are(channels):
    rng = np.random.default_rng(0)
    images, fill = rng.integers(0, 256, (2, 3, channels, 8, 8), dtype=np.uint8)
    masks = rng.random((3, 8, 8)) < 0.3
    axes = np.array(figures.fpa_examples(images, masks, fill=fill).axes).reshape(2, 3)
    for n in range(3):
        original, perturbed = (axis.images[0].get_array() for axis in axes[:, n])
        assert (perturbed[~masks[n]] == original[~masks[n]]).all()
        if channels == 3:
            assert (perturbed[masks[n]] == fill[n].transpose(1, 2, 0)[masks[n]]).all()
        if channels == 1:
            assert (original == images[n].transpose(1, 2, 0)).all()
        assert axes[1, n].get_xlabel() == f"{masks[n].mean():.0%} masked"


def test_examples_are_drawn_from_the_augmentation_by_a_seed():
    images = np.full((6, 3, 24, 24), 255, dtype=np.uint8)

    def shares(augment, seed):
        axes = figures.fpa_examples(images, augment, seed=seed).axes[6:]
        return [float((axis.images[0].get_array() == 128).mean()) for axis in axes]

    augment = FPA(p=0.1, p1_max=0.25)
    first = shares(augment, 0)
    assert first == shares(augment, 0) != shares(augment, 1)
    assert min(first) > 0, "every image is shown perturbed, whatever p"
    assert max(first) > 1.5 * min(first), "p1 differs from image to image"
    assert augment.p == 0.1
    assert min(shares(Rectangle(p=0.1), 0)) > 0.01
    with pytest.raises(InputError, match=r"masks must be bool \[6, 24, 24\], got float64"):
        figures.fpa_examples(images, np.zeros((6, 24, 24)))


def test_dots_stand_at_the_areas_with_their_intervals_and_hollow_ones_at_the_published(study):
    paper = replace(study, published={"fpa": {"ig_sum": (59.6, 0.7), "vg_abs": (16.9, 0.5)}})
    axis = figures.fidelity_dots(paper).axes[0]
    (bars,) = [bars for bars in axis.containers if bars.get_label() == "fpa"]
    fidelity = study.models["fpa"].fidelity
    dots, _, (segments,) = bars
    assert dots.get_xdata() == pytest.approx([fidelity[name].area for name in study.estimators])
    widths = [segment[1, 0] - segment[0, 0] for segment in segments.get_segments()]
    assert widths == pytest.approx([2 * fidelity[name].interval for name in study.estimators])
    hollow = line(axis, "fpa, published")
    assert hollow.get_xdata().tolist() == [59.6, 16.9]
    assert hollow.get_markerfacecolor() == "none"
    places = dict(zip(study.estimators, dots.get_ydata(), strict=True))
    assert hollow.get_ydata().tolist() == [places["ig_sum"], places["vg_abs"]]
    labels = [label.get_text() for label in axis.get_yticklabels()]
    by_place = [label for _, label in sorted(zip(axis.get_yticks(), labels, strict=True))]
    assert by_place.index("Signed") < by_place.index("IG$_\\mathrm{sum}$") < by_place.index("Unsigned")
    assert "published" in axis.get_xlabel()
    assert "published" not in figures.fidelity_dots(study).axes[0].get_xlabel()


def test_red_are_the_estimators_and_the_crossings_of_contradictions_alone(study):
    model = study.models["fpa"]
    found = model.reliability

    def chosen(pair):
        return "vgx_sum" in (pair.first, pair.second) and pair.contradiction

    pairs = tuple(replace(pair, contradiction=chosen(pair)) for pair in found.pairs)
    contradictions = [pair for pair in pairs if pair.contradiction]
    assert 1 < len(contradictions) < len(found.contradictions)
    few = replace(study, models={"fpa": replace(model, reliability=replace(found, pairs=pairs))})
    axis = figures.rank_slopes(few).axes[0]
    mixed = [pair for pair in pairs if pair.kind == "signed-unsigned"]
    assert axis.get_title() == (
        f"FPA: {len(contradictions)} contradictions\nin {len(pairs)} pairs\n"
        f"(signed-unsigned: {sum(map(chosen, mixed))} of {len(mixed)})"
    )
    lines = {drawn.get_label(): drawn for drawn in axis.get_lines() if len(drawn.get_xdata()) == 2}
    assert set(lines) == set(found.by_mif)
    for name, drawn in lines.items():
        assert drawn.get_ydata().tolist() == [found.by_mif.index(name) + 1, found.by_lif.index(name) + 1]
    red = {name for pair in contradictions for name in (pair.first, pair.second)}
    assert {name for name in lines if lines[name] in of_colour(axis, RED)} == red
    assert {name for name in lines if lines[name] in of_colour(axis, GREY)} == set(lines) - red
    dots = [drawn for drawn in of_colour(axis, RED) if len(drawn.get_xdata()) == 1]
    assert len(dots) == len(contradictions)
    for dot, pair in zip(dots, contradictions, strict=True):
        x, y = dot.get_xdata()[0], dot.get_ydata()[0]
        for name in (pair.first, pair.second):
            start, end = lines[name].get_ydata()
            assert y == pytest.approx(start + x * (end - start))


def test_one_contradiction_is_singular_and_none_leaves_nothing_red(study):
    model = study.models["fpa"]
    for wanted, title in ((1, "FPA: 1 contradiction\n"), (0, "FPA: 0 contradictions\n")):
        kept = model.reliability.contradictions[:wanted]
        pairs = tuple(replace(pair, contradiction=pair in kept) for pair in model.reliability.pairs)
        changed_model = replace(model, reliability=replace(model.reliability, pairs=pairs))
        axis = figures.rank_slopes(replace(study, models={"fpa": changed_model})).axes[0]
        assert axis.get_title().startswith(title)
        assert len(of_colour(axis, RED)) == 3 * wanted


def test_overview_has_a_row_a_study_mif_left_and_lif_right(study):
    other = made_up_study(images=10, variants=("fpa",))
    figure = figures.overview([study, replace(other, name="cost in $ or $_x")], signed=False)
    axes = np.array(figure.axes).reshape(2, 4)
    for axis, side, augmentation in zip(
        axes[0], ("mif", "mif", "lif", "lif"), ("none", "fpa", "none", "fpa"), strict=True
    ):
        assert axis.get_title().startswith(side.upper())
        for name in ["random", *(name for name, signed in SIGNED.items() if not signed)]:
            expected = plain_mean(study.models[augmentation].evaluation, side, name)
            assert line(axis, name).get_ydata() == pytest.approx(expected)
    assert "no model" in texts(axes[1, 0])
    looks = [
        (drawn.get_marker(), drawn.get_color())
        for drawn in axes[0, 0].get_lines()
        if drawn.get_label() in SIGNED
    ]
    assert len({marker for marker, _ in looks}) == 6
    assert len({colour for _, colour in looks}) == 4  # IG, VG, SG and SQ-SG
    figure.draw_without_rendering()


def test_overview_tells_apart_studies_of_one_name_and_leaves_out_those_without_the_group(study):
    twice = [replace(study, folder=Path("runs") / name) for name in ("first", "second")]
    unsigned = replace(with_signs(study, "unsigned"), name="plain")
    labels = [axis.get_ylabel() for axis in figures.overview([*twice, unsigned]).axes[::4]]
    assert labels == [
        "shapes\nseed 0\n(runs/first)\nNormalised logit",
        "shapes\nseed 0\n(runs/second)\nNormalised logit",
    ]
    with pytest.raises(InputError, match="there are no signed estimators"):
        figures.overview([unsigned])


def test_a_study_gets_all_its_figures_as_png_and_pdf(study, tmp_path):
    names = "fpa-examples definition-of-area curves-signed curves-unsigned lif-over-scores sign-fluctuation"
    names += " fidelity ranks"
    paths = figures.save_figures(study, tmp_path / "figures")
    assert [path.name for path in paths] == [f"{n}.{kind}" for n in names.split() for kind in ("png", "pdf")]
    assert sorted(paths) == sorted((tmp_path / "figures").iterdir())
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                assert 600 <= picture.width <= 2000
        else:
            assert path.read_bytes().startswith(b"%PDF")


def test_text_and_marks_stay_inside_the_figure(study):
    for augmentations in (tuple(study.models), ("fpa",)):
        some = replace(study, models={name: study.models[name] for name in augmentations})
        for name, figure in figures.all_figures(some).items():
            figure.draw_without_rendering()
            drawn, whole = figure.get_tightbbox(), figure.bbox_inches
            assert min(drawn.x0, drawn.y0, whole.width - drawn.x1, whole.height - drawn.y1) > -0.01, name


def test_a_study_without_examples_scores_or_fpa_gets_the_rest(study):
    model = study.models["rectangle"]
    bare = replace(model, examples=None, evaluation=replace(model.evaluation, importance={}))
    made = figures.all_figures(replace(study, models={"rectangle": bare}))
    assert list(made) == ["definition-of-area", "curves-signed", "curves-unsigned", "fidelity", "ranks"]


def test_the_users_own_estimators_and_augmentations_are_drawn_with_their_names(study, tmp_path):
    names = {"vgx_sum": "my_$map$_{1}", "vg_abs": "an_estimator_with_a_very_long_name"}
    own = changed(study, names=names)
    odd = {"classes": ["$a$_b^", "x" * 80, "two\nlines $", "d"], "augmentation": "my $word$", "training": {}}
    models = {key: described(model, **odd) for key, model in own.models.items()}
    own = replace(own, models={"none": models["none"], "my $aug$_x": models["fpa"]})
    paths = figures.save_figures(own, tmp_path)
    assert {path.stem for path in paths} > {"curves-signed", "curves-unsigned", "ranks", "sign-fluctuation"}
    titles = [axis.get_title() for axis in figures.perturbation_curves(own).axes]
    assert r"my_\$map\$_{1}" in titles
    for name, figure in figures.all_figures(own).items():
        figure.draw_without_rendering()
        assert figure.get_tightbbox().x0 > -0.01, name
        if name == "ranks":
            for axis in figure.axes:
                left, right = (label.get_window_extent() for label in axis.get_xticklabels())
                assert left.x1 < right.x0, "there is room for the lines between the names"


def test_saving_again_gives_the_same_bytes_also_later_and_elsewhere(study, tmp_path):
    figure = figures.rank_slopes(study)
    first = [path.read_bytes() for path in figures.save(figure, tmp_path / "v1.0")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1.0.pdf", "v1.0.png"]
    assert [path.read_bytes() for path in figures.save(figure, tmp_path / "v1.0")] == first
    code = (
        "from studies import made_up_study; from fpa.show import figures; import sys;"
        "figures.save(figures.rank_slopes(made_up_study()), sys.argv[1])"
    )
    later = dict(os.environ, PYTHONHASHSEED="7", SOURCE_DATE_EPOCH="1000000000", TZ="Asia/Tokyo")
    later["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "other")], env=later, check=True)
    assert [(tmp_path / f"other.{kind}").read_bytes() for kind in ("png", "pdf")] == first
    assert not re.search(rb"CreationDate|Matplotlib v", first[1])


def test_a_figure_that_cannot_be_drawn_leaves_the_old_file(study, tmp_path):
    stem = tmp_path / "figure"
    before = [
        path.read_bytes() for path in figures.save(figures.definition_of_area([0, 1], [1, 0], [1, 1]), stem)
    ]
    broken = figures.definition_of_area([0, 1], [1, 0], [1, 1])
    figures.save(broken, stem)
    broken.text(0.5, 0.5, r"$\nonsense$")
    with pytest.raises(ValueError, match="nonsense"):
        figures.save(broken, stem)
    assert [(tmp_path / f"figure.{kind}").read_bytes() for kind in ("png", "pdf")] == before
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        figures.save(broken, tmp_path / "file" / "figure")


def test_the_callers_matplotlib_and_logging_are_left_alone(study, tmp_path):
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black", "text.color": "red"}):
        before = dict(mpl.rcParams)
        figure = figures.fidelity_dots(study)
        loud = [path.read_bytes() for path in figures.save(figure, tmp_path / "loud")]
        assert dict(mpl.rcParams) == before
    assert loud == [
        path.read_bytes() for path in figures.save(figures.fidelity_dots(study), tmp_path / "quiet")
    ]
    assert logging.getLogger("fontTools").level == logging.NOTSET
    from matplotlib import _pylab_helpers

    assert _pylab_helpers.Gcf.get_all_fig_managers() == []


def test_a_model_evaluated_alone_gets_all_figures_that_make_sense(tmp_path):
    own = made_up_evaluation()
    names = "definition-of-area curves-signed curves-unsigned lif-over-scores sign-fluctuation fidelity ranks"
    assert list(figures.all_figures(own)) == names.split()
    settings = {"training": {"p": 0.5, "p1_max": 0.25, "p2": 0.1, "s_max": 3}, "augmentation": "fpa"}
    tuned = described(own.first, **settings).results
    assert list(figures.all_figures(tuned)) == ["fpa-examples", *names.split()]
    assert "Model" in texts(figures.perturbation_curves(own))


def test_figures_of_patches_speak_of_patches_and_show_no_pixels():
    own = made_up_evaluation(features=8)
    made = figures.all_figures(own)
    assert "sign-fluctuation" not in made
    for name in ("curves-signed", "definition-of-area", "lif-over-scores"):
        assert any(text.startswith("Patches masked") for text in texts(made[name]))
        assert not any("ixels" in text for text in texts(made[name]))


def test_curves_of_another_output_are_called_by_it(study):
    models = {
        name: replace(model, evaluation=replace(model.evaluation, divided=False))
        for name, model in study.models.items()
    }
    other = with_plan(replace(study, models=models), outputs=["probability"])
    other = replace(
        other, models={name: Result.of(name, m.evaluation, m.description) for name, m in other.models.items()}
    )
    figure = figures.perturbation_curves(other)
    assert figure.axes[0].get_ylabel() == "MIF\nProbability"
    assert line(figure.axes[1], "fpa").get_ydata() == pytest.approx(
        other.models["fpa"].evaluation.mif["ig_sum"].mean(0)
    )


def test_many_variants_all_look_different(study):
    names = ["none", "rectangle", "fpa", *(f"variant {n}" for n in range(20))]
    looks = model_looks(names)
    assert len({(look.colour, str(look.dashes)) for look in looks.values()}) == len(
        {look.css for look in looks.values()}
    )
    assert len({look.css for look in looks.values()}) >= 20
    many = replace(study, models=dict.fromkeys(names[:6], study.models["fpa"]))
    for name, figure in figures.all_figures(many).items():
        figure.draw_without_rendering()
        assert figure.get_tightbbox().x0 > -0.01, name


def test_overview_of_models_evaluated_alone_has_a_panel_for_what_they_were_trained_with(study):
    alone = figures.overview([made_up_evaluation("a"), made_up_evaluation("b")])
    assert [axis.get_title() for axis in alone.axes] == ["MIF", "LIF", "", ""]
    mixed = figures.overview([study, made_up_evaluation("a", augmentation="mixup")])
    titles = [axis.get_title().split("\n")[-1] for axis in mixed.axes[:3]]
    assert titles == ["no augmentation", "with FPA", "with mixup"]


def test_a_group_that_a_study_does_not_have_is_named(study):
    unsigned = with_signs(study, "unsigned")
    with pytest.raises(InputError, match="has no signed estimators"):
        figures.perturbation_curves(unsigned)
    assert "curves-signed" not in figures.all_figures(unsigned)


def test_a_full_disk_is_said_and_the_old_figure_kept(tmp_path, monkeypatch):
    figure = Figure()
    (tmp_path / "one.png").write_text("before")

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"the disk is full: .*one.png was not written"):
        figures.save(figure, tmp_path / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["one.png"]
    assert (tmp_path / "one.png").read_text() == "before"


@pytest.mark.parametrize("steep", [1, 3, 12])
@pytest.mark.parametrize("turned", [False, True])
def test_names_beside_curves_do_not_cover_them(steep, turned):
    x = np.linspace(0, 1, 21)
    low, high = (1 - x) ** steep - 0.2 * x * (1 - x), 1 - x**steep + 0.8 * x * (1 - x)
    low, high = (high, low) if turned else (low, high)
    figure = figures.definition_of_area(x, mif=low, lif=high)
    figure.draw_without_rendering()
    (axis,) = figure.axes
    curves = [
        axis.transData.transform(np.c_[np.linspace(0, 1, 2001), np.interp(np.linspace(0, 1, 2001), x, y)])
        for y in (low, high)
    ]
    names = {each.get_text(): each for each in axis.texts}
    assert set(names) >= {"MIF", "LIF"}
    for name in ("MIF", "LIF"):
        box = names[name].get_window_extent()
        assert axis.get_window_extent().containsx(box.x0)
        assert axis.get_window_extent().containsx(box.x1)
        for curve in curves:
            assert not any(box.contains(*point) for point in curve)
