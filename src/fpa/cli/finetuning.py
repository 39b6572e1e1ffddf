"""The command `fpa finetune`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

import fpa
from fpa.auditing.rule import FEWEST_IMAGES
from fpa.cli.auditing import side_by_side, write
from fpa.cli.folders import claimed
from fpa.cli.naming import default_output
from fpa.cli.options import ModelOptions, NamedModel, RunOptions, show_estimate
from fpa.errors import InputError, at_least, counted, percent
from fpa.evaluation.options import AuditOptions
from fpa.files import folder_lock, is_main_process
from fpa.progress import Display

if TYPE_CHECKING:
    from torch import nn

    from fpa.data.splits import ImageData
    from fpa.training.tuning import TuningChoices


@dataclass(kw_only=True)
class PerturbationOptions:
    """What images lose in training.

    Attributes:
        masking: What removing a pixel means, as in fpa evaluate; drop: a vision transformer is not given a
            share of its tokens, the same in all images of a batch.
        augmentation: fpa, or cell: half of the images lose one cell of a grid of 4 x 4, for the score idsds.
        p: Share of the batches that are perturbed; default: the paper's value for the image size, or 1 for
            the model's own predictions. With cell: share of the images; default: 0.5.
        p1_max: Largest share of the pixels selected; default for labels: the paper's value for the image
            size; for the model's own predictions: 0.25 up to 32 px, rising to 0.5 at 224 px and above. With
            --masking drop: largest share of the tokens left out; default: 7/8.
        p2: Share of the selected pixels that start a square; default: the paper's value for the image size.
        s_max: Largest side of a square; default: the paper's value for the image size.

    """

    masking: dict[str, Any] | str = "constant"
    augmentation: Literal["fpa", "cell"] = "fpa"
    p: float | None = None
    p1_max: float | None = None
    p2: float | None = None
    s_max: int | None = None

    def made(self, normalisation: "fpa.Normalisation") -> "fpa.Cell | dict[str, Any]":
        """The cells of `fpa.Cell`, or what differs from the default of FPA."""
        chosen = {"p": self.p, "p1_max": self.p1_max, "p2": self.p2, "s_max": self.s_max}
        given = {name: value for name, value in chosen.items() if value is not None}
        removal = fpa.get_masking(self.masking, normalisation.mean, normalisation.std)
        if self.augmentation == "fpa":
            return {**given, "masking": removal}
        others = sorted(set(given) - {"p"})
        if others:
            raise InputError(f"--{others[0]} is a setting of fpa, not of --augmentation cell")
        return fpa.Cell(given["p"], masking=removal) if "p" in given else fpa.Cell(masking=removal)


def finetune(
    model: str,
    *,
    images: ModelOptions,
    epochs: int | None = None,
    learning_rate: float | None = None,
    batch_size: int = 64,
    targets: Literal["auto", "labels", "model"] = "auto",
    lost: PerturbationOptions,
    no_crop: bool = False,
    no_flip: bool = False,
    clean: float = 0.0,
    way: float = 1.0,
    audit_images: int = 500,
    seed: int = 0,
    run: RunOptions,
) -> int:
    """Train an existing model a little further with FPA, so that explanations can be evaluated on it.

    If it is stopped, the same command continues. The folder gets model.safetensors, training.csv, and in
    audit-before-N and audit-after-N what fpa audit says of the two models, on N images.

    Args:
        model: A .safetensors file written by fpa, the name of a shipped model, torchvision:NAME, timm:NAME,
            hf:NAME (or hf:FOLDER, of Hugging Face), or module:function that returns a model.
        epochs: Passes over the training images; default: as many as make 7,800 steps, but no more than 60.
        learning_rate: Largest learning rate; default: 0.01 for labels (SGD), 0.0003 for the model's own
            predictions (AdamW).
        batch_size: Images per step.
        targets: What the model learns: model (its own predictions on unmasked images), labels, or auto:
            labels if --class_index is given, otherwise model.
        no_crop: Learn from the centre of each photo, instead of random parts of it.
        no_flip: Flip no images: for those whose mirror image means something else, as of text and X-rays.
        clean: Share of the loss that images without masks have, below 1.
        way: How much of the way from the original weights to those that were learned the model goes, up to 1.
        audit_images: Images on which the model is audited as it was and as it is now; 0: no audits, of which
            there are none with cell either.
        seed: Seed of everything random.

    """
    from fpa.data.sets import tuning_data
    from fpa.training.finetuning import tune
    from fpa.training.tuning import TuningChoices

    at_least("--audit_images", audit_images, 0)
    subject = images.open(model)
    perturbation = lost.made(subject.normalisation)
    data = tuning_data(subject.data, images.data_root, size=subject.size)
    # The card that the model came with: `_describe` replaces it.
    card: fpa.ModelCard | None = getattr(subject.model, "card", None)
    index = _describe(subject, model, data, images.class_index)
    output = run.output or default_output("finetune", subject.name)
    how = _audits(subject, lost, data, audit_images)
    choices = TuningChoices(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        fpa=perturbation,
        targets=targets,
        class_index=index,
        crop=not no_crop,
        flip=not no_flip,
        clean=clean,
        way=way,
        seed=seed,
        device=run.device,
        folder=output,
        data_root=images.data_root,
        workers=images.workers,
    )
    if run.estimate:
        return _estimate(subject, data, images, choices, how)
    with Display(quiet=run.quiet or not is_main_process()) as display:
        tuned = tune(subject.model, data, choices, overwrite=run.overwrite, progress=display)
    if not is_main_process():  # one of several that train together; the first does the rest
        return 0
    if not run.quiet:
        print(f"{_accuracy(tuned, card, data)}  {output / 'model.safetensors'}")
    if how is not None:
        _audit_both(subject, tuned, data, images, how, output=output, run=run)
    return 0


def _audits(
    subject: NamedModel, lost: PerturbationOptions, data: "ImageData", most: int
) -> AuditOptions | None:
    """How the model is audited before and after, on at most so many images; None: not at all."""
    features = _features(subject, lost.masking, data)
    count = min(most, len(data.evaluation))
    if not count or lost.augmentation == "cell":  # the audit removes pixels anywhere, not cells
        return None
    return AuditOptions(("paper",), count=count, ig_steps=50, maskings=[lost.masking], features=features)


def _features(subject: NamedModel, masking: dict[str, Any] | str, data: "ImageData") -> str | int:
    """What the audits remove together: the patches of a network whose tokens are left out, else pixels."""
    import torch

    removal = fpa.get_masking(masking, subject.normalisation.mean, subject.normalisation.std)
    if not removal.selects:
        return "pixels"
    image = torch.zeros(1, *data.input_shape)
    return fpa.Engine.of(subject.model, image).token_grid(image).patch


def _describe(
    subject: NamedModel, model: str, data: "ImageData", class_index: str | None
) -> list[int] | None:
    """Give the model the card that its file will have; which output stands for which class, where told."""
    from fpa.data.labels import class_numbers
    from fpa.models.wrap import class_count

    outputs = class_count(subject.model, data.input_shape)
    index = None
    if class_index is not None:
        index = class_numbers(data.classes, outputs, subject.classes, class_index)
    card: fpa.ModelCard | None = getattr(subject.model, "card", None)
    network: Any = subject.model
    network.card = fpa.ModelCard(
        architecture=model if card is None else card.architecture,
        classes=subject.classes or [str(number) for number in range(outputs)],
        input_shape=data.input_shape,
        mean=subject.normalisation.mean,
        std=subject.normalisation.std,
    )
    return index


def _accuracy(tuned: Any, card: "fpa.ModelCard | None", data: "ImageData") -> str:
    """How often the model is right now, or agrees with the original, and how often it was right before."""
    from fpa.data.sets import has_own_test

    by_model = tuned.card.recipe["targets"] == "model"
    tested = has_own_test(data)
    accuracy = "test accuracy" if tested else "accuracy"
    what = "agreement with the original" if by_model else accuracy
    where = "" if tested else " on the training images"
    earlier = {} if card is None else card.recipe
    seen = earlier.get("data")
    # Of a model that learned its own predictions, the card says how often it agrees with the original.
    same = isinstance(seen, dict) and seen.get("name") == data.name and earlier.get("targets") != "model"
    known = card.accuracy if card is not None and same and not by_model else None
    before = "" if known is None else f" (before: {percent(known)})"
    return f"{what}{where} {percent(tuned.card.accuracy)}{before}"


def _estimate(
    subject: NamedModel,
    data: "ImageData",
    images: ModelOptions,
    choices: "TuningChoices",
    how: AuditOptions | None,
) -> int:
    """Print what the training takes, and the audits before and after it, where there are any."""
    from fpa.auditing.auditor import audit_plan, prepare_audit
    from fpa.engine.devices import chosen_device
    from fpa.engine.estimate import LIMIT, Estimate
    from fpa.evaluation.estimate import estimate_case
    from fpa.training.tuning import prepare_tuning

    stages = prepare_tuning(subject.model, data, choices).estimate(LIMIT / 2).stages
    if how is None:
        return show_estimate(Estimate(stages, chosen_device(choices.device)))
    options = replace(
        how,
        normalisation=subject.normalisation,
        class_index=images.class_index,
        device=chosen_device(choices.device),
    )
    case = prepare_audit(subject.model, data, audit_plan(options), options, classes=subject.classes)
    (audit,) = estimate_case(case, seconds=LIMIT / 2).stages
    both = (replace(audit, name="audit before"), replace(audit, name="audit after"))
    return show_estimate(Estimate((*stages, *both), str(options.device), case.source.count))


def _audit_both(
    subject: NamedModel,
    tuned: "nn.Module",
    data: "ImageData",
    images: ModelOptions,
    how: AuditOptions,
    *,
    output: Path,
    run: RunOptions,
) -> None:
    """Audit a model as it was and after fine-tuning, and show the two verdicts beside each other."""
    from fpa.auditing.auditor import audit_case, audit_plan, prepare_audit
    from fpa.engine.devices import chosen_device

    options = replace(
        how,
        normalisation=subject.normalisation,
        class_index=images.class_index,
        device=chosen_device(run.device),
        overwrite=run.overwrite,
    )
    plan = audit_plan(options)
    verdicts: dict[str, fpa.Audit] = {}
    for when, network in {"before": subject.model, "after": tuned}.items():
        folder = output / f"audit-{when}-{how.count}"
        options = replace(options, folder=folder, name=f"{subject.name}, {when}")
        case = prepare_audit(network, data, plan, options, classes=subject.classes, workers=images.workers)
        # The labels are the same both times: what is to be said of them is said once.
        with claimed(folder, run, [case.label_note] if when == "before" else []) as display:
            progress = display.evaluating(f"audit {when}", case.source.count)
            verdicts[when] = audit_case(case, replace(options, progress=progress))
            with folder_lock(folder):
                write(verdicts[when], folder)
    if not run.quiet:
        _print_both(verdicts, how.count or 0)
        print(f"page: {output / f'audit-after-{how.count}' / 'audit.html'}")


def _print_both(verdicts: "Mapping[str, fpa.Audit]", count: int) -> None:
    """Show the verdicts before and after fine-tuning in a table, and what may help."""
    Console().print(side_by_side(verdicts, f"audit of {counted(count)}"))
    verdict = verdicts["after"].verdict
    if verdict != "reliable":
        few = count < FEWEST_IMAGES or verdict == "cannot tell"
        more = "more images for the audit (--audit_images)" if few else "more epochs, or more training images"
        print(f"{verdict}: {more} may help")
