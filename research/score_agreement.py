"""Do the scores agree, and does FPA bring them together? The numbers of docs/results/scores.md.

    fpa evaluate shapes-none --scores all --count 200 --ig_steps 50 --output runs/scores-none
    fpa evaluate shapes-fpa --scores all --count 200 --ig_steps 50 --output runs/scores-fpa
    python research/score_agreement.py runs/scores-none runs/scores-fpa --output docs/results/scores/shapes

    fpa run cifar10 --data.root data --augmentations none,fpa --evaluation.scores all \
        --data.evaluation_images 1000 --output runs/scores-cifar10
    python research/score_agreement.py runs/scores-cifar10 --output docs/results/scores/cifar10

Writes agreement-MODEL.csv (rank correlations), scores.md (score x estimator for every model) and
score-agreement.png into OUTPUT, and prints what the page quotes. Only pairs of scores that both rank all
explanations are counted: over the few signed ones alone a rank correlation says little.
"""

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np

import fpa
from fpa.evaluation.rankings import best, goodness
from fpa.evaluation.result import Result, Results
from fpa.show.figures import save, score_agreement
from fpa.show.names import estimator_names, model_name
from fpa.show.summary import over_unit
from fpa.show.tables import column_of


def read(folders: list[Path]) -> Results:
    """The models of several folders side by side, called by what they were trained with."""
    models: dict[str, Result] = {}
    for folder in folders:
        results = fpa.read_results(folder)
        for name, model in results.models.items():
            models[name if results.recipe is not None else model.augmentation] = model
    return Results("scores", models, about=next(iter(models.values())).about)


def counted(model: Result) -> list[tuple[str, str, float]]:
    """Pairs of scores that both rank all explanations, with their rank correlation."""
    table = model.score_correlations()
    whole = [name for name in table if set(model.signed) <= set(goodness(model, name))]
    return [(first, second, float(table.loc[first, second])) for first, second in combinations(whole, 2)]


def table(results: Results, name: str) -> str:
    """Score x estimator of a model, in Markdown."""
    names = estimator_names(results)
    keys = ["A", *results.score_titles]
    columns = {key: column_of(results, name, key).cells for key in keys}
    titles = [key + over_unit([results], key) for key in keys]
    lines = ["| estimator | " + " | ".join(titles) + " |", "|---" * (len(keys) + 1) + "|"]
    for estimator in results.estimators:
        cells = (columns[key][estimator] for key in keys)
        texts = (f"**{cell.text}**" if cell.best else cell.text for cell in cells)
        lines.append(f"| {names[estimator]} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    results = read(arguments.folders)
    arguments.output.mkdir(parents=True, exist_ok=True)
    parts = []
    for name, model in results.models.items():
        model.score_correlations().to_csv(arguments.output / f"agreement-{name}.csv", float_format="%.3f")
        pairs = counted(model)
        values = np.array([value for *_, value in pairs])
        opposed = sorted((pair for pair in pairs if pair[2] < 0), key=lambda pair: pair[2])
        winners = {key: best(model, key) for key in ["A", *results.score_titles]}
        print(f"{model_name(name)}: {len(model.evaluation.indices)} images, {len(pairs)} pairs of scores")
        alike = int((values > 0.8).sum())
        print(f"  mean rank correlation {values.mean():.2f}, under 0: {len(opposed)}, over 0.8: {alike}")
        print("  most opposed: " + ", ".join(f"{a} and {b} {value:.2f}" for a, b, value in opposed[:5]))
        print("  best by score: " + ", ".join(f"{key} {winner}" for key, winner in winners.items()))
        parts.append(f"{model_name(name)}:\n\n{table(results, name)}\n")
    (arguments.output / "scores.md").write_text("\n".join(parts), encoding="utf-8")
    save(score_agreement(results), arguments.output / "score-agreement")
    (arguments.output / "score-agreement.pdf").unlink()


if __name__ == "__main__":
    main()
