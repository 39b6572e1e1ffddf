"""`fpa finetune`: make a model trained without FPA fit for evaluation."""

from typing import Any, Literal

from fpa.cli.options import ModelOptions, RunOptions, default_output


def finetune(
    model: str,
    *,
    images: ModelOptions,
    epochs: int = 2,
    learning_rate: float = 0.003,
    batch_size: int = 64,
    targets: Literal["auto", "labels", "model"] = "auto",
    masking: dict[str, Any] | str = "constant",
    p: float | None = None,
    p1_max: float | None = None,
    p2: float | None = None,
    s_max: int | None = None,
    seed: int = 0,
    run: RunOptions,
) -> int:
    """Train an existing model for a few epochs with FPA, so that explanations can be evaluated on it.

    If it is stopped, the same command continues. The folder gets model.safetensors and training.csv.

    Args:
        model: A .safetensors file written by fpa, the name of a shipped model, torchvision:NAME, timm:NAME,
            or module:function that returns a model.
        epochs: Passes over the training images.
        learning_rate: Largest learning rate.
        batch_size: Images in a step.
        targets: What is learned: labels, model (the model's own predictions on unmasked images), or auto:
            the labels if the classes are the model's, else the model's predictions.
        masking: What removing a pixel means, as in fpa evaluate.
        p: Share of the batches that are perturbed; default: the paper's value for the image size.
        p1_max: Largest share of the pixels selected; default: the paper's value for the image size.
        p2: Share of the selected pixels that start a square; default: the paper's value for the image size.
        s_max: Largest side of a square; default: the paper's value for the image size.
        seed: Seed of everything random.

    """
    from dataclasses import asdict

    from fpa.data.labels import class_numbers
    from fpa.data.sets import has_own_test, tuning_data
    from fpa.engine.devices import check_device
    from fpa.masking import get_masking
    from fpa.models.saved import ModelCard
    from fpa.models.wrap import class_count
    from fpa.progress import Display
    from fpa.training import finetuning
    from fpa.training.augment import FPA
    from fpa.training.settings import suggested_fpa

    check_device(run.device)
    subject = images.open(model)
    data = tuning_data(subject.data, images.data_root, size=subject.size)
    outputs = class_count(subject.model, data.input_shape)
    index = None
    if images.class_index is not None:
        index = class_numbers(data.classes, outputs, subject.classes, images.class_index)
    network: Any = subject.model
    card: ModelCard | None = getattr(network, "card", None)
    network.card = ModelCard(
        architecture=model if card is None else card.architecture,
        classes=subject.classes or [str(number) for number in range(outputs)],
        input_shape=data.input_shape,
        mean=subject.normalisation.mean,
        std=subject.normalisation.std,
    )
    chosen = {"p": p, "p1_max": p1_max, "p2": p2, "s_max": s_max}
    settings = asdict(suggested_fpa(*data.input_shape[1:]))
    settings |= {name: value for name, value in chosen.items() if value is not None}
    output = run.output or default_output("finetune", subject.name)
    with Display(quiet=run.quiet) as display:
        tuned: Any = finetuning.finetune(
            network,
            data,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            fpa=FPA(
                **settings,
                masking=get_masking(masking, subject.normalisation.mean, subject.normalisation.std),
            ),
            targets=targets,
            class_index=index,
            seed=seed,
            device=run.device,
            output=output,
            data_root=images.data_root,
            workers=images.workers,
            overwrite=run.overwrite,
            display=display,
        )
    if not run.quiet:
        by_model = tuned.card.recipe["targets"] == "model"
        what = "agreement with the original" if by_model else "test accuracy"
        if not has_own_test(data):
            what = f"{what.removeprefix('test ')} on the training images"
        same = card is not None and card.recipe.get("data", {}).get("name") == data.name
        known = card.accuracy if card is not None and same and not by_model else None
        before = "" if known is None else f" (before: {100 * known:.1f}%)"
        print(f"{what} {100 * tuned.card.accuracy:.1f}%{before}  {output / 'model.safetensors'}")
    return 0
