"""`fpa audit`: can the evaluation of explanations on this model be trusted?"""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpa.cli.evaluate import claim
from fpa.cli.options import EvaluationOptions, ModelOptions, RunOptions, default_output

NO_TRAINING_IMAGES = (
    "These images are for evaluation only. Fine-tuning (fpa finetune) needs others: in train/ beside them, "
    "or a folder of photos, which need no labels."
)


def audit(
    model: str,
    *,
    images: ModelOptions,
    how: EvaluationOptions,
    maskings: list[dict[str, Any] | str] = ["constant", "mean", "blur", "uniform"],  # noqa: B006
    run: RunOptions,
) -> int:
    """Can the evaluation of explanations on this model be trusted? A verdict with its evidence.

    Exit code 0: reliable, 3: unreliable, 4: cannot tell, 2: bad input. If it is stopped, the same command
    continues.

    Args:
        model: A .safetensors file written by fpa, the name of a shipped model, torchvision:NAME, timm:NAME,
            or module:function that returns a model.
        maskings: What removing a pixel means: the masking that is judged, then others to compare it with.

    """
    from rich.console import Console

    from fpa.auditing import auditor
    from fpa.auditing.rule import FEWEST_IMAGES
    from fpa.data.sets import has_training_images
    from fpa.engine.devices import check_device
    from fpa.files import folder_lock
    from fpa.masking import get_masking
    from fpa.progress import Display

    check_device(run.device)
    subject = images.open(model)
    for masking in maskings:  # what is wrong is said before the images are looked at
        get_masking(masking, subject.normalisation.mean, subject.normalisation.std)
    source, note = images.images(subject, how.count)
    engine = how.engine(subject.model, source, run.device)
    output = run.output or default_output("audit", subject.name)
    with folder_lock(output), Display(quiet=run.quiet) as display:
        claim(output, overwrite=run.overwrite)
        if note:
            display.say(note)
        if source.count is not None and source.count < FEWEST_IMAGES:
            display.say(f"{source.count} images: with fewer than {FEWEST_IMAGES} the verdict is: cannot tell")
        with display.evaluating(subject.name, source.count) as tell:
            verdict = auditor.audit(
                engine,
                source,
                maskings=maskings,
                folder=output,
                overwrite=run.overwrite,
                name=f"{subject.name} on {source.name}",
                progress=tell,
                **how.plan(subject.normalisation),
            )
        display.unreadable(source.lost)
        if verdict.verdict == "unreliable" and _can_be_named(model):
            if has_training_images(source.name):
                command = _finetune_command(model, images, source.name, maskings[0])
                verdict = replace(verdict, command=command)
            else:
                verdict = replace(verdict, advice=(*verdict.advice, NO_TRAINING_IMAGES))
        verdict.save(output / "audit.json")
        verdict.report(output / "audit.html")
    if not run.quiet:
        Console().print(verdict)
        print(f"page: {output / 'audit.html'}")
    return verdict.exit_code


def _can_be_named(model: str) -> bool:
    """Whether `fpa finetune` can build the model again; one that a function returned is tuned in Python."""
    return model.startswith(("torchvision:", "timm:")) or ":" not in model or Path(model).exists()


def _finetune_command(model: str, images: ModelOptions, data: str, masking: dict[str, Any] | str) -> str:
    """How to fine-tune the model that was audited, for the masking that was judged."""
    words = ["fpa", "finetune", model, "--data", data]
    for name in ("data_root", "weights", "mean", "std", "size", "class_index"):
        value = getattr(images, name)
        if value != getattr(ModelOptions, name):
            words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    if isinstance(masking, dict):
        for name, value in masking.items():
            words += [f"--masking.{name}", value if isinstance(value, str) else json.dumps(value)]
    elif masking != "constant":
        words += ["--masking", masking]
    return shlex.join(words)
