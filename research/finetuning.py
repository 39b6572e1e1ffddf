"""What both fine-tuning experiments do with their models: evaluate, tabulate, draw."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

import fpa
from fpa.data.splits import ImageData
from fpa.engine import Engine
from fpa.evaluation.evaluation import Evaluation
from fpa.explanation import PAPER, Settings
from fpa.files import write_text
from fpa.masking import Constant
from fpa.progress import Display
from fpa.scores.fidelity import Fidelity, common_images
from fpa.seeds import by_image
from fpa.show.figures.style import save
from fpa.show.names import estimator_name
from fpa.statistics.contradictions import reliability
from fpa.statistics.intervals import spearman
from fpa.training.trainer import accuracy

SHARES = (0.1, 0.25, 0.5)
DRAWN = {"ig_sum": ("#D55E00", "o"), "sgx_sum": ("#0072B2", "s"), "vg_abs": ("#009E73", "^")}
_MASKS = 11  # a stream of random numbers of its own
SIGNED = {name: each.signed for name, each in PAPER.items() if each.sign != "baseline"}


@dataclass
class Measured:
    """A model, measured."""

    name: str
    epochs: int | None
    """Epochs of fine-tuning; None for a model it is compared with."""
    seconds: float | None
    accuracy: float
    kept: dict[str, float]
    """logit and accuracy kept under random masking, by name of the column."""
    curves: Evaluation


def timed(folder: Path, work: Callable[[], nn.Module]) -> tuple[nn.Module, float]:
    """The result of the work and its seconds; a second call continues from there and knows the time."""
    note = folder / "seconds.json"
    began = time.perf_counter()
    result = work()
    if not note.exists():
        write_text(note, json.dumps(round(time.perf_counter() - began, 2)))
    return result, float(json.loads(note.read_text()))


def measure(
    name: str,
    model: nn.Module,
    folder: Path,
    *,
    data: ImageData,
    images: Tensor,
    labels: Tensor,
    ig_steps: int,
    display: Display,
    epochs: int | None = None,
    seconds: float | None = None,
) -> Measured:
    """Accuracy on the test images of `data`; on the normalised `images`, where they are, the curves of the
    ten estimators and what random masking leaves of the logit.
    """
    right = accuracy(model.to(images.device), data, images.device, batch_size=100)
    engine = Engine(model)
    result = fpa.evaluate(
        engine,
        (images, labels),
        settings=Settings(ig_steps=ig_steps),
        folder=folder,
        examples=0,
        progress=display.evaluating(name, len(images)),
    )
    kept = kept_under_masking(engine, images, labels)
    return Measured(
        name=name,
        epochs=epochs,
        seconds=seconds,
        accuracy=right,
        kept=kept,
        curves=result.evaluation,
    )


def margin(audit: fpa.Audit) -> float:
    """The least by which LIF agrees with MIF on the order of a signed-unsigned pair; below 0: it does not."""
    pairs = [pair for pair in audit.reliability.pairs if pair.kind == "signed-unsigned"]
    return float(min(-pair.lif if pair.mif > 0 else pair.lif for pair in pairs))


def kept_under_masking(engine: Engine, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean share of the predicted class's logit, and accuracy, with random pixels masked."""
    whole = engine.predict(images).cpu()
    chosen = whole.argmax(1, keepdim=True)
    before = whole.gather(1, chosen)[:, 0]
    usable = before > 0
    found = {}
    for share in SHARES:
        masked = []
        for start in range(0, len(images), 250):
            part = images[start : start + 250]
            numbers = range(start, start + len(part))
            mask = by_image(part.shape[2:], 0, numbers, _MASKS, draw="uniform") < share
            masked.append(engine.predict(Constant()(part, mask.to(part.device))).cpu())
        logits = torch.cat(masked)
        ratio = (logits.gather(1, chosen)[:, 0] / before)[usable]
        found[f"logit kept at {share:.0%}"] = float(ratio.mean())
        found[f"accuracy at {share:.0%}"] = float((logits.argmax(1) == labels.cpu()).float().mean())
    return found


def tabulate(models: list[Measured], reference: str | None) -> pd.DataFrame:
    """A row a model; A over the images that all models keep, its ranking against that of `reference`."""
    keep = common_images(*(model.curves.unmasked for model in models))
    fidelity = {
        model.name: {
            name: Fidelity.from_curves(
                model.curves.mif[name], model.curves.lif[name], model.curves.fractions, keep=keep
            )
            for name in model.curves.mif
        }
        for model in models
    }
    rows = []
    for model in models:
        scores = fidelity[model.name]
        found = reliability(scores, SIGNED)
        between = [pair for pair in found.pairs if pair.kind == "signed-unsigned"]
        row: dict[str, Any] = {"model": model.name, "epochs": model.epochs, "seconds": model.seconds}
        row |= {"accuracy": model.accuracy, "images": int(keep.sum()), **model.kept}
        row |= {"contradictions": sum(pair.opposite for pair in between), "pairs": len(between)}
        row["significant"] = sum(pair.contradiction for pair in between)
        row["MIF-LIF correlation"] = found.correlation["all"].value
        if reference is not None:
            compared = [name for name in scores if name != "random"]
            mine, theirs = (
                [fidelity[one][name].area for name in compared] for one in (model.name, reference)
            )
            row[f"Spearman of A with {reference}"] = float(spearman(mine, theirs))
        for name, score in scores.items():
            row |= {f"A {name}": score.area, f"interval {name}": score.interval}
        rows.append(row)
    return pd.DataFrame(rows)


def write_tables(table: pd.DataFrame, folder: Path) -> None:
    """table.csv with every number, table.md for reading: a column a model."""
    write_text(folder / "table.csv", table.to_csv(index=False, float_format="%.6g"))
    lines = ["| |" + "|".join(f" {name} " for name in table["model"]) + "|"]
    lines.append("|---|" + "---|" * len(table))

    def line(title: str, cells: list[str]) -> None:
        lines.append(f"| {title} | " + " | ".join(cells) + " |")

    line("accuracy, %", [f"{100 * value:.1f}" for value in table["accuracy"]])
    if "accuracy change" in table:
        changes = zip(table["accuracy change"], table["accuracy change interval"], strict=True)
        cells = [f"{change:+.1f} ± {width:.1f}" for change, width in changes]
        line("change of accuracy, points, paired", ["", *cells[1:]])
        line("audit", list(table["audit"]))
    for column in table.columns:
        if " kept at " in column or column.startswith("accuracy at "):
            line(f"{column} masked, %", [f"{100 * value:.0f}" for value in table[column]])
    counts = zip(table["contradictions"], table["pairs"], table["significant"], strict=True)
    line("contradictions (significant)", [f"{wrong} of {all_} ({sure})" for wrong, all_, sure in counts])
    for column in table.columns:
        if column.startswith(("MIF-LIF", "Spearman")):
            line(column, [f"{value:.2f}" for value in table[column]])
        elif column.startswith("A "):
            widths = table[f"interval {column.removeprefix('A ')}"]
            cells = [f"{a:.1f} ± {w:.1f}" for a, w in zip(table[column], widths, strict=True)]
            line(f"A of {_estimator(column.removeprefix('A '))}", cells)
    line("seconds of fine-tuning", ["" if pd.isna(s) else f"{s:.0f}" for s in table["seconds"]])
    write_text(folder / "table.md", "\n".join(lines) + "\n")


def _estimator(name: str, style: str = "text") -> str:
    return estimator_name(name, style, label=PAPER[name].label(name))


def draw(table: pd.DataFrame, stem: Path, lines: dict[str, str]) -> None:
    """Accuracy, A and contradictions against epochs; `lines` are models drawn as lines, with their dashes."""
    tuned = table[table["epochs"].notna()].sort_values("epochs")
    figure = Figure(figsize=(7.4, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    places = np.arange(len(tuned))
    for name, (colour, marker) in DRAWN.items():
        middle.errorbar(
            places, tuned[f"A {name}"], tuned[f"interval {name}"],
            color=colour, marker=marker, ms=4, label=_estimator(name, "mathtext"),
        )  # fmt: skip
    left.plot(places, 100 * tuned["accuracy"], color="#000000", marker="o", ms=4, label="unmasked")
    for share, colour in zip(SHARES, ("#555555", "#8C8C8C", "#B5B5B5"), strict=True):
        values = 100 * tuned[f"accuracy at {share:.0%}"]
        left.plot(places, values, color=colour, marker="o", ms=3, label=f"{share:.0%} masked")
    right.plot(places, tuned["contradictions"], color="#C8102E", marker="o", ms=4)
    for model, dashes in lines.items():
        row = table[table["model"] == model].iloc[0]
        left.axhline(100 * row["accuracy"], color="#000000", ls=dashes, lw=0.9)
        right.axhline(row["contradictions"], color="#C8102E", ls=dashes, lw=0.9, label=model)
        for name, (colour, _) in DRAWN.items():
            middle.axhline(row[f"A {name}"], color=colour, ls=dashes, lw=0.9)
    left.set_title("Accuracy, %")
    middle.set_title("Fidelity A")
    right.set_title(f"Contradictions of {int(table['pairs'].max())}")
    right.set_ylim(-0.5, table["pairs"].max() + 0.5)
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (left, middle, right):
        axis.set_xticks(places, [f"{epochs:.0f}" for epochs in tuned["epochs"]])
        axis.set_xlabel("Epochs of fine-tuning")
        axis.spines[["top", "right"]].set_visible(False)
        # Below the axis: inside it would hide lines.
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2, fontsize=7, frameon=False)
    save(figure, stem)
