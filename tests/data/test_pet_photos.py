"""Photos of pets from files: both layouts are read alike, and what is wrong with them is said."""

import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from fpa import InputError
from fpa.data.pets import pet_photos
from fpa.data.sets import load_data
from miniatures import write_pets


@pytest.mark.parametrize("official", [True, False])
@pytest.mark.parametrize("place", ["", "pets", "oxford-iiit-pet"])
def test_both_layouts_are_found_and_read_alike(official, place, tmp_path):
    folder = write_pets(tmp_path / place, official)
    train, test = pet_photos(tmp_path, 48)
    assert (len(train), len(test)) == (12, 20)
    assert train.labels.tolist() == [int(number % 3 > 0) for number in range(12)]
    assert test.labels.tolist() == [int(number % 3 > 0) for number in range(12, 32)]
    assert [path.stem for path in test.paths[:2]] == ["Sphynx_12", "pug_13"]
    # the shorter side to 55 px, which is 48 * 256 / 224, and of that the centre
    photo = Image.open(folder / ("images" if official else "clean") / "pug_13.jpg")
    resized = functional.pil_to_tensor(functional.resize(photo, [55]))
    left = round((resized.shape[2] - 48) / 2)
    assert test.load(1).equal(resized[:, 4:52, left : left + 48])


def test_comments_in_the_official_lists_are_passed_over(tmp_path):
    folder = write_pets(tmp_path, official=True)
    listed = folder / "annotations/test.txt"
    listed.write_text("#Image CLASS-ID SPECIES BREED ID\n\n" + listed.read_text())
    assert len(pet_photos(tmp_path, 48).test) == 20


def without_clean(folder):
    (folder / "clean").rename(folder / "photos")


def without_table(folder):
    (folder / "pets.csv").unlink()


def with_a_bird(folder):
    table = folder / "pets.csv"
    table.write_text(table.read_text().replace("Sphynx_3,1,cat", "Sphynx_3,1,bird"))


def without_a_column(folder):
    table = folder / "pets.csv"
    table.write_text(table.read_text().replace("species", "kind"))


def without_cats(folder):
    table = folder / "pets.csv"
    table.write_text(table.read_text().replace("cat,trainval", "dog,trainval"))


def with_one_cat(folder):
    table = folder / "pets.csv"
    lines = [
        line for line in table.read_text().splitlines() if "cat,test" not in line or "Sphynx_12," in line
    ]
    table.write_text("\n".join(lines))


def without_a_photo(folder):
    (folder / "clean/pug_4.jpg").unlink()


def with_a_damaged_photo(folder):
    photo = folder / "clean/pug_20.jpg"
    photo.write_bytes(photo.read_bytes()[:300])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            without_clean,
            r"pets was not found: none of .*pets, .*oxford-iiit-pet, .* holds pets\.csv, clean/ or",
        ),
        (without_table, "pets was not found"),
        (with_a_bird, r"pets\.csv must be a table with the columns name, species \(cat or dog\) .*'bird'"),
        (without_a_column, r"pets\.csv must be a table with the columns .* a row has .*'species': None"),
        (without_cats, r"class 'cat' has no images in .*pets\.csv"),
        (with_one_cat, "needs at least two test photos of cats and of dogs, found 1 of cats"),
        (without_a_photo, r"1 of 12 image files cannot be read: .*pug_4\.jpg \(No such file"),
        (with_a_damaged_photo, r"1 of 20 image files cannot be read: .*pug_20\.jpg \("),
    ],
)
def test_what_is_wrong_with_the_files_is_said(damage, words, tmp_path):
    damage(write_pets(tmp_path))
    with pytest.raises(InputError, match=words):
        load_data("pets", tmp_path, size=48)


@pytest.mark.parametrize(
    ("part", "line", "words"),
    [
        (
            "trainval",
            "pug_99 1 3 1",
            r"trainval\.txt must have a name, a number and the species \(1 for cats",
        ),
        ("test", "pug_99", r"test\.txt must have a name, .* on every line, got 'pug_99'"),
        ("test", "pug_99 1 2 1", r"1 of 21 image files cannot be read: .*images/pug_99\.jpg"),
    ],
)
def test_what_is_wrong_with_the_official_lists_is_said(part, line, words, tmp_path):
    listed = write_pets(tmp_path, official=True) / f"annotations/{part}.txt"
    listed.write_text(f"{listed.read_text()}{line}\n")
    with pytest.raises(InputError, match=words):
        load_data("pets", tmp_path, size=48)


@pytest.mark.parametrize("part", ["annotations/test.txt", "annotations/trainval.txt", "images"])
def test_an_official_set_that_lacks_something_is_not_found(part, tmp_path):
    folder = write_pets(tmp_path, official=True)
    (folder / part).rename(folder / "elsewhere")
    with pytest.raises(InputError, match=r"annotations/trainval\.txt, annotations/test\.txt, images/"):
        load_data("pets", tmp_path, size=48)


def test_photos_that_need_not_be_looked_at_are_not(tmp_path):
    folder = write_pets(tmp_path)
    (folder / "clean/pug_4.jpg").unlink()
    data = load_data("pets", tmp_path, size=48, check=False)
    assert torch.is_tensor(data.train.labels)
