"""Does the verdict depend on the output that is followed? Five outputs, maps and curves of the same one.

    python research/outputs.py runs/cifar10 runs/cifar10-seed1 --data data [--count 2000]
    python research/outputs.py --shown

Every model of every study folder is evaluated once for each output, with maps of that output, over the first
`--count` test images. What was measured is kept in `docs/results/outputs.csv`, a row for each estimator;
models that are in it are not run again. The tables go into `docs/results/outputs.md`, at its marks: pairs in
opposite order by kind, A (divided by its start, or mean then divide where it is not), and how far the ranking
agrees with that of the logit. `--shown` only fills in the page.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import fpa
from cifar10_conclusions import estimator_name, filled
from fpa.data.sets import load_data
from fpa.engine import Engine
from fpa.explanation import PAPER, Settings
from fpa.models.saved import load_model
from fpa.show.names import model_name
from fpa.statistics.contradictions import KINDS
from fpa.statistics.intervals import spearman

OUTPUTS = ("logit", "centred", "margin", "log_odds", "probability")
PAGE = Path("docs/results/outputs.md")
NINE = [name for name in PAPER if name != "random"]


def measure(engine: Engine, data: Any, output: str, settings: Settings) -> list[dict[str, Any]]:
    """A row for each estimator, with the counts of the model beside it."""
    result = fpa.evaluate(
        engine, data, "paper", outputs=output, settings=settings, examples=0, progress=False
    )
    table = result.reliability.table()
    counts = {}
    for kind in KINDS:
        counts[f"{kind} opposite"] = int(table.opposite[kind])
        counts[f"{kind} significant"] = int(table.contradictions[kind])
    best_first = list(result.reliability.by_area)
    return [
        {
            "output": output,
            "estimator": name,
            "area": found.area,
            "interval": found.interval,
            "mean_then_divide": found.area_mean_then_divide,
            "robust": found.area_robust,
            "rank": best_first.index(name) + 1 if name in best_first else None,
            "used": found.used,
            "offset": result.head.offset if result.head else None,
            **counts,
        }
        for name, found in result.fidelity.items()
    ]


def by_output(rows: pd.DataFrame, title: str, entries: dict[str, str], cell: Callable[..., str]) -> list[str]:
    """Rows of a model and an entry (key, shown), a column an output: `cell(rows of a model, key, output)`."""
    lines = [f"| trained with, seed | {title} | " + " | ".join(OUTPUTS) + " |"]
    lines.append("|---|---|" + "---:|" * len(OUTPUTS))
    for (augmentation, seed), model in rows.groupby(["augmentation", "seed"], sort=False):
        for key, shown in entries.items():
            cells = " | ".join(cell(model, key, output) for output in OUTPUTS)
            lines.append(f"| {model_name(augmentation)}, {seed} | {shown} | {cells} |")
    return lines


def opposite_table(rows: pd.DataFrame) -> list[str]:
    """Pairs in opposite order by kind, significant ones in brackets."""
    kinds = {"signed-unsigned": 18, "signed-signed": 3, "unsigned-unsigned": 15}

    def cell(model: pd.DataFrame, kind: str, output: str) -> str:
        found = model.groupby("output").first().loc[output]
        return f"{found[f'{kind} opposite']:.0f} ({found[f'{kind} significant']:.0f})"

    return by_output(rows, "pairs", {kind: f"{kind}, {pairs}" for kind, pairs in kinds.items()}, cell)


def area_table(rows: pd.DataFrame) -> list[str]:
    """A of every estimator: of logit and centred as it is, of the others mean then divide, in percent."""

    def cell(model: pd.DataFrame, name: str, output: str) -> str:
        found = model[model.estimator == name].set_index("output").loc[output]
        return f"{found['area' if output in ('logit', 'centred') else 'mean_then_divide']:.1f}"

    return by_output(rows, "estimator", {name: estimator_name(name) for name in PAPER}, cell)


def rank_table(rows: pd.DataFrame) -> list[str]:
    """Spearman's correlation over the nine of A of each output with A of the logit."""
    lines = ["| trained with, seed | offset of the head | " + " | ".join(OUTPUTS[1:]) + " |"]
    lines.append("|---|---:|" + "---:|" * (len(OUTPUTS) - 1))
    for (augmentation, seed), model in rows.groupby(["augmentation", "seed"], sort=False):
        areas = model.pivot(index="estimator", columns="output", values="area").loc[NINE]
        cells = [f"{float(spearman(areas['logit'], areas[name])):.2f}" for name in OUTPUTS[1:]]
        offset = f"{100 * model.offset.dropna().iloc[0]:.1f} %"
        lines.append(f"| {model_name(augmentation)}, {seed} | {offset} | " + " | ".join(cells) + " |")
    return lines


def show(table: Path, page: Path) -> None:
    """Print the tables, and put them into the page."""
    rows = pd.read_csv(table)
    tables = {"opposite": opposite_table(rows), "ranks": rank_table(rows), "areas": area_table(rows)}
    for lines in tables.values():
        print("\n".join([*lines, ""]))
    if page.exists():
        page.write_text(filled(page.read_text(encoding="utf-8"), tables), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("studies", nargs="*", type=Path, help="folders of CIFAR-10 studies, one a seed")
    parser.add_argument("--data", default="data", help="folder that holds CIFAR-10")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--variants", nargs="*", default=["none", "rectangle", "fpa"])
    parser.add_argument("--output", type=Path, default=PAGE.with_suffix(".csv"))
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--tiny", action="store_true", help="few images and steps, to see that it runs")
    parser.add_argument("--shown", action="store_true", help="fill in the page from what was measured before")
    chosen = parser.parse_args()
    rows = pd.read_csv(chosen.output).to_dict("records") if chosen.output.exists() else []
    if not chosen.shown:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        loaded = load_data("cifar10", chosen.data)
        count = 8 if chosen.tiny else chosen.count
        data = loaded.normalisation(loaded.test.images[:count]), loaded.test.labels[:count]
        settings = Settings(ig_steps=3, sg_samples=2) if chosen.tiny else Settings()
        for study in chosen.studies:
            for variant in chosen.variants:
                model: Any = load_model(study / variant / "model.safetensors", device)
                seed = int(model.card.recipe["seed"])
                if any((row["augmentation"], row["seed"]) == (variant, seed) for row in rows):
                    continue
                engine = Engine(model, expected_rows=0 if chosen.tiny else 10**7)
                for output in OUTPUTS:
                    began = time.perf_counter()
                    found = measure(engine, data, output, settings)
                    rows += [{"augmentation": variant, "seed": seed, **row} for row in found]
                    print(f"{variant:9} {seed} {output:11} {time.perf_counter() - began:6.1f} s", flush=True)
                pd.DataFrame(rows).to_csv(chosen.output, index=False, float_format="%.4f")
    show(chosen.output, chosen.page)


if __name__ == "__main__":
    main()
