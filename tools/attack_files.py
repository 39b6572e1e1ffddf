"""Attacks on folders, launchers and the types of arguments, for `tools/attack.py`.

Each function gets the `Attack` that counts the trials, and a process of its own from it where it needs one.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fpa
from fpa.cli.main import main

MINE = "a year of work"
QUICK: dict[str, Any] = {"settings": fpa.Settings(ig_steps=1, sg_samples=1), "points": 3, "progress": False}


def links(attack: Any, study: Callable[[Path], None]) -> None:
    """Put links where a run would write, into a copy of a study: nothing behind them may change."""
    places = ["none", "none/blocks", "figures", ".fpa-lock", "none/.fpa-lock", *attack.files()]
    for place in places:
        folder = attack.copy()
        outside = attack.place / "outside"
        shutil.rmtree(outside, ignore_errors=True)
        outside.mkdir()
        for name in (".fpa-tmp-1", "block-000000.parquet", "model.safetensors", "fidelity.png", "file"):
            (outside / name).write_text(MINE)
        target = folder / place
        is_folder = target.is_dir()
        if is_folder:
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        target.symlink_to(outside if is_folder else outside / "file")
        code, message = attack.child(lambda folder=folder: study(folder))
        kept = (
            all(path.read_text() == MINE for path in outside.iterdir()) and len(list(outside.iterdir())) == 5
        )
        attack.trial("links", kept, f"{place}: something behind the link was changed")
        attack.trial("links", code in (0, 2) and "\n" not in message, f"{place}: {code} {message}")


def launchers(attack: Any) -> None:
    """Set what torchrun sets by hand, before commands that write."""
    words = {
        "evaluate": ["evaluate", "shapes-fpa", "--count", "2", "--points", "3"],
        "report": ["report", str(attack.copy())],
        "train": ["train", "tiny", "--device", "cpu"],
        "audit": ["audit", "shapes-fpa", "--count", "2", "--points", "3"],
    }
    numbers = [("1", "2"), ("0", "abc"), ("x", "2"), ("2", "2"), ("-1", "1"), ("", "2"), ("9" * 5000, "9")]
    for rank, size in numbers:
        for name, command in words.items():
            folder = attack.place / "launched"
            shutil.rmtree(folder, ignore_errors=True)
            begun = [*command, "--output", str(folder)]
            code, message = attack.child(
                lambda begun=begun, rank=rank, size=size: _launched(begun, rank, size)
            )
            one_line = (
                code == 2 and message.count("\n") == 0 and "Errno" not in message and len(message) < 3000
            )
            attack.trial("launchers", one_line, f"RANK={rank:.9} WORLD_SIZE={size} {name}: {code} {message}")
            written = folder.exists() and any(path.is_file() for path in folder.rglob("*"))
            attack.trial("launchers", not written, f"RANK={rank:.9} WORLD_SIZE={size} {name} wrote")


def _launched(words: list[str], rank: str, size: str) -> None:
    os.environ |= {"RANK": rank, "WORLD_SIZE": size}
    captured = io.StringIO()
    with contextlib.redirect_stderr(captured), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    raise fpa.InputError(captured.getvalue().strip()) if code == 2 else RuntimeError(f"code {code}")


def ended(attack: Any) -> None:
    """Ask an evaluation without a folder to end, at random moments: nothing of it may be left."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
    images = torch.randn(64, 3, 8, 8)

    def work(place: Path) -> None:
        tempfile.tempdir = str(place)
        while True:
            fpa.evaluate(net, images, ["ig_sum", "vg_abs"], points=3, progress=False)

    for number in attack.many(6):
        place = attack.place / f"ended{number}"
        place.mkdir()
        end = attack.child(lambda place=place: work(place), wait=False)
        time.sleep(attack.chance.uniform(0.3, 1.5))
        os.kill(end.pid, attack.chance.choice([signal.SIGTERM, signal.SIGHUP]))
        code, message = end(timeout=20)
        left = [path.name for path in place.rglob("*")]
        attack.trial(
            "ended", code in (-signal.SIGTERM, -signal.SIGHUP) and not left, f"{code} {message} {left[:3]}"
        )


def renamed(attack: Any) -> None:
    """Rename the checksum of a JSON file, and change something else: it must be noticed."""
    for name in ("manifest.json", "none/evaluation.json"):
        for other in ("checksuM", "CHECKSUM", "x"):
            folder = attack.copy()
            values = json.loads((folder / name).read_text())
            checksum = values.pop("checksum")
            key = next(each for each in ("seeds", "images") if each in values)
            (folder / name).write_text(json.dumps(values | {key: None, other: checksum}))
            code, message = attack.child(lambda folder=folder: fpa.read_results(folder))
            attack.trial("renamed", code == 2 and str(folder) in message, f"{name} {other}: {code} {message}")


def odd_values(images: Tensor) -> list[Any]:
    """Values that somebody passes by mistake, or that a file holds: odd types, sizes and names."""
    single: list[Any] = [
        Fraction(1, 3), Fraction(10**400), Decimal("0.5"), 10**400, -(10**400), 2**63, 1e300, -0.0,
        1j, float("inf"),
        np.ones(3), np.array("x"), np.float32(0.5), np.datetime64("2026-01-01"), np.ma.masked,
        torch.tensor([0, 1]), torch.tensor(3), torch.zeros(0), torch.ones(2, dtype=torch.bool), torch.float32,
        torch.device("meta"), torch.device("cpu"), "meta", "cuda:99", "cpu:7", "mps",
        "run:1", "s3://x/y", "a\0b", "a\udce9", "\x1b[31m", "A" * 300, "A" * 5000, "~", "/", "..",
        "a\nb", " ",
        Path("A" * 300), Path("a\0b"), Path("/".join(["a" * 200] * 30)), Path("/dev/null"), Path(),
        bytearray(b"x"), memoryview(b"x"), frozenset({1}), slice(3), Ellipsis, NotImplemented,
        type,
        iter([1, 2]), (x for x in range(2)), zip([1], [2], strict=True), io.StringIO("x"), ValueError("x"),
        nn.Conv2d(3, 2, 3), nn.Sequential(), torch.nn.Parameter(torch.ones(2)), images.to(torch.bfloat16),
        images.new_full((2, 3, 8, 8), float("nan")), images[:, :1], images[:, :, :4], images[0],
        images.byte(),
        fpa.Engine(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))), fpa.Settings(1, 1),
        {"name": "blur", "sigma": 1e9}, {"name": "bokeh", "radius": 1e12}, {"name": "blur", "sigma": "x"},
        {"name": ["blur"]}, {"": lambda *_: images, "b": "vg_abs"}, {"a": np.ones(3)},
        {0: torch.tensor([0, 1])},
        {torch.tensor(0): 0}, {"a": {"a": {"a": []}}}, {None: None}, "segments:99999999", "best:0", "best:-1",
        "vg_abs~1e9", "captum:", "maps:", "cam:", "a:b:c", ":", "folder:", "timm:", "hf:", "best:",
        "segments:",
    ]  # fmt: skip
    return [*single, *_nested(single)]


def _nested(values: list[Any]) -> Iterator[Any]:
    """The same inside of lists, tuples and mappings."""
    for value in values:
        yield [value]
        yield (value, value)
        yield {"a": value}
        yield {"name": "blur", "sigma": value}
        with contextlib.suppress(TypeError):  # of what cannot be a key
            yield {value: 0}


def more_calls(images: Tensor) -> dict[Callable[..., Any], dict[str, Any]]:
    """Good calls of what takes settings, besides those of `Attack.calls`."""
    blur = {"name": "blur", "sigma": 2.0}
    return {
        fpa.Estimator: {"raw": "vg", "reduction": "sum", "times_input": False, "kind": None, "blur": None},
        fpa.FPASettings: {"p": 0.5, "p1_max": 0.2, "p2": 0.1, "s_max": 2},
        fpa.TrainingSettings: {"epochs": 1, "batch_size": 2, "learning_rate": 0.1, "momentum": 0.5},
        fpa.Precision: {},
        fpa.masking.Blur: {"sigma": 2.0},
        fpa.masking.Bokeh: {"radius": 2.0},
        fpa.masking.Constant: {"value": 0.5},
        fpa.masking.Road: {"sigma": 0.1},
        fpa.ModelCard: {
            "architecture": "resnet-small",
            "classes": ["a", "b"],
            "input_shape": (3, 8, 8),
            "mean": (0.5,) * 3,
            "std": (0.5,) * 3,
        },
        remove: {"images": images, "masking": blur},
    }


def remove(images: Any, masking: Any) -> Tensor:
    """Remove half of the pixels of good images by any masking, or of any images by a good one."""
    mask = torch.zeros(2, 8, 8, dtype=torch.bool)
    mask[:, ::2] = True
    return fpa.get_masking(masking)(images, mask)


if __name__ == "__main__":
    sys.exit("these are run by tools/attack.py")
