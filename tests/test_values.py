"""What people pass is checked at the door: a result, or an error that says what was expected."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fpa
from fpa import InputError
from fpa.evaluation.shards import load_result
from fpa.files import read_json
from fpa.functional import integrated_gradients, reduce, remove
from fpa.models.saved import PRETRAINED, read_card
from fpa.values import check_type

SETTINGS = fpa.Settings(ig_steps=1, sg_samples=1)
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
MASK = torch.zeros(2, 8, 8, dtype=torch.bool)


def small_net():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    head = nn.Linear(4, 3)
    nn.init.constant_(head.bias, 5.0)  # logits are positive, as areas need them
    return nn.Sequential(*layers, nn.Flatten(), head).eval()


NET = small_net()
QUICK = {"settings": SETTINGS, "points": 3, "progress": False}

CARD = read_card("shapes-fpa")


def usual(function, arguments, **given):
    """A call with good arguments, those that are to be replaced by odd ones, one at a time."""
    return lambda **odd: function(**given | odd), arguments.split()


CURVES = {"mif": [[2, 1, 0], [2, 0, 0]], "lif": [[2, 2, 0], [2, 2, 0]], "fractions": [0, 0.5, 1]}
SCORED = {
    "a": fpa.Fidelity.from_curves(**CURVES),
    "b": fpa.Fidelity.from_curves(**{**CURVES, "mif": CURVES["lif"]}),
}
MODEL, TWO = {"model": NET, "images": IMAGES}, ["vg_abs", "ig_sum"]
CALLS = {
    "evaluate": usual(
        fpa.evaluate,
        "data estimators masking points fractions features outputs scores classes count seed precision "
        "device examples folder name progress masks class_index maps_of targets judge score_images",
        **{"model": NET, "data": IMAGES, "estimators": TWO, **QUICK},
    ),
    "audit": usual(
        fpa.audit,
        "data estimators maskings points settings features count device folder name",
        **{"model": NET, "data": IMAGES, "estimators": TWO, **QUICK},
    ),
    "explain": usual(
        fpa.explain,
        "model images estimators targets indices seed settings masking",
        **{**MODEL, "estimators": TWO, "settings": SETTINGS},
    ),
    "finetune": usual(
        fpa.finetune,
        "model data epochs learning_rate batch_size fpa masking targets class_index seed device folder "
        "progress",
        model=NET,
        data=(IMAGES, [0, 1]),
        epochs=1,
        batch_size=2,
        device="cpu",
    ),
    "curves": usual(
        fpa.perturbation_curves,
        "model images maps points fractions masking targets labels seed indices features outputs",
        **{**MODEL, "maps": torch.rand(2, 8, 8), "points": 3},
    ),
    "FPA": usual(lambda **given: fpa.FPA(**given)(IMAGES), "p p1_max p2 s_max squares masking generator"),
    "Rectangle": usual(lambda **given: fpa.Rectangle(**given)(IMAGES), "p area aspect coin generator"),
    "remove": usual(remove, "images mask masking", images=IMAGES, mask=MASK),
    "Settings": usual(fpa.Settings, "ig_steps sg_samples sigma reference"),
    "Engine": usual(fpa.Engine, "model precision batch_size memory", model=NET),
    "image_source": usual(fpa.image_source, "data channels labels count", data=IMAGES),
    "load_data": usual(fpa.load_data, "name root evaluation_images size", name="digits"),
    "load_model": usual(fpa.load_model, "path device", path="shapes-fpa"),
    "save_model": usual(fpa.save_model, "model card path", model=NET, card=CARD, path="/nowhere/x"),
    "load_recipe": usual(fpa.load_recipe, "name overrides", name="tiny"),
    "read_results": usual(fpa.read_results, "folder"),
    "reliability": usual(
        fpa.reliability,
        "fidelities signed families alpha draws seed",
        fidelities=SCORED,
        signed={"a": True, "b": False},
    ),
    "paired_test": usual(fpa.paired_test, "first second of", first=SCORED["a"], second=SCORED["b"]),
    "from_curves": usual(fpa.Fidelity.from_curves, "mif lif fractions fractions_lif keep", **CURVES),
    "reduce": usual(reduce, "raw reduction times", raw=IMAGES),
    "integrated_gradients": usual(integrated_gradients, "targets steps reference seed indices", **MODEL),
    "get_masking": usual(fpa.get_masking, "masking mean std", masking="black", mean=(0.5,), std=(0.5,)),
    "suggested_fpa": usual(fpa.suggested_fpa, "height width targets", height=32, width=32),
}

ODD = {
    "a set": {1},
    "an object": object(),
    "a complex tensor": torch.zeros(2, 3, 8, 8, dtype=torch.complex64),
    "a nested list": [[1], [2, 3]],
    "a meta tensor": torch.empty(2, 3, 8, 8, device="meta"),
    "a sparse tensor": IMAGES.to_sparse(),
    "bytes": b"x",
}


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_are_refused_by_name_or_used(name):
    call, arguments = CALLS[name]
    used = []
    for argument in arguments:
        for what, value in ODD.items():
            with suppress(InputError):
                call(**{argument: value})
                used.append((argument, what))
    assert len(used) < 6, used  # such as a set of scores


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fpa.FPA(p="half"), "p must be a number, got 'half'"),
        (lambda: fpa.FPA(masking=3), "masking must be text or a mapping or .*, got 3"),
        (lambda: fpa.FPA(generator=0), "generator must be a Generator or null, got 0"),
        (lambda: fpa.make_plan(points=10**9), "at most 10,000 points, got 1000000000"),
        (lambda: fpa.explain(NET, IMAGES.to_sparse()), "images must be a plain tensor .* that is sparse"),
        (lambda: fpa.FPA(p=1.0, masking=lambda images, mask: None)(IMAGES), "must return images .*NoneType"),
        (lambda: fpa.evaluate(NET, IMAGES, count="few"), "count must be a whole number or null, got 'few'"),
        (lambda: fpa.evaluate(NET, IMAGES, progress=3), "progress must be true or false or a Tell, got 3"),
        (lambda: fpa.FPA(p=1.0)(IMAGES.numpy()), "FPA needs normalised tensors, got a ndarray"),
        (lambda: fpa.evaluate(NET, IMAGES.to(torch.float8_e5m2)), "a plain tensor .* is torch.float8_e5m2"),
        (lambda: fpa.evaluate(NET, IMAGES, masks="all"), "masks must be numbers, got str"),
        (lambda: fpa.explain(NET, IMAGES, output=""), "unknown output ''"),
        (lambda: fpa.evaluate(NET, IMAGES, scores=IMAGES), "a score must be a name or .*, got Tensor"),
        (lambda: fpa.load_model("shapes-fpa", "tpu"), "the device 'tpu' cannot be used here"),
    ],
)
def test_the_error_names_the_argument_and_what_is_expected(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (int, [3, np.int64(3)], [True, 3.0, 10**30, "3", None]),
        (float, [3, 0.5, np.float32(0.5), float("inf")], [False, "0.5", 1j, -(10**30)]),
        (str | None, ["a", None], [b"a", 0]),
        (Literal["a", 1], ["a", 1], [True, "b", 1.0]),
        (list[str], [[], ["a"]], [["a"] * 99 + [5], ("a",), "abc", {"a"}]),
        (tuple[float, ...], [(), (1, 0.5), [1, 0.5]], [(1, "b"), 1.0]),
        (tuple[int, int], [(1, 2), [1, 2]], [(1,), (1, 2, 3)]),
        (Sequence[int], [[1], range(3), np.arange(3), torch.arange(3)], ["12", np.ones(3), IMAGES, {1: 2}]),
        (dict[str, list[int]], [{}, {"a": [1]}], [{1: [1]}, {"a": ["b"]}, [("a", [1])]]),
        (Callable[[int], int], [len, lambda number: number], ["len"]),
        (Iterable[Any], [["a"], {"a"}, IMAGES], [5, torch.tensor(1.0), torch.empty(2, device="meta")]),
        (nn.Module | Path, [NET, Path()], [NET.state_dict(), "model"]),
    ],
)
def test_what_is_of_a_type_as_people_mean_it(kind, good, bad):
    for value in good:
        check_type("it", value, kind)
    for value in bad:
        with pytest.raises(InputError, match=r"^it must be"):
            check_type("it", value, kind)


def test_a_masking_is_taken_by_its_name_and_numpys_numbers_are_numbers():
    assert repr(fpa.FPA(masking="blur").masking) == "Blur(sigma=None)"
    assert fpa.FPA(p=np.float64(0.5), s_max=np.int64(2)).s_max == 2
    assert len(fpa.make_plan(points=np.int64(3)).fractions) == 3


def test_images_with_their_channels_reversed_are_what_they_are_without_the_view():
    colours = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    one, two = (next(iter(fpa.image_source(each).blocks(2))).images for each in (colours[..., ::-1], colours))
    assert torch.equal(one, two.flip(1))


def test_everything_works_inside_inference_mode():
    with torch.inference_mode():
        images = IMAGES.clone()
        inside = fpa.evaluate(NET, images, ["ig_sum"], **QUICK)
        fpa.audit(NET, images, estimators=["vg_abs", "ig_sum"], **QUICK)
        tuned = fpa.finetune(NET, (images, [0, 1]), epochs=1, batch_size=2, device="cpu")
    outside = fpa.evaluate(NET, IMAGES, ["ig_sum"], **QUICK)
    assert np.array_equal(inside.evaluation.mif["ig_sum"], outside.evaluation.mif["ig_sum"])
    assert not tuned(IMAGES).is_inference()


def test_arrays_of_any_byte_order_and_memory_are_numbers_and_others_are_refused():
    values = np.random.default_rng(0).normal(size=(2, 8, 8))
    expected = torch.from_numpy(values).float()
    for array in (
        values,
        values.astype(">f8"),
        values[:, ::-1].copy()[:, ::-1],
        np.asarray(values, order="F"),
    ):
        array.flags.writeable = False
        maps = fpa.explain(NET, IMAGES, {"mine": lambda *_, array=array: array})["mine"]
        torch.testing.assert_close(maps, expected)
    for array, message in (
        (np.array([object()]), "numbers, got an array of object"),
        (values + 1j, "complex"),
    ):
        with pytest.raises(InputError, match=message):
            fpa.explain(NET, IMAGES, {"mine": lambda *_, array=array: array})


def test_a_backward_hook_on_a_convolution_is_no_obstacle():
    plain = fpa.explain(NET, IMAGES, ["vg_abs"])["vg_abs"]
    for register in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        net = small_net()
        getattr(net[0], register)(lambda *_: None)
        assert torch.allclose(fpa.explain(net, IMAGES, ["vg_abs"])["vg_abs"], plain, atol=1e-6)


def forged(tmp_path, **changes):
    source = PRETRAINED / "shapes-fpa.safetensors"
    card = {"format": 1, **json.loads(json.dumps(vars(read_card(source))))} | changes
    save_file(load_file(source), tmp_path / "forged.safetensors", {"fpa": json.dumps(card)})
    return tmp_path / "forged.safetensors"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 5}, "classes must be a list of texts, got 5"),
        ({"input_shape": "abc"}, "input_shape must be a list of whole numbers, got 'abc'"),
        ({"input_shape": [3, 10**9, 10**9]}, "input_shape must be in 1..65536 each"),
        ({"architecture": ["resnet-small"]}, "architecture must be text"),
        ({"std": [0, 1, 1]}, "positive std"),
        ({"recipe": []}, "recipe must be a mapping"),
        ({"unheard": 1}, "unheard"),
    ],
)
def test_a_forged_card_is_refused_with_its_file_and_field(tmp_path, changes, message):
    with pytest.raises(InputError, match=rf"forged.safetensors is damaged: .*{message}"):
        fpa.load_model(forged(tmp_path, **changes))


def test_a_card_that_is_nested_without_end(tmp_path):
    text = '{"format": 1, "recipe": ' + "[" * 100_000
    save_file({"x": torch.ones(1)}, tmp_path / "deep.safetensors", {"fpa": text})
    with pytest.raises(InputError, match=r"deep.safetensors is damaged"):
        fpa.load_model(tmp_path / "deep.safetensors")


def test_no_module_is_imported_because_a_model_file_names_it(tmp_path, monkeypatch, capsys):
    from fpa.cli.main import main

    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("raise SystemExit('imported')")
    path = forged(tmp_path, recipe={"masking": {"name": "evil:Mask"}, "data": {"name": "shapes"}})
    assert main(["evaluate", str(path), "--quiet"]) == 2
    assert "masking evil:Mask, which is not run because a file says so" in capsys.readouterr().err


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    fpa.evaluate(NET, IMAGES, ["vg_abs", "ig_sum"], examples=1, folder=folder, **QUICK)
    return folder


@pytest.mark.parametrize(
    "change", ["name", "plan", "plan.estimators", "plan.divided", "plan.scores", "block"]
)
def test_results_with_missing_keys_are_named(stored, tmp_path, change):
    folder = shutil.copytree(stored, tmp_path / "copy")
    about = read_json(folder / "evaluation.json")
    *above, key = change.split(".")
    del (about[above[0]] if above else about)[key]
    (folder / "evaluation.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=rf"evaluation.json is damaged \(.*{key}"):
        load_result(folder)


def test_examples_of_a_wrong_shape_are_named(stored, tmp_path):
    folder = shutil.copytree(stored, tmp_path / "copy")
    with np.load(folder / "examples.npz") as file:
        arrays = dict(file)
    for name in ("images", "labels", "map.vg_abs", "fill"):
        np.savez(folder / "examples.npz", **arrays | {name: np.zeros(5)})
        with pytest.raises(InputError, match=rf"examples.npz is damaged \({name} has another shape"):
            load_result(folder)
