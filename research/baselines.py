"""Does FPA make the test harder to fool? Explanations against model-free maps and blurred twins.

    python research/baselines.py shapes-none shapes-fpa --count 500 --output runs/baselines-shapes

    fpa train cifar10 --data.root data --augment none,fpa
    python research/baselines.py runs/cifar10/none/model.safetensors runs/cifar10/fpa/model.safetensors \
        --data_root data --count 2000 --output runs/baselines-cifar10

    fpa finetune torchvision:mobilenet_v2 --weights FILE --data folder:PHOTOS --output runs/mobilenet-fpa
    python research/baselines.py torchvision:mobilenet_v2@FILE runs/mobilenet-fpa/model.safetensors \
        --data folder:PHOTOS --count 500 --output runs/baselines-photos

MODEL@FILE is a model and its weights; PHOTOS has train/CLASS and val/CLASS. Evaluates every model with
`fpa evaluate --estimators paper,baselines,twins` into a folder of its own (run again, it continues) and
writes table.csv and table.md: A of every estimator and of its twin, and how far the test can be fooled. A
circle marks an estimator that does not beat every model-free map. A twin beats its original if its A is
larger, p below 0.05 in a one-sided paired test, Holm-corrected over estimators.
"""

import argparse
from pathlib import Path

import pandas as pd

from fpa.cli.main import main as fpa_command
from fpa.evaluation.result import Result
from fpa.evaluation.shards import load_result
from fpa.show.names import estimator_names
from fpa.show.tables import results_table
from fpa.statistics import holm, paired_test


def evaluated(model: str, folder: Path, options: argparse.Namespace) -> Result:
    """The evaluation of MODEL or MODEL@FILE in a folder: made, continued, or read if it is there."""
    name, _, weights = model.partition("@")
    given = {
        "count": options.count,
        "data": options.data,
        "device": options.device,
        "ig_steps": options.ig_steps,
        "weights": weights or None,
        "data_root": options.data_root,
        "output": str(folder),
    }
    words = [word for key, value in given.items() if value is not None for word in (f"--{key}", str(value))]
    estimators = ["--estimators", "paper,baselines,twins", "--examples", "0", "--quiet"]
    if code := fpa_command(["evaluate", name, *words, *estimators]):
        raise SystemExit(code)
    return load_result(folder)


def rows(result: Result) -> dict[str, str]:
    """The lines of the table for one model, by their heading."""
    names = estimator_names(result.results)
    free = result.description.plan.model_free
    twins = result.description.plan.twins
    fidelity = result.fidelity
    beats = result.beats
    shown: dict[str, str] = {"accuracy": "" if result.accuracy is None else f"{100 * result.accuracy:.1f} %"}
    for name in free:
        shown[f"A of {names[name]}"] = f"{fidelity[name].area:.1f} ± {fidelity[name].interval:.1f}"
    for name, (twin, *_) in twins.items():
        marks = "" if beats.model_free[name].beaten else " °"
        areas = f"{fidelity[name].area:.1f} ± {fidelity[name].interval:.1f}"
        shown[f"A of {names[name]} (its twin)"] = f"{areas}{marks} ({fidelity[twin].area:.1f})"
    strongest = max(free, key=lambda name: fidelity[name].area)
    best = max(result.signed, key=lambda name: fidelity[name].area)
    share = 100 * fidelity[strongest].area / fidelity[best].area
    shown["strongest model-free map, of the best A"] = f"{names[strongest]}, {share:.0f} %"
    beaten = sum(rival.beaten for rival in beats.model_free.values())
    shown["beat every model-free map"] = f"{beaten} of {len(result.signed)}"
    shown["beat their own twin"] = f"{sum(rival.beaten for rival in beats.twin.values())} of {len(twins)}"
    # One-sided the other way round: is the A of an estimator smaller than that of its blurred twin?
    smaller = [paired_test(fidelity[name], fidelity[twin]).p_smaller for name, (twin, *_) in twins.items()]
    shown["twin beats its original"] = f"{(holm(smaller) < 0.05).sum()} of {len(twins)}"
    shown["images"] = str(min(each.used for each in fidelity.values()))
    return shown


def short_name(model: str) -> str:
    """What a model is called in the table: the folder of a file, or its name without weights."""
    path = Path(model)
    if path.suffix == ".safetensors":
        return path.parent.name
    return model.partition("@")[0].replace(":", "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data")
    parser.add_argument("--data_root", default="data")
    parser.add_argument("--count", type=int)
    parser.add_argument("--ig_steps", type=int)
    parser.add_argument("--device")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    columns = {}
    tables = []
    for model in options.models:
        name = short_name(model)
        result = evaluated(model, options.output / name, options)
        columns[name] = rows(result)
        tables.append(results_table(result.results).assign(model=name))
    pd.concat(tables).to_csv(options.output / "table.csv", index=False, float_format="%.6g")
    table = pd.DataFrame(columns)
    lines = [f"| | {' | '.join(table)} |", "|---" * (len(table.columns) + 1) + "|"]
    lines += [f"| {heading} | {' | '.join(map(str, cells))} |" for heading, *cells in table.itertuples()]
    (options.output / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
