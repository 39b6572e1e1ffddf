"""The command `fpa evaluate`."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import fpa
from fpa.cli.folders import chosen_share, claimed, part_made, remove_shown
from fpa.cli.naming import default_output, told_apart
from fpa.cli.options import ModelOptions, NamedModel, RunOptions, show, show_estimate
from fpa.errors import InputError
from fpa.evaluation.options import EvaluateOptions
from fpa.evaluation.quick import quickened
from fpa.files import folder_lock
from fpa.progress import Display


def evaluate(
    model: str,
    *,
    images: ModelOptions,
    how: EvaluateOptions,
    judge: str | None = None,
    run: RunOptions,
    command: str,
) -> int:
    """Explain, perturb and score one model: saved, shipped, torchvision's, timm's or your own.

    If it is stopped, the same command continues. The folder gets the numbers, tables, figures and a report.

    Args:
        model: A .safetensors file written by fpa, the name of a shipped model, torchvision:NAME, timm:NAME,
            hf:NAME (or hf:FOLDER, of Hugging Face), or module:function that returns a model.
        masking: What removing a pixel means: constant, black, mean, minimum, maximum, uniform, blur, bokeh,
            road or module:Class, with parameters as in --masking.name blur --masking.sigma 4; default: the
            masking that the model was trained with, or constant.
        judge: Another model of the same classes, saved or shipped (say, the one that fpa finetune made): the
            maps are those of MODEL, the curves and scores those of the judge; the masking is by default the
            one that the judge was trained with.

    """
    from fpa.engine.devices import chosen_device
    from fpa.evaluation.estimate import estimate_case
    from fpa.evaluation.evaluator import carry_out
    from fpa.evaluation.plan import plan_of
    from fpa.evaluation.subject import prepare

    subject = images.open(model)
    other = None if judge is None else images.judge(judge, subject)
    output = run.output or _default_output(subject, other, how)
    options = replace(
        quickened(how),
        masking=how.masking or _known_masking(subject.model, None if other is None else other.model),
        normalisation=subject.normalisation,
        count=None,  # the data have no more images than that
        class_index=images.class_index,
        device=chosen_device(run.device),
        folder=output,
        name=subject.name,
    )
    plan = plan_of(options)  # what is wrong with it is said before the images are read
    share = chosen_share(how, run)
    case = prepare(
        subject.model,
        images.evaluation_data(subject, how.count),
        plan,
        options,
        normalisation=subject.normalisation,
        classes=subject.classes,
        judge=None if other is None else other.model,
        judge_name=None if other is None else other.name,
        workers=images.workers,
    )
    if run.estimate:
        return show_estimate(estimate_case(case, None if run.overwrite else output, examples=how.examples))
    with claimed(output, run, [case.label_note, *case.notes], share) as display:
        made = carry_out(
            case,
            output,
            examples=how.examples,
            overwrite=run.overwrite,
            command=command,
            progress=display.evaluating(subject.name, case.source.count),
            share=share,
        )
        display.unreadable(case.source.lost)
        if made.loaded is None:
            return part_made(share, [output], shlex.join(["fpa", "report", str(output)]), run)
        results = replace(made.loaded.results, folder=output)
        with folder_lock(output, how.wait * 60):
            _show_stages(results, output, command, display)
    return show(results, output, run.quiet)


def _default_output(subject: NamedModel, judge: "fpa.Opened | None", how: EvaluateOptions) -> Path:
    """Where the results go if --output does not say."""
    judged_by = "" if judge is None else f"by-{judge.name}"
    quick = "quick" if how.quick else ""
    parts = (subject.name, judged_by, subject.elsewhere, told_apart(how), quick, how.count)
    return default_output("evaluate", *parts)


def _show_stages(results: "fpa.Results", folder: Path, command: str, display: Display) -> None:
    """Make the tables, figures and report of an evaluation."""
    from fpa.show import show_all
    from fpa.study.folder import SHOWN

    remove_shown(folder)
    for stage in SHOWN:
        with display.making(stage):
            show_all(results, folder, command, only=[stage])


def _known_masking(model: Any, judge: Any) -> Any:
    """The masking that the file of a judge, or of the model, says it was trained with, if it is fpa's own."""
    # The outputs of a judge are followed under the masking that it knows.
    card = getattr(judge, "card", None) or getattr(model, "card", None)
    masking = getattr(card, "recipe", {}).get("masking")
    name = masking.get("name") if isinstance(masking, dict) else masking
    if isinstance(name, str) and ":" in name:
        problem = f"the model was trained with the masking {name}, which is not run because a file says so"
        raise InputError(f"{problem}: name it yourself, with --masking, or another one")
    return masking
