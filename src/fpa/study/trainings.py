"""The trainings of a study: from a recipe to the jobs that the trainer runs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fpa.data.normalisation import Normalisation
from fpa.data.sets import load_data
from fpa.data.splits import ImageData, first_images
from fpa.masking import get_masking
from fpa.models.architectures import build_model
from fpa.models.saved import ModelCard
from fpa.progress import Display
from fpa.seeds import Stream, derive
from fpa.study.recipe import Recipe, Variant
from fpa.training.augment import FPA, Rectangle
from fpa.training.run import Job, Trained
from fpa.training.trainer import check_jobs, train_jobs


def train(
    recipe: Recipe,
    output: Path | str,
    *,
    variants: Sequence[str] | None = None,
    data: ImageData | None = None,
    device: str | None = None,
    tracker: str | None = None,
    display: Display | None = None,
    overwrite: bool = False,
    timings: dict[str, float] | None = None,
) -> list[Trained]:
    """Train a recipe's models into `output`/NAME/model.safetensors, continuing with what is there.

    `variants` names those of its trainings to run, default all; see `fpa.training.train_jobs` for the rest.
    """
    return train_recipes(
        {Path(output): recipe},
        variants=variants,
        data=data,
        device=device,
        tracker=tracker,
        display=display,
        overwrite=overwrite,
        timings=timings,
    )


def train_recipes(
    recipes: Mapping[Path, Recipe],
    *,
    variants: Sequence[str] | None = None,
    data: ImageData | None = None,
    device: str | None = None,
    tracker: str | None = None,
    display: Display | None = None,
    overwrite: bool = False,
    timings: dict[str, float] | None = None,
) -> list[Trained]:
    """Train recipes that differ in their seeds alone, each into its folder; see `train`."""
    recipe = next(iter(recipes.values()))
    recipe.data.check()
    names = list(recipe.trainings(variants))
    files = [folder / name / "model.safetensors" for folder in recipes for name in names]
    if data is None and (overwrite or not all(file.exists() for file in files)):
        data = load_recipe_data(recipe)
    jobs = [job for folder, each in recipes.items() for job in recipe_jobs(each, folder, data, names)]
    return train_jobs(
        jobs,
        data,
        device=device,
        tracker=tracker,
        display=display,
        workers=recipe.data.workers,
        overwrite=overwrite,
        timings=timings,
    )


def recipe_jobs(
    recipe: Recipe, folder: Path, data: ImageData | None, names: Sequence[str] | None = None
) -> list[Job]:
    """The trainings of a recipe, or those that are named, as jobs that write into `folder`/NAME.

    Without `data` they can only be compared with what is there: masking and model depend on the images.
    """
    jobs = []
    for name, variant in recipe.trainings(names).items():
        assert variant.seed is not None
        job = Job(
            name,
            recipe.training,
            variant.seed,
            model=nn.Module,
            description=recipe.description(variant),
            folder=folder / name,
            locked=folder,
        )
        if data is not None:
            classes, shape = data.classes, data.input_shape
            card = ModelCard(
                architecture=recipe.model,
                classes=classes,
                input_shape=shape,
                mean=data.normalisation.mean,
                std=data.normalisation.std,
                augmentation=variant.augmentation,
                variant=name,
            )
            build = partial(
                _new_model, recipe.model, len(classes), shape, derive(variant.seed, Stream.INITIAL)
            )
            job = replace(
                job,
                model=build,
                augment=make_augment(recipe, variant, data.normalisation),
                card=card,
            )
        jobs.append(job)
    return jobs


def make_augment(recipe: Recipe, variant: Variant, normalisation: Normalisation) -> FPA | Rectangle | None:
    """The augmentation of a training; None for "none"."""
    variant = recipe.completed(variant)
    masking = get_masking(recipe.masking, normalisation.mean, normalisation.std)
    if variant.augmentation == "fpa" and variant.fpa:
        return FPA(**asdict(variant.fpa), masking=masking)
    if variant.augmentation == "rectangle" and variant.rectangle:
        return Rectangle(**asdict(variant.rectangle), masking=masking)
    return None


def load_recipe_data(recipe: Recipe) -> ImageData:
    """The data of a recipe, found and checked."""
    settings = recipe.data
    data = load_data(
        settings.name, settings.root, evaluation_images=settings.evaluation_images, size=settings.size
    )
    if settings.train_images is not None and settings.train_images < len(data.train):
        data = replace(data, train=first_images(data.train, settings.train_images))
    return data


def check_data(recipe: Recipe, data: ImageData) -> None:
    """Refuse, before training, data that the recipe's models cannot be trained on."""
    recipe.data.check()
    check_jobs(recipe_jobs(recipe, Path(), data), data)


def _new_model(architecture: str, classes: int, shape: tuple[int, int, int], seed: int) -> nn.Module:
    model = build_model(architecture, classes, shape, seed)
    return model.to(memory_format=torch.channels_last)  # faster convolutions, on a CPU too
