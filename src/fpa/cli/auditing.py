"""The command `fpa audit`, and what other commands show of an audit."""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import fpa
from fpa.auditing.rule import EXIT_CODES, FEWEST_IMAGES, Verdict
from fpa.cli.folders import chosen_share, claimed, evaluation_of, part_made, remove_shown
from fpa.cli.naming import default_output, told_apart
from fpa.cli.options import ModelOptions, RunOptions, show_estimate
from fpa.errors import InputError, counted, percent
from fpa.evaluation.options import AuditOptions
from fpa.evaluation.quick import quickened
from fpa.files import folder_lock
from fpa.notes import Kind, Note, Severity

if TYPE_CHECKING:
    from fpa.evaluation.subject import Case


WORST_FIRST: tuple[Verdict, ...] = ("unreliable", "cannot tell", "reliable")


def audit(model: str, *, images: ModelOptions, how: AuditOptions, run: RunOptions, command: str) -> int:
    """Can the evaluation of explanations on this model be trusted? A verdict with its evidence.

    Exit code 0: reliable, 3: unreliable, 4: cannot tell, 2: bad input; of a study, that of the worst verdict.
    If it is stopped, the same command continues.

    Args:
        model: A .safetensors file written by fpa, the name of a shipped model, torchvision:NAME, timm:NAME,
            hf:NAME (or hf:FOLDER, of Hugging Face), or module:function that returns a model. Or the folder of
            an evaluation, or of a study, whose curves are judged as they are, in seconds.

    """
    from fpa.auditing.auditor import audit_plan, conclude_case, measure_case, prepare_audit
    from fpa.engine.devices import chosen_device
    from fpa.evaluation.estimate import estimate_case
    from fpa.evaluation.shards import DESCRIPTION

    held = {DESCRIPTION: "an evaluation", "recipe.yaml": "a study"}
    for file, kind in held.items():
        if not Path(model, file).is_file():
            continue
        given = (images, how, replace(run, output=None, quiet=False))
        if given != (ModelOptions(), AuditOptions(), RunOptions()):
            raise InputError(f"{model} is {kind}, judged as it was made: give no other settings")
        judge = _audit_folder if file == DESCRIPTION else _audit_study
        return judge(Path(model), run, command)
    subject = images.open(model)
    asked = how
    how = quickened(how)
    parts = (subject.name, subject.elsewhere, told_apart(asked), "quick" if asked.quick else "", how.count)
    output = run.output or default_output("audit", *parts)
    options = replace(
        how,
        normalisation=subject.normalisation,
        count=None,  # the data have no more images than that
        class_index=images.class_index,
        device=chosen_device(run.device),
        folder=output,
        overwrite=run.overwrite,
        name=f"{subject.name} on {subject.data}",
    )
    plan = audit_plan(options)  # what is wrong with it is said before the images are read
    share = chosen_share(how, run)
    data = images.evaluation_data(subject, how.count)
    case = prepare_audit(subject.model, data, plan, options, classes=subject.classes, workers=images.workers)
    if run.estimate:
        return show_estimate(estimate_case(case, None if run.overwrite else output, name="audit"))
    with claimed(output, run, [case.label_note], share) as display:
        for line in _hints(case):
            display.say(line)
        progress = display.evaluating(subject.name, case.source.count)
        made = measure_case(case, replace(options, progress=progress), share)
        display.unreadable(case.source.lost)
        if made.loaded is None:
            return part_made(share, [output], shlex.join(["fpa", "audit", str(output)]), run)
        masking = how.masking or how.maskings[0]
        verdict = conclude_case(case, options, made.loaded)
        verdict = replace(_advised(verdict, model, images, case, masking), repeat=command)
        with folder_lock(output, how.wait * 60):
            remove_shown(output)
            page = write(verdict, output)
    return _print(verdict, page, run.quiet)


def _audit_folder(folder: Path, run: RunOptions, command: str) -> int:
    """Judge an evaluation as it was made."""
    verdict = replace(fpa.audit_result(folder), repeat=command)
    study = folder.absolute().parent
    if (study / "recipe.yaml").exists():  # what a study holds is its own
        folder = default_output("audit", study.name, folder.absolute().name)
    output = run.output or folder
    with claimed(output, run), folder_lock(output):
        page = write(verdict, output)
    return _print(verdict, page, run.quiet)


def _audit_study(folder: Path, run: RunOptions, command: str) -> int:
    """Judge the evaluations of all models of a study as they were made, and show them side by side."""
    verdicts: dict[str, fpa.Audit] = {}
    pages = []
    for name in fpa.read_results(folder).models:
        verdicts[name] = replace(fpa.audit_result(folder / name), repeat=command)
        own = default_output("audit", folder.absolute().name, name)
        output = own if run.output is None else run.output / name
        with claimed(output, run), folder_lock(output):
            pages.append(write(verdicts[name], output))
    if not run.quiet:
        Console().print(side_by_side(verdicts, "audit"))
        for page in pages:
            print(f"page: {page}")
    found = {verdict.verdict for verdict in verdicts.values()}
    worst = next(each for each in WORST_FIRST if each in found)
    return EXIT_CODES[worst]


def side_by_side(verdicts: "Mapping[str, fpa.Audit]", title: str) -> Table:
    """Verdicts and what they rest on, a column for each."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(title)
    for name in verdicts:
        table.add_column(name, justify="right")
    for row in zip(*(_evidence(verdict) for verdict in verdicts.values()), strict=True):
        table.add_row(row[0][0], *(value for _, value in row))
    return table


def _evidence(verdict: "fpa.Audit") -> list[tuple[str, str]]:
    """What a verdict rests on, in a few words each."""
    found = verdict.evidence
    opposite = found.opposite
    kept = found.kept.get(10)
    pairs = "-" if opposite is None else f"{opposite.value:.0f} of {found.signed * found.unsigned}"
    return [
        ("verdict", verdict.verdict),
        ("pairs in opposite order", pairs),
        ("output kept with 10 % masked", "-" if kept is None else percent(kept.value)),
        ("accuracy", "-" if found.accuracy is None else percent(found.accuracy)),
    ]


def _hints(case: "Case") -> list[str]:
    """What could save somebody the work that is about to begin."""
    hints = []
    found = evaluation_of(case.subject.engine)
    if found is not None:
        hints.append(f"{found} holds an evaluation of this model, which fpa audit {found} judges in seconds")
    count = case.source.count
    if count is not None and count < FEWEST_IMAGES:
        hints.append(f"{counted(count)}: with fewer than {FEWEST_IMAGES} the verdict is: cannot tell")
    return hints


def _advised(
    verdict: "fpa.Audit", model: str, images: ModelOptions, case: "Case", masking: dict[str, Any] | str
) -> "fpa.Audit":
    """The verdict with what to type, or which images to look for, where the model should be fine-tuned."""
    from fpa.data.sets import has_training_images

    if verdict.verdict != "unreliable" or not _can_be_named(model):
        return verdict
    if not has_training_images(case.source.name):
        others = Note(Kind.OTHER_TRAINING_IMAGES, Severity.ADVICE)
        return replace(verdict, advised=(*verdict.advised, others))
    known = masking if case.plan.masking.trains else "constant"
    return replace(verdict, command=_finetune_command(model, images, case.source.name, known))


def write(verdict: "fpa.Audit", folder: Path) -> Path:
    """Leave a verdict in a folder, and what it rests on, image by image; returns its page."""
    verdict.save(folder / "audit.json")
    verdict.save_areas(folder / "areas.parquet")
    return verdict.report(folder / "audit.html")


def _print(verdict: "fpa.Audit", page: Path, quiet: bool) -> int:
    """Show a verdict; returns the exit code."""
    if not quiet:
        Console().print(verdict)
        print(f"page: {page}")
    return verdict.exit_code


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
