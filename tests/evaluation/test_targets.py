"""Which class is explained, and which output of the model a label stands for."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

import fpa
from fpa.cli.main import main
from fpa.show import summary

NAMES = ["vg_abs", "vgx_sum"]
QUICK = {"points": 4, "progress": False, "outputs": ["log_odds"]}
LABELS = torch.arange(12) % 3


class Small(nn.Sequential):
    def __init__(self, outputs=3):
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, outputs)
        super().__init__(*layers)


@pytest.fixture(scope="module")
def images():
    return torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def chosen(targets, images):
    """The classes, image by image."""
    with torch.no_grad():
        orders = [sorted(range(3), key=lambda k, row=row: -row[k]) for row in Small()(images).tolist()]
    return {
        "predicted": [order[0] for order in orders],
        "best:3": [order[2] for order in orders],
        "label": LABELS.tolist(),
        1: [1] * 12,
    }[targets]


@pytest.mark.parametrize("targets", ["predicted", "label", "best:3", 1])
def test_the_curves_are_those_of_the_classes_asked_for(images, targets, tmp_path):
    result = fpa.evaluate(Small(), (images, LABELS), NAMES, targets=targets, **QUICK, folder=tmp_path / "a")
    classes = chosen(targets, images)
    assert result.examples.targets.tolist() == [classes[index] for index in result.examples.indices]
    assert result.evaluation.targets.tolist() == classes
    maps = fpa.explain(Small(), images, NAMES, targets=classes, output="log_odds")
    how = {"targets": classes, "points": 4, "outputs": ["log_odds"]}
    curves = fpa.perturbation_curves(Small(), images, maps, **how).others["log_odds"]
    for name in NAMES:
        assert result.evaluation.mif[name] == pytest.approx(curves.mif[name].numpy(), abs=1e-4)
    right = np.mean(np.array(chosen("predicted", images)) == LABELS.numpy())
    assert result.accuracy == pytest.approx(right)
    result.save(tmp_path / "b")
    assert fpa.load_result(tmp_path / "b").accuracy == pytest.approx(right)
    lines = summary.explained_class(result.results)
    assert len(lines) == (targets != "predicted")
    assert all(line in " ".join(str(result).split()) for line in lines)
    if targets != "predicted":  # another evaluation
        with pytest.raises(fpa.InputError, match="holds an evaluation with other targets"):
            fpa.evaluate(Small(), (images, LABELS), NAMES, **QUICK, folder=tmp_path / "a")


@pytest.mark.parametrize(
    ("targets", "labels", "message"),
    [
        ("labels", LABELS, "unknown targets 'labels': did you mean 'label'"),
        ("best:0", LABELS, "targets must be predicted"),
        (3, LABELS, "targets must be in 0..2"),
        ("best:4", LABELS, "targets is best:4, but the model has 3 classes"),
        ("label", LABELS - 1, "image 0 has none that is known"),
    ],
)
def test_classes_that_there_are_not(images, targets, labels, message):
    with pytest.raises(fpa.InputError, match=message):
        fpa.evaluate(Small(), (images, labels), NAMES, targets=targets, **QUICK)


def test_on_the_command_line_and_in_an_audit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ["--count", "6", "--points", "3", "--ig_steps", "2", "--device", "cpu"]
    names = ["--estimators", "vg_abs,vgx_sum", "--targets", "best:2"]
    assert main(["evaluate", "shapes-fpa", *few, *names]) == 0
    best = fpa.load_result(
        "runs/evaluate-shapes-fpa-estimators-vg_abs+vgx_sum-ig_steps2-points3-targets-best2-6"
    )
    assert best.plan["targets"] == "best:2"
    (line,) = summary.explained_class(best.results)
    assert line in " ".join(capsys.readouterr().out.split())
    assert best.accuracy > 0.5
    assert not np.any(best.evaluation.targets == best.evaluation.predicted)
    assert main(["audit", "shapes-fpa", *few, *names, "--maskings", "constant", "--seed", "3"]) == 4
    (audited,) = (tmp_path / "runs").glob("audit-shapes-fpa-*targets-best2-seed3-*/audit.json")
    made = json.loads(audited.read_text())["made_with"]
    assert (made["targets"], made["seed"]) == ("best:2", 3)


class Folders(Dataset):
    """As torchvision's ImageFolder: classes of its own, labels that number them."""

    classes = ("cat", "dog", "eel")

    def __init__(self, images, target_transform=None):
        self.images, self.target_transform = images, target_transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, at):
        label = int(LABELS[at])
        return self.images[at], label if self.target_transform is None else self.target_transform(label)


def labels_of(result):
    return result.evaluation.labels.tolist()


def test_labels_of_other_classes_are_translated_or_unknown(images):
    expected = [[4, 0, 2][label] for label in LABELS]
    how = QUICK | {"examples": 0}
    with pytest.warns(UserWarning, match=r"labels unknown, so no accuracy: which of the model's 5 outputs"):
        unknown = fpa.evaluate(Small(5), Folders(images), NAMES, **how)
    assert (set(labels_of(unknown)), unknown.accuracy) == ({-1}, None)
    part = DataLoader(Subset(Folders(images), range(len(images))), batch_size=2)
    with pytest.warns(UserWarning, match="labels unknown, so no accuracy"):
        assert fpa.evaluate(Small(5), part, NAMES, **how).accuracy is None
    named = ["dog", "fox", "eel", "owl", "cat"]
    assert labels_of(fpa.evaluate(Small(5), Folders(images), NAMES, classes=named, **how)) == expected
    numbers = np.array([4, 0, 2])
    for index in ([4, 0, 2], {"cat": 4, "dog": 0, "eel": 2}, list(numbers), numbers, torch.tensor(numbers)):
        assert labels_of(fpa.evaluate(Small(5), Folders(images), NAMES, class_index=index, **how)) == expected
    for index in ([4, 0, 2], list(numbers), numbers, {0: 4, 1: np.int64(0), 2: 2}):
        plain = fpa.evaluate(Small(5), (images, LABELS), NAMES, class_index=index, **how)
        assert labels_of(plain) == expected
    with pytest.raises(fpa.InputError, match="the class index must be like"):
        fpa.evaluate(Small(5), (images, LABELS), NAMES, class_index=3, **how)
    own = Folders(images, target_transform=lambda label: [4, 0, 2][label])
    assert labels_of(fpa.evaluate(Small(5), own, NAMES, **how)) == expected
    with pytest.raises(fpa.InputError, match="class index 5 is not among the model's 5 outputs"):
        fpa.evaluate(Small(5), Folders(images), NAMES, class_index=[5, 0, 2], **how)
