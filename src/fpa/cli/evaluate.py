"""`fpa evaluate`: explain, perturb and score one model."""

from pathlib import Path
from typing import Any

from fpa.cli.options import EvaluationOptions, ModelOptions, RunOptions, default_output, show
from fpa.errors import InputError


def evaluate(
    model: str,
    *,
    images: ModelOptions,
    how: EvaluationOptions,
    masking: dict[str, Any] | str | None = None,
    outputs: list[str] = ["logit"],  # noqa: B006
    scores: list[str] = ["A"],  # noqa: B006
    examples: int = 8,
    run: RunOptions,
    command: str,
) -> int:
    """Explain, perturb and score one model: saved, shipped, torchvision's, timm's or your own.

    If it is stopped, the same command continues. The folder gets the numbers, tables, figures and a report.

    Args:
        model: A .safetensors file written by fpa, the name of a shipped model, torchvision:NAME, timm:NAME,
            or module:function that returns a model.
        masking: What removing a pixel means: constant, black, mean, minimum, maximum, uniform, blur, bokeh or
            module:Class, with parameters as in --masking.name blur --masking.sigma 4; default: the masking
            that the model was trained with, or constant.
        outputs: What is followed while pixels are removed: logit, probability, margin or accuracy; the first
            is scored.
        scores: Names of scores, or module:NAME; A is always among them.
        examples: Images shown with their maps in figures and report.

    """
    from fpa.engine.devices import check_device
    from fpa.errors import at_least
    from fpa.evaluation.evaluator import class_names, open_engine
    from fpa.evaluation.loop import evaluate_blocks
    from fpa.evaluation.plan import make_plan
    from fpa.files import folder_lock
    from fpa.progress import Display
    from fpa.show import STAGES, show_all
    from fpa.study.folder import SHOWN_FILES
    from fpa.study.read import read_results

    check_device(run.device)
    at_least("--examples", examples, 0)
    subject = images.open(model)
    card = getattr(subject.model, "card", None)
    trained = {} if card is None else card.recipe
    plan = make_plan(
        masking=masking or trained.get("masking", "constant"),
        outputs=outputs,
        scores=scores,
        **how.plan(subject.normalisation),
    )
    source, note = images.images(subject, how.count)
    engine = open_engine(how.engine(subject.model, source, run.device), source, plan)
    augmentation = "" if card is None else card.augmentation
    about = {
        "name": subject.name,
        "classes": class_names(subject.classes, engine, source, subject.model),
        "data": source.name,
        "augmentation": augmentation,
        "training": trained.get(augmentation, {}),
        "command": command,
    }
    output = run.output or default_output("evaluate", subject.name, how.count)
    with folder_lock(output), Display(quiet=run.quiet) as display:
        claim(output, overwrite=run.overwrite)
        if note:
            display.say(note)
        with display.evaluating(subject.name, source.count) as tell:
            evaluate_blocks(
                engine,
                source,
                plan,
                output,
                about=about,
                examples=examples,
                overwrite=run.overwrite,
                progress=tell,
            )
        display.unreadable(source.lost)
        for name in SHOWN_FILES:  # they may be of an evaluation that was overwritten
            (output / name).unlink(missing_ok=True)
        results = read_results(output)
        for stage in STAGES:
            with display.making(stage):
                show_all(results, output, command, only=[stage])
    return show(results, output, run.quiet)


def claim(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something else, before any work."""
    from fpa.evaluation.shards import DESCRIPTION
    from fpa.study.folder import SHOWN_FILES

    evaluated = (folder / DESCRIPTION).exists()
    shown = any((folder / name).exists() for name in SHOWN_FILES)
    if (folder / "recipe.yaml").exists():
        raise InputError(f"{folder} holds a study: choose another --output")
    if shown and not evaluated:
        raise InputError(
            f"{folder} holds tables, figures or a report of something else: choose another --output"
        )
    if overwrite and not evaluated and any(not path.name.startswith(".fpa-") for path in folder.iterdir()):
        raise InputError(f"{folder} is not empty and holds no evaluation: nothing was deleted")
