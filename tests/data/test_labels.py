"""Which output of a model stands for which class, and folders without training images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fpa.data import image_source
from fpa.data.labels import class_numbers, labels_for
from fpa.data.sets import load_evaluation_data
from fpa.errors import InputError
from fpa.notes import Kind, Note, Severity
from miniatures import write_class_folder, write_image_folder


def test_which_output_stands_for_which_class(tmp_path):
    folders = ["n01440764", "n03000684"]
    assert class_numbers(folders, 1000) == [0, 491]
    assert class_numbers([*folders, "n99999999"], 1000) is None
    assert class_numbers(folders, 2) == [0, 1]
    assert class_numbers([], 2) is None
    assert class_numbers(folders, 1000, class_index="[0, 491]") == [0, 491]
    keras = {"0": ["n01440764", "tench"], "491": ["n03000684", "chain_saw"]}
    (tmp_path / "index.json").write_text(json.dumps(keras))
    assert class_numbers(folders, 1000, class_index=str(tmp_path / "index.json")) == [0, 491]
    (tmp_path / "names.json").write_text(json.dumps({"n01440764": 0, "n03000684": 491}))
    assert class_numbers(folders, 1000, class_index=str(tmp_path / "names.json")) == [0, 491]
    # "crane" is two classes of ImageNet, a bird and a machine: its name tells nothing.
    assert class_numbers(["crane"], 3, ["crane", "tench", "crane"]) is None
    for given, said in (
        ("[0]", "must be 2 whole numbers"),
        ("[0, 1000]", "1000 is not among the model's 1000 outputs"),
        ("3", "must be like .* or a JSON file, got '3'"),
        ("tench", "must be like .* or a JSON file"),
        ('{"n01440764": 0}', "does not name the class 'n03000684'"),
    ):
        with pytest.raises(InputError, match=said):
            class_numbers(folders, 1000, class_index=given)
    with pytest.raises(InputError, match="the images have no classes"):
        class_numbers([], 1000, class_index="[0]")


def test_the_order_of_classes_is_not_taken_for_their_names():
    assert class_numbers(["a", "b"], 2, ["x", "y"]) is None
    assert class_numbers(["x", "b"], 2, ["x", "y"]) is None
    assert class_numbers(["a", "b"], 2, ["0", "1"]) == [0, 1]  # numbers are no names
    twice = ["crane", "tench", "crane"]
    assert class_numbers(twice, 3, twice) == [0, 1, 2]


def test_an_evaluation_assumes_the_order_and_says_so():
    for folders, names, numbers, kind, values in (
        (["a", "b"], ["x", "y"], [0, 1], Kind.ORDER_ASSUMED, {}),
        (["a", "b"], None, [0, 1], Kind.ORDER_ASSUMED, {}),
        (["a"], ["x", "y"], None, Kind.LABELS_UNKNOWN, {"outputs": 2, "classes": 1}),
        ([], ["x", "y"], None, Kind.NO_LABELS, {}),
    ):
        found, note = labels_for(folders, 2, names)
        assert found == numbers
        assert note == Note(kind, Severity.WARNING, values)
    assert labels_for(["y", "x"], 2, ["x", "y"]) == ([1, 0], None)
    assert labels_for(["a", "b"], 2, ["x", "y"], "[1,0]") == ([1, 0], None)


def test_a_folder_needs_no_training_images(tmp_path):
    classes = write_class_folder(tmp_path / "classes", ["cat", "dog"], 3)
    split = write_image_folder(tmp_path / "split")
    plain = tmp_path / "plain"
    plain.mkdir()
    for number, file in enumerate(sorted(classes.glob("*/*.jpg"))):
        (plain / f"{number}.jpg").write_bytes(file.read_bytes())
    found = load_evaluation_data(f"folder:{classes}", size=16)
    assert (found.classes, found.test.labels.tolist()) == (["cat", "dog"], [0, 0, 0, 1, 1, 1])
    unlabelled = load_evaluation_data(f"folder:{plain}", size=16)
    assert (unlabelled.classes, unlabelled.test.labels.tolist()) == ([], [-1] * 6)
    (plain_block,) = image_source(unlabelled).blocks(64)
    (block,) = image_source(found, labels=[3, 5]).blocks(64)
    assert torch.equal(plain_block.images, block.images)
    assert plain_block.labels.tolist() == [-1] * 6
    assert block.labels.tolist() == [3, 3, 3, 5, 5, 5]
    assert len(load_evaluation_data(f"folder:{split}", size=16).test) == 6
    assert len(load_evaluation_data(f"folder:{split}", size=16, evaluation_images=2).evaluation) == 2
    for folder, said in (
        (tmp_path / "nowhere", "there is no folder"),
        (tmp_path / "split/val/cat/x", "no f"),
    ):
        with pytest.raises(InputError, match=said):
            load_evaluation_data(f"folder:{folder}")


def test_a_stray_picture_does_not_hide_the_folders_of_classes(tmp_path):
    folder = write_class_folder(tmp_path, ["cat", "dog"], 3)
    (folder / "stray.jpg").write_bytes((folder / "cat" / "cat_0.jpg").read_bytes())
    with pytest.warns(UserWarning, match=r"images beside them are left out: 1, the first is stray.jpg"):
        found = load_evaluation_data(f"folder:{folder}", size=16)
    assert (found.classes, found.test.labels.tolist()) == (["cat", "dog"], [0, 0, 0, 1, 1, 1])
    for file in folder.glob("*/*.jpg"):
        file.unlink()
    assert load_evaluation_data(f"folder:{folder}", size=16).test.labels.tolist() == [-1]


def test_files_that_cannot_be_read_are_left_out_and_noted(tmp_path):
    folder = write_class_folder(tmp_path, ["cat", "dog"], 2)
    data = load_evaluation_data(f"folder:{folder}", size=16)
    broken = folder / "cat" / "cat_1.jpg"
    broken.write_bytes(b"no picture")
    source = image_source(data, labels=[0, 1])
    (block,) = source.blocks(64)
    assert len(block.images) == 3
    assert (block.labels.tolist(), block.indices) == ([0, 1, 1], [0, 2, 3])
    assert source.lost == {broken}


def test_classes_named_by_numbers_are_found_by_name_in_any_order():
    names = [str(number) for number in range(12)]
    folders = sorted(names)  # as text: 0, 1, 10, 11, 2, ...
    assert class_numbers(folders, 12, names) == [int(name) for name in folders]
    assert class_numbers(["3", "7"], 12, names) == [3, 7]
    assert labels_for(folders, 12, names) == ([int(name) for name in folders], None)
    assert class_numbers([f"n{name}" for name in names], 12, names) == list(range(12))


def test_folders_that_are_numbers_stand_for_the_outputs_of_these_numbers():
    assert class_numbers(["217", "3"], 1000, ["tench"] * 1000) == [217, 3]
    assert class_numbers(["217", "1000"], 1000) is None
    assert class_numbers(["00", "01", "02"], 3) == [0, 1, 2]
    assert labels_for(["217", "3"], 1000)[1].kind is Kind.NUMBERS
    assert labels_for(["n01440764"], 1000)[1].kind is Kind.WORDNET_IDS


def test_where_numbers_have_two_orders_the_images_decide():
    text = sorted(str(number) for number in range(12))
    numbers, order = [int(name) for name in text], list(range(12))
    assert class_numbers(text, 12) is None  # nothing is trained on a guess
    assert class_numbers(text, 12, text) == order  # the model's card decides
    for votes, expected in (((9, 1), numbers), ((1, 9), order), ((0, 0), numbers)):
        right = dict(zip((tuple(numbers), tuple(order)), votes, strict=True))
        chosen, note = labels_for(
            text, 12, ["tench"] * 12, right=lambda each, right=right: right[tuple(each)]
        )
        assert chosen == expected
        assert note.kind is Kind.NUMBERS_OR_ORDER
        assert note.values == {
            "in_order": expected == order, "right": max(votes), "otherwise": min(votes),
        }  # fmt: skip


@pytest.mark.parametrize(
    "index", ["[null]", "[true]", '{"0": null}', '{"cat": null}', '{"0": [1]}', "null", "[" * 9000]
)
def test_a_class_index_of_other_things_than_numbers_and_names_is_refused(index):
    with pytest.raises(InputError, match="the class index"):
        class_numbers(["cat"], 2, class_index=index)


def test_a_class_index_may_be_longer_than_the_name_of_a_file():
    classes, numbers = [f"class {number}" for number in range(300)], [*range(299, -1, -1)]
    assert class_numbers(classes, 300, class_index=json.dumps(numbers)) == numbers


@pytest.mark.parametrize(
    "index",
    [
        [2, 1, 0],
        (2, 1, 0),
        range(2, -1, -1),
        list(np.array([2, 1, 0])),
        np.array([2, 1, 0], dtype=np.uint8),
        np.array([0, 1, 2])[::-1],
        torch.tensor([2, 1, 0]),
        [torch.tensor(2), np.array(1), np.int16(0)],
        {"cat": np.int64(2), "dog": torch.tensor(1), "eel": 0},
        {2: "cat", np.int64(1): ["dog", "hound"], "0": ("eel",)},
    ],
)
def test_a_class_index_takes_whole_numbers_of_any_type(index):
    found = class_numbers(["cat", "dog", "eel"], 3, class_index=index)
    assert found == [2, 1, 0]
    assert {type(number) for number in found} == {int}


@pytest.mark.parametrize(
    "index",
    [
        *(3, 2.5, True, b"[0]", {0, 1, 2}, [0, 1], [0.0, 1.0, 2.0], [True, False, True], ["0", "1", "2"]),
        *(object(), iter([0, 1, 2]), np.array([0.0, 1.0, 2.0]), np.array(3), torch.eye(3).long()),
        *(torch.tensor([True, False, True]), np.array(["a", "b", "c"]), torch.empty(3, device="meta")),
        *({"cat": 1.5}, {"cat": 0}, Path("nowhere.json"), [torch.empty((), device="meta")] * 3),
    ],
)
def test_any_other_class_index_is_refused_in_words(index):
    with pytest.raises(InputError, match="the class index"):
        class_numbers(["cat", "dog", "eel"], 3, class_index=index)


def test_a_class_index_in_a_file_may_be_given_as_a_path(tmp_path):
    (tmp_path / "index.json").write_text('{"cat": 1, "dog": 0}')
    assert class_numbers(["cat", "dog"], 2, class_index=tmp_path / "index.json") == [1, 0]
