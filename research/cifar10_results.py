"""Put the results of studies into a folder of small files: no weights, no images but in figures.

    python research/cifar10_results.py runs/cifar10 runs/cifar10-seed1 --commit $(git rev-parse HEAD)
    python research/cifar10_results.py runs/food101-64 runs/food101-64-seed1 --commit FIRST SECOND \
        --output docs/results/food101

For every study: recipe, manifest, tables, training histories, mean curves with intervals, and each image's
areas under its MIF and LIF curves, from which every number and test can be made again. For all together:
the spread of A over the seeds beside the interval over images. `cifar10_conclusions.py` reads this folder.
"""

import argparse
import json
import shutil
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd

from fpa.evaluation.result import Results
from fpa.show.figures.results import overview
from fpa.show.figures.style import save
from fpa.study.read import read_study
from fpa.study.recipe import load_recipe

FIGURES = ("curves-signed", "curves-unsigned", "fidelity", "ranks", "lif-over-scores", "sign-fluctuation")


def mean_curves(study: Results) -> pd.DataFrame:
    """Mean normalised logit along every curve, with the half-width of its 95 % interval."""
    rows = []
    for augmentation, model in study.models.items():
        found = model.evaluation
        for estimator, score in model.fidelity.items():
            for order, curves in (("mif", found.mif[estimator]), ("lif", found.lif[estimator])):
                values = curves[score.kept].astype(np.float64) / found.unmasked[score.kept, None]
                half = 1.96 * values.std(0, ddof=1) / np.sqrt(len(values))
                for fraction, mean, width in zip(found.fractions, values.mean(0), half, strict=True):
                    rows.append((augmentation, estimator, order, fraction, mean, width))
    return pd.DataFrame(rows, columns=["augmentation", "estimator", "order", "fraction", "mean", "interval"])


def image_areas(study: Results) -> pd.DataFrame:
    """The areas in percent of the images used, one row per image, columns augmentation.estimator.order."""
    # All models of a study leave out the same images, so any of them says which are kept.
    first_model = next(iter(study.models.values()))
    kept = next(iter(first_model.fidelity.values())).kept
    columns = {"index": first_model.evaluation.indices[kept].astype(np.int32)}
    for augmentation, model in study.models.items():
        for estimator, score in model.fidelity.items():
            for order, areas in (("mif", score.mif_areas), ("lif", score.lif_areas)):
                columns[f"{augmentation}.{estimator}.{order}"] = areas[kept].astype(np.float32)
    return pd.DataFrame(columns)


def published_areas(data: str) -> dict[str, dict[str, float]]:
    """The paper's A of a data set, by augmentation and estimator; at 224 px for food101."""
    numbers = json.loads((resources.files("fpa.study") / "published.json").read_text(encoding="utf-8"))
    return {
        augmentation: {name: area for name, (area, _) in zip(numbers["estimators"], rows, strict=True)}
        for augmentation, rows in numbers.get(data, {}).items()
    }


def spread(studies: list[Results]) -> pd.DataFrame:
    """A of every seed, its spread (standard deviation over seeds) and the distance to the published A."""
    rows = []
    known = published_areas(studies[0].recipe["data"]["name"])
    for augmentation in studies[0].models:
        for estimator in studies[0].estimators:
            there = [study for study in studies if augmentation in study.models]
            scores = [study.models[augmentation].fidelity[estimator] for study in there]
            areas = np.array([score.area for score in scores])
            published = known.get(augmentation, {}).get(estimator, np.nan)
            difference = areas.mean() - published
            over = areas.std(ddof=1) if len(areas) > 1 else np.nan
            rows.append(
                {"augmentation": augmentation, "estimator": estimator}
                | {f"seed_{study.recipe['seed']}": a for study, a in zip(there, areas, strict=True)}
                | {
                    "mean": areas.mean(),
                    "spread_over_seeds": over,
                    "interval_over_images": max(score.interval for score in scores),
                    "mean_then_divide": np.mean([score.area_mean_then_divide for score in scores]),
                    "published": published,
                    "difference": difference,
                    "to_explain": abs(difference) > np.nanmax([5, 3 * over]),
                }
            )
    return pd.DataFrame(rows)


def write_study(study: Results, folder: Path, place: Path, commit: str) -> None:
    """The small files of one study, read from its folder."""
    place.mkdir(parents=True, exist_ok=True)
    manifest = {"commit": commit, **study.about}
    manifest.pop("files", None)
    (place / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    here = load_recipe(str(folder / "recipe.yaml"), {"data.root": "data"})  # not where it was run
    (place / "recipe.yaml").write_text(here.to_yaml())
    for name in ("table.csv", "table.md"):
        shutil.copyfile(folder / name, place / name)
    histories = [
        pd.read_csv(folder / name / "training.csv").assign(augmentation=name) for name in study.models
    ]
    pd.concat(histories).to_csv(place / "training.csv", index=False)
    mean_curves(study).to_csv(place / "curves.csv", index=False, float_format="%.6g")
    areas = image_areas(study)
    # Areas hardly repeat: bytes of equal place side by side are smaller than any dictionary.
    areas.to_parquet(
        place / "areas.parquet",
        index=False,
        compression="zstd",
        use_dictionary=False,
        column_encoding=dict.fromkeys(areas.columns, "BYTE_STREAM_SPLIT"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--commit", required=True, nargs="+", help="of the studies: one for all, or one each")
    parser.add_argument("--output", type=Path, default=Path("docs/results/cifar10"))
    chosen = parser.parse_args()
    studies = [read_study(folder) for folder in chosen.studies]
    commits = chosen.commit * len(studies) if len(chosen.commit) == 1 else chosen.commit
    for folder, study, commit in zip(chosen.studies, studies, commits, strict=True):
        write_study(study, folder, chosen.output / f"seed-{study.recipe['seed']}", commit)
    spread(studies).to_csv(chosen.output / "spread.csv", index=False, float_format="%.4f")
    for name in FIGURES:
        for source in (chosen.studies[0] / "figures").glob(f"{name}.png"):
            shutil.copyfile(source, chosen.output / source.name)
    for signed in (True, False):
        stem = chosen.output / f"seeds-{'signed' if signed else 'unsigned'}"
        for path in save(overview(studies, signed=signed), stem):
            if path.suffix == ".pdf":
                path.unlink()
    for path in sorted(chosen.output.rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size / 1024:8.0f} KiB  {path}")


if __name__ == "__main__":
    main()
