"""The trainings of a study: from a recipe to the jobs that the trainer runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fpa.data import ImageData, Normalisation, load_data
from fpa.data.splits import first_images
from fpa.errors import InputError
from fpa.files import tensors_fingerprint
from fpa.masking import get_masking, masking_code
from fpa.models import ModelCard, build_model
from fpa.models.starting import start_from, starting_weights
from fpa.progress import Display
from fpa.seeds import Stream, derive
from fpa.study.recipe import Recipe, Variant
from fpa.training.augment import FPA, Rectangle
from fpa.training.checks import check_jobs
from fpa.training.differences import STARTED_FROM
from fpa.training.run import Job, Trained
from fpa.training.settings import FPASettings
from fpa.training.tokens import DropTokens
from fpa.training.trainer import train_jobs


def train(
    recipe: Recipe,
    output: Path | str | Mapping[int, Path],
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

    `output` may also be a folder for each of several seeds, which are then trained together. `variants` names
    those of the recipe's trainings to run, default all; see `fpa.training.train_jobs` for the rest.
    """
    recipe.data.check()
    folders = output if isinstance(output, Mapping) else {recipe.seed: Path(output)}
    names = list(recipe.trainings(variants))
    files = [folder / name / "model.safetensors" for folder in folders.values() for name in names]
    # Finished trainings are only compared with the recipe, which needs no images.
    if data is None and (overwrite or not all(file.exists() for file in files)):
        data = load_recipe_data(recipe)
    jobs: list[Job] = []
    for seed, folder in folders.items():
        jobs += recipe_jobs(replace(recipe, seed=seed), folder, data, names)
    return train_jobs(
        jobs,
        data,
        device=device,
        workers=recipe.data.workers,
        tracker=tracker,
        display=display,
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
    start = None if recipe.weights is None else starting_weights(recipe.model, recipe.weights)
    # A file may be replaced by another of its name.
    started = {} if start is None else {STARTED_FROM: tensors_fingerprint(start)}
    for name, variant in recipe.trainings(names).items():
        seed = variant.seed or 0
        job = Job(
            name=name,
            settings=recipe.training,
            seed=seed,
            model=nn.Module,
            description=recipe.description(variant) | _own_code(recipe, variant) | started,
            folder=folder / name,
            locked=folder,
        )
        if data is not None:
            card = ModelCard(
                architecture=recipe.model,
                classes=data.classes,
                input_shape=data.input_shape,
                mean=data.normalisation.mean,
                std=data.normalisation.std,
                augmentation=variant.augmentation,
                variant=name,
            )
            job = replace(
                job,
                model=partial(_new_model, card, derive(seed, Stream.INITIAL), start),
                augment=make_augment(recipe, variant, data.normalisation),
                card=card,
            )
        jobs.append(job)
    return jobs


def _check_no_squares(fpa: FPASettings) -> None:
    """Refuse settings of squares, which a training that leaves out tokens would pass over in silence."""
    usual = FPASettings()
    for name in ("p2", "s_max", "squares"):
        if getattr(fpa, name) != getattr(usual, name):
            rule = f"fpa.{name} is for masks of pixels, and the masking drop leaves out tokens"
            raise InputError(f"{rule}: give such a variant an fpa of its own, with p and p1_max alone")


def make_augment(
    recipe: Recipe, variant: Variant, normalisation: Normalisation
) -> FPA | Rectangle | DropTokens | None:
    """The augmentation of a training; None for "none"."""
    variant = recipe.completed(variant)
    masking = get_masking(variant.masking, normalisation.mean, normalisation.std)
    if variant.augmentation == "fpa":
        fpa = variant.fpa or recipe.fpa
        if masking.selects:
            _check_no_squares(fpa)
            return DropTokens(p=fpa.p, p1_max=fpa.p1_max)
        return FPA(
            p=fpa.p,
            p1_max=fpa.p1_max,
            p2=fpa.p2,
            s_max=fpa.s_max,
            squares=fpa.squares,
            masking=masking,
        )
    if variant.augmentation == "rectangle":
        rectangle = variant.rectangle or recipe.rectangle
        return Rectangle(
            p=rectangle.p,
            area=rectangle.area,
            aspect=rectangle.aspect,
            coin=rectangle.coin,
            masking=masking,
        )
    return None


def _own_code(recipe: Recipe, variant: Variant) -> dict[str, Any]:
    """The code of the user's own masking, by which a training is continued; empty without any."""
    masking = variant.masking or recipe.masking
    name = masking if isinstance(masking, str) else masking.get("name")
    if variant.augmentation == "none" or name == "black":  # black needs images, and is fpa's
        return {}
    code = masking_code(get_masking(masking))
    return {} if code is None else {"code": {"masking": json.loads(json.dumps(code))}}


def load_recipe_data(recipe: Recipe) -> ImageData:
    """The data of a recipe, found and checked."""
    settings = recipe.data
    images = settings.evaluation_images
    data = load_data(settings.name, settings.root, evaluation_images=images, size=settings.size)
    if settings.train_images is not None and settings.train_images < len(data.train):
        data = replace(data, train=first_images(data.train, settings.train_images))
    return data


def check_data(recipe: Recipe, data: ImageData) -> None:
    """Refuse, before training, data that the recipe's models cannot be trained on."""
    recipe.data.check()
    check_jobs(recipe_jobs(recipe, Path(), data), data)


def _new_model(card: ModelCard, seed: int, start: Mapping[str, Tensor] | None) -> nn.Module:
    model = build_model(card.architecture, len(card.classes), card.input_shape, seed)
    if start is not None:
        start_from(model, start, card.architecture)
    return model.to(memory_format=torch.channels_last)  # faster convolutions, on a CPU too
