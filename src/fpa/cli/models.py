"""The commands around one model: `fpa evaluate`, `audit` and `finetune`."""

import json
import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

import fpa
from fpa.auditing.rule import FEWEST_IMAGES
from fpa.cli.folders import claimed, evaluation_of, remove_shown
from fpa.cli.options import (
    ModelOptions,
    RunOptions,
    Subject,
    default_output,
    engine_for,
    show,
    told_apart,
)
from fpa.errors import InputError, at_least, counted, percent
from fpa.evaluation.options import AuditOptions, EvaluateOptions
from fpa.files import is_main_process
from fpa.notes import Kind, Note, Severity
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
    from fpa.evaluation.evaluator import describe_subject, judge_name, notes, open_subject, with_notes
    from fpa.evaluation.loop import evaluate_blocks
    from fpa.evaluation.plan import plan_of
    from fpa.show import words

    subject = images.open(model)
    card = getattr(subject.model, "card", None)
    other = None if judge is None else images.judge(judge, subject)
    if other is not None:  # its outputs are followed under the masking that it knows
        card = getattr(other.model, "card", card)
    masking = how.masking or _known_masking(getattr(card, "recipe", {}).get("masking"))
    plan = plan_of(replace(how, masking=masking, normalisation=subject.normalisation))
    source, note = images.images(subject, how.count)
    engine = engine_for(subject.model, source, how, run.device)
    engine, source = open_subject(engine, source, plan, stored=True)
    about = replace(describe_subject(engine, source, subject.name, subject.classes), command=command)
    judging = None
    named = ""
    if other is not None:
        judging = engine_for(other.model, source, how, run.device)
        about = replace(about, judge=judge_name(engine, judging, source, other.name))
        named = f"by-{other.name}"
    parts = subject.name, named, subject.elsewhere, told_apart(how), how.count
    output = run.output or default_output("evaluate", *parts)
    noted = notes(judging or engine, plan)
    note = "\n".join(filter(None, (note, *map(words.clause, noted))))
    with claimed(output, run, note) as display:
        tell = display.evaluating(subject.name, source.count)
        evaluate_blocks(
            engine,
            source,
            plan,
            output,
            subject=with_notes(about, noted),
            examples=how.examples,
            judge=judging,
            overwrite=run.overwrite,
            progress=tell,
        )
        display.unreadable(source.lost)
        remove_shown(output)
        results = _show_stages(output, command, display)
    return show(results, output, run.quiet)


def _show_stages(folder: Path, command: str, display: Display) -> "fpa.Results":
    """Make the tables, figures and report of an evaluation; its results."""
    from fpa.show import show_all
    from fpa.study.folder import SHOWN

    results = fpa.read_results(folder)
    for stage in SHOWN:
        with display.making(stage):
            show_all(results, folder, command, only=[stage])
    return results


def audit(
    model: str,
    *,
    images: ModelOptions,
    how: AuditOptions,
    run: RunOptions,
    command: str,
) -> int:
    """Can the evaluation of explanations on this model be trusted? A verdict with its evidence.

    Exit code 0: reliable, 3: unreliable, 4: cannot tell, 2: bad input. If it is stopped, the same command
    continues.

    Args:
        model: A .safetensors file written by fpa, the name of a shipped model, torchvision:NAME, timm:NAME,
            hf:NAME (or hf:FOLDER, of Hugging Face), or module:function that returns a model. Or the folder of
            an evaluation, whose curves are judged as they are, in seconds.

    """
    from fpa.auditing.auditor import audit_with
    from fpa.data.sets import has_training_images
    from fpa.evaluation.shards import DESCRIPTION

    if Path(model, DESCRIPTION).is_file():
        placed = replace(run, output=None, quiet=False)
        if (images, how, placed) != (ModelOptions(), AuditOptions(), RunOptions()):
            raise InputError(f"{model} is an evaluation, judged as it was made: give no other settings")
        verdict = replace(fpa.audit_result(model), repeat=command)
        folder = Path(model)
        if (above := folder.absolute().parent / "recipe.yaml").exists():  # what a study holds is its own
            folder = default_output("audit", above.parent.name, folder.absolute().name)
        with claimed(output := run.output or folder, run, None):
            page = _write(verdict, output)
        return _print(verdict, page, run.quiet)
    subject = images.open(model)
    scale = subject.normalisation.mean, subject.normalisation.std
    # What is wrong is said before the images are looked at.
    trains = [fpa.get_masking(masking, *scale).trains for masking in how.maskings]
    source, note = images.images(subject, how.count)
    engine = engine_for(subject.model, source, how, run.device)
    parts = subject.name, subject.elsewhere, told_apart(how), how.count
    output = run.output or default_output("audit", *parts)
    if found := evaluation_of(engine):
        hint = f"{found} holds an evaluation of this model, which fpa audit {found} judges in seconds"
        note = "\n".join(filter(None, (note, hint)))
    with claimed(output, run, note) as display:
        if source.count is not None and source.count < FEWEST_IMAGES:
            few = f"{counted(source.count)}: with fewer than {FEWEST_IMAGES} the verdict is: cannot tell"
            display.say(few)
        tell = display.evaluating(subject.name, source.count)
        options = replace(
            how,
            count=None,
            batch_size=None,
            normalisation=subject.normalisation,
            folder=output,
            overwrite=run.overwrite,
            name=f"{subject.name} on {source.name}",
            progress=tell,
        )
        verdict = audit_with(engine, source, options)
        display.unreadable(source.lost)
        remove_shown(output)
        if verdict.verdict == "unreliable" and _can_be_named(model):
            if has_training_images(source.name):
                masking = how.maskings[0] if trains[0] else "constant"
                advised = _finetune_command(model, images, source.name, masking)
                verdict = replace(verdict, command=advised)
            else:
                others = Note(Kind.OTHER_TRAINING_IMAGES, Severity.ADVICE)
                verdict = replace(verdict, advised=(*verdict.advised, others))
        page = _write(verdict := replace(verdict, repeat=command), output)
    return _print(verdict, page, run.quiet)


def _write(verdict: "fpa.Audit", folder: Path) -> Path:
    """Leave a verdict in a folder; returns its page."""
    verdict.save(folder / "audit.json")
    return verdict.report(folder / "audit.html")


def _print(verdict: "fpa.Audit", page: Path, quiet: bool) -> int:
    """Show a verdict; returns the exit code."""
    if not quiet:
        Console().print(verdict)
        print(f"page: {page}")
    return verdict.exit_code


def finetune(
    model: str,
    *,
    images: ModelOptions,
    epochs: int | None = None,
    learning_rate: float | None = None,
    batch_size: int = 64,
    targets: Literal["auto", "labels", "model"] = "auto",
    masking: dict[str, Any] | str = "constant",
    augmentation: Literal["fpa", "cell"] = "fpa",
    p: float | None = None,
    p1_max: float | None = None,
    p2: float | None = None,
    s_max: int | None = None,
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
        masking: What removing a pixel means, as in fpa evaluate.
        augmentation: fpa, or cell: half of the images lose one cell of a grid of 4 x 4, for the score idsds.
        p: Share of the batches that are perturbed; default: the paper's value for the image size, or 1 for
            the model's own predictions. With cell: share of the images; default: 0.5.
        p1_max: Largest share of the pixels selected; default for labels: the paper's value for the image
            size; for the model's own predictions: 0.25 up to 32 px, rising to 0.5 at 224 px and above.
        p2: Share of the selected pixels that start a square; default: the paper's value for the image size.
        s_max: Largest side of a square; default: the paper's value for the image size.
        audit_images: Images on which the model is audited as it was and as it is now; 0: no audits, of which
            there are none with cell either.
        seed: Seed of everything random.

    """
    from fpa.data.labels import class_numbers
    from fpa.data.sets import has_own_test, tuning_data
    from fpa.models.wrap import class_count

    at_least("--audit_images", audit_images, 0)
    subject = images.open(model)
    data = tuning_data(subject.data, images.data_root, size=subject.size)
    outputs = class_count(subject.model, data.input_shape)
    index = None
    if images.class_index is not None:
        index = class_numbers(data.classes, outputs, subject.classes, images.class_index)
    network: Any = subject.model
    card: fpa.ModelCard | None = getattr(network, "card", None)
    scale = asdict(subject.normalisation)
    network.card = fpa.ModelCard(
        architecture=model if card is None else card.architecture,
        classes=subject.classes or [str(number) for number in range(outputs)],
        input_shape=data.input_shape,
        **scale,
    )
    chosen = {"p": p, "p1_max": p1_max, "p2": p2, "s_max": s_max}
    given = {name: value for name, value in chosen.items() if value is not None}
    removal = fpa.get_masking(masking, **scale)
    if augmentation == "cell" and set(given) - {"p"}:
        raise InputError(f"--{min(set(given) - {'p'})} is a setting of fpa, not of --augmentation cell")
    settings: dict[str, Any] = {**given, "masking": removal}
    output = run.output or default_output("finetune", subject.name)
    with Display(quiet=run.quiet or not is_main_process()) as display:
        tuned: Any = fpa.finetune(
            network,
            data,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            fpa=fpa.Cell(**settings) if augmentation == "cell" else settings,
            targets=targets,
            class_index=index,
            seed=seed,
            data_root=images.data_root,
            workers=images.workers,
            display=display,
            output=output,
            **run.place,
        )
    if not is_main_process():  # one of several that train together; the first does the rest
        return 0
    if not run.quiet:
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
        print(f"{what}{where} {percent(tuned.card.accuracy)}{before}  {output / 'model.safetensors'}")
    count = min(audit_images, len(data.evaluation))
    if count and augmentation == "fpa":  # the audit removes pixels anywhere, not cells
        how = AuditOptions(("paper",), count=count, ig_steps=50, maskings=[masking])
        both = {"before": subject, "after": subject._replace(model=tuned)}
        _audit_both(both, images, how, output=output, run=run)
    return 0


def _audit_both(
    models: dict[str, Subject],
    images: ModelOptions,
    how: AuditOptions,
    *,
    output: Path,
    run: RunOptions,
) -> None:
    """Audit a model as it was and after fine-tuning, and show the two verdicts beside each other."""
    from fpa.auditing.auditor import audit_with

    verdicts: dict[str, fpa.Audit] = {}
    for when, subject in models.items():
        folder = output / f"audit-{when}-{how.count}"
        source, note = images.images(subject, how.count)
        with claimed(folder, run, note if when == "before" else None) as display:
            options = replace(
                how,
                count=None,
                normalisation=subject.normalisation,
                folder=folder,
                overwrite=run.overwrite,
                name=f"{subject.name}, {when}",
                progress=display.evaluating(f"audit {when}", source.count),
            )
            verdict = audit_with(engine_for(subject.model, source, how, run.device), source, options)
            _write(verdict, folder)
        verdicts[when] = verdict
    if run.quiet:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(f"audit of {counted(how.count or 0)}")
    for when in verdicts:
        table.add_column(when, justify="right")
    for row in zip(*(_evidence(verdict) for verdict in verdicts.values()), strict=True):
        table.add_row(row[0][0], *(value for _, value in row))
    Console().print(table)
    if verdicts["after"].verdict != "reliable":
        few = (how.count or 0) < FEWEST_IMAGES or verdicts["after"].verdict == "cannot tell"
        more = "more images for the audit (--audit_images)" if few else "more epochs, or more training images"
        print(f"not reliable yet: {more} may help")
    print(f"page: {output / f'audit-after-{how.count}' / 'audit.html'}")


def _evidence(verdict: "fpa.Audit") -> list[tuple[str, str]]:
    """What a verdict rests on, in a few words each."""
    found = verdict.evidence
    opposite, kept = found.opposite, found.kept.get(10)
    return [
        ("verdict", verdict.verdict),
        (
            "pairs in opposite order",
            "-" if opposite is None else f"{opposite.value:.0f} of {found.signed * found.unsigned}",
        ),
        ("output kept with 10 % masked", "-" if kept is None else percent(kept.value)),
        ("accuracy", "-" if found.accuracy is None else percent(found.accuracy)),
    ]


def _known_masking(masking: Any) -> Any:
    """The masking that a model file says it was trained with, if that is one of fpa's own."""
    name = masking.get("name") if isinstance(masking, dict) else masking
    if isinstance(name, str) and ":" in name:
        problem = f"the model was trained with the masking {name}, which is not run because a file says so"
        raise InputError(f"{problem}: name it yourself, with --masking, or another one")
    return masking


def _can_be_named(model: str) -> bool:
    """Whether `fpa finetune` can build the model again; one that a function returned is tuned in Python."""
    return model.startswith(("torchvision:", "timm:", "hf:")) or ":" not in model or os.path.exists(model)


def _finetune_command(model: str, images: ModelOptions, data: str, masking: dict[str, Any] | str) -> str:
    """How to fine-tune the model that was audited, for the masking that was judged."""
    words = ["fpa", "finetune", model, "--data", data]
    for name in ("data_root", "weights", "mean", "std", "size", "class_index"):
        value = getattr(images, name)
        if value != getattr(ModelOptions, name):
            words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
            words += ["--targets", "model"] if name == "class_index" else []  # it would mean the labels
    if isinstance(masking, dict):
        for name, value in masking.items():
            words += [f"--masking.{name}", value if isinstance(value, str) else json.dumps(value)]
    elif masking != "constant":
        words += ["--masking", masking]
    return shlex.join(words)
