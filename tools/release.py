"""Writes trained models as files that others can use: half the size, with a card, checked by loading them.

    python tools/release.py runs/cifar10 runs/finetune-mobilenet_v2/model.safetensors --output release
    make release MODELS="runs/cifar10 runs/tuned/model.safetensors"

A folder is a finished study: its models trained with FPA are released (with `--all` the others too), each
under the name STUDY-VARIANT; a file is released under the name of its folder. Every model becomes
NAME.safetensors, the weights of its layers in float16, and NAME.md, its card: data and their licence, recipe,
accuracy, and the verdict of an audit that is made here, on `--count` images. A file whose model disagrees
with the original on more than 1 in 500 of the evaluation images is not written.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import fpa
from fpa.data.labels import class_numbers, relabelled
from fpa.data.normalisation import Normalisation
from fpa.data.photos import folder_path
from fpa.data.sets import load_evaluation_data
from fpa.errors import InputError
from fpa.files import write_text
from fpa.models.saved import load_model, read_card, save_model
from fpa.training.trainer import predictions

LICENCES = {
    "shapes": "made by fpa; Apache-2.0",
    "cues": "made by fpa; Apache-2.0",
    "cues-redundant": "made by fpa; Apache-2.0",
    "cues-joint": "made by fpa; Apache-2.0",
    "cues-small": "made by fpa; Apache-2.0",
    "pets": "Oxford-IIIT Pet (Parkhi et al., 2012); CC BY-SA 4.0, the photos belong to others",
    "digits": "scikit-learn's copy of the UCI digits; CC BY 4.0",
    "cifar10": "CIFAR-10 (Krizhevsky, 2009); its authors state no licence, the photos belong to others",
    "food101": "Food-101 (Bossard et al., 2014); photos of foodspotting.com, for scientific fair use",
    "imagenet": "ImageNet (Russakovsky et al., 2015); non-commercial research and education",
}
MOST_CHANGED = 1 / 500


def models_in(path: Path, *, every: bool) -> dict[str, Path]:
    """The model files of a study or a single file, by the name they are released under."""
    if path.is_file():
        return {path.absolute().parent.name if path.stem == "model" else path.stem: path}
    files = sorted(path.glob("*/model.safetensors"))
    chosen = [file for file in files if every or read_card(file).augmentation == "fpa"]
    if not chosen:
        raise InputError(f"{path} holds no model {'' if every else 'trained with FPA '}to release")
    return {f"{path.absolute().name}-{file.parent.name}": file for file in chosen}


def _public(data: str | None) -> str | None:
    """The name of a data set without the path that leads to it here."""
    folder = folder_path(data or "")
    return data if folder is None else f"folder:{folder.absolute().name}"


def release(name: str, path: Path, options: argparse.Namespace) -> Path:
    """Write one model and its card, and check what was written."""
    card, device = read_card(path), options.device
    origin = card.recipe.get("data", {})
    data_name = options.data or origin.get("name")
    if data_name is None:
        raise InputError(f"{name} was trained on data without a name: say with --data what to audit it on")
    origin.pop("root", None)  # a folder of this machine, as in the name of a folder of photos
    origin["name"] = _public(origin.get("name"))
    licence = options.licence or LICENCES.get(data_name)
    if licence is None:
        raise InputError(f"the licence of {data_name} is not known: say it with --licence")
    data = load_evaluation_data(data_name, options.data_root, size=card.input_shape[-1])
    data = replace(data, normalisation=Normalisation(card.mean, card.std))
    if data.classes and data.classes != card.classes:  # photos alone have no classes, and no accuracy
        index = class_numbers(data.classes, len(card.classes), card.classes)
        if index is None:
            raise InputError(f"the classes of {data_name} are not those of {name}: choose others with --data")
        data = relabelled(data, card.classes, index)
    original = load_model(path, device, architecture=options.architecture)
    target = options.output / f"{name}.safetensors"
    draft = target.with_suffix(".draft.safetensors")
    options.output.mkdir(parents=True, exist_ok=True)
    save_model(original, card, draft, half=True)
    try:
        written = load_model(draft, device, architecture=options.architecture)
        before, labels = predictions(original, data, device)
        after, _ = predictions(written, data, device)
        changed = float((before != after).float().mean())
        if changed > MOST_CHANGED:
            raise InputError(f"{name}: in float16 {100 * changed:.2f} % of the predictions are others")
        verdict = fpa.audit(written, data, count=options.count, device=device, progress=False)
    except BaseException:
        draft.unlink()
        raise
    draft.replace(target)
    known = bool((labels >= 0).all())
    accuracy = float((after == labels).float().mean()) if known else None
    facts: dict[str, Any] = {
        "architecture": card.architecture,
        "data": _public(data_name),
        "licence of the data": licence,
        "images": " x ".join(map(str, card.input_shape)),
        "normalisation": f"mean {list(card.mean)}, std {list(card.std)}, pixels in 0..1",
        "augmentation": card.augmentation,
        "accuracy": "not known" if accuracy is None else f"{100 * accuracy:.2f} % of {len(labels)} images",
        "changed by float16": f"{100 * changed:.2f} % of the predictions",
        "audit": f"{verdict.headline} ({verdict.evidence.used} images)",
    }
    lines = [f"# {name}", "", *(f"- {key}: {value}" for key, value in facts.items()), ""]
    lines += [f"    fpa evaluate {target.name} --data {_public(data_name)}", "", "Recipe:", "", "```yaml"]
    lines += [yaml.safe_dump(card.recipe, sort_keys=False).rstrip(), "```", ""]
    write_text(target.with_suffix(".md"), "\n".join(lines))
    size = target.stat().st_size / 1e6
    print(f"{target}: {size:.1f} MB, {facts['accuracy']}, audit: {verdict.verdict}", flush=True)
    return target


def main() -> int:
    """Release all that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=Path("release"))
    parser.add_argument(
        "--data", help="where the model's recipe names none, or another set of the same classes"
    )
    parser.add_argument("--data_root", default="data")
    parser.add_argument("--licence", help="of the data, where fpa does not know them")
    parser.add_argument("--architecture", help="module:function of a model that a function of your own makes")
    parser.add_argument("--count", type=int, default=500, help="images of the audit")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    try:
        for path in options.models:
            for name, file in models_in(path, every=options.all).items():
                release(name, file, options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
