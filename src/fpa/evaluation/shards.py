"""The files of an evaluation, written block by block and read back without torch.

    evaluation.json                 the plan, the model's fingerprint, images a block, what it was made with
    blocks/block-000000.parquet     of every image: its number, label, class explained, and its curves
    blocks/scores-000000.parquet    every score in long form: score, estimator, image, value
    blocks/empty-000000.txt         in place of both: none of the block's files could be read
    examples.npz                    a few images with the maps of every estimator

Several processes may write here: of a block that two have made the one written first stays. Every file
appears whole or not at all and carries checksums. A block also carries a fingerprint of plan and
weights, so that one from another evaluation is found.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from fpa.errors import (
    DamagedError,
    InputError,
    Misplaced,
    first_line,
    printable,
    same_format,
    shortened,
)
from fpa.evaluation.answers import answers_of
from fpa.evaluation.assembly import assembled
from fpa.evaluation.description import FORMAT, Description, Origin
from fpa.evaluation.differences import plan_differences
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.examples import EXAMPLES, read_examples, write_examples
from fpa.evaluation.result import Result
from fpa.evaluation.stored_block import (
    REPEATED,
    BlockNotes,
    StoredBlock,
    columns_of,
    curve_columns,
    fact_column,
    needed_columns,
    scores_of,
    unit_column,
)
from fpa.files import (
    inner_folder,
    open_table,
    read_json,
    refuse_links,
    writable_folder,
    write_json,
    write_table,
    write_text,
)
from fpa.given import unseen
from fpa.values import checked, part_of

T = TypeVar("T")

DESCRIPTION = "evaluation.json"
FILES = (
    DESCRIPTION,
    "blocks/block-[0-9]*.parquet",
    "blocks/scores-[0-9]*.parquet",
    "blocks/empty-[0-9]*.txt",
    EXAMPLES,
)
"""The names of an evaluation's files, as patterns."""

_NAMED = 8
"""Blocks that are named where some are missing."""

_BETWEEN = 2.0
"""Seconds that another process may take between the two files of a block, until it is taken for dead."""


_INSTEAD = "choose another folder (--output), or start afresh (--overwrite, or remove it)"


class EvaluationFolder:
    """Where the blocks of one evaluation are."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def file(self, number: int, kind: str = "block") -> Path:
        """A block's curves, or its "scores"; the curves are written last: where they are, it is complete."""
        return self.path / "blocks" / f"{kind}-{number:06d}.parquet"

    @property
    def blocks(self) -> list[int]:
        """The numbers of the blocks that are there, with their scores."""
        numbers = sorted(int(path.stem.partition("-")[2]) for path in self.path.glob(FILES[1]))
        return [number for number in numbers if self.file(number, "scores").exists()]

    def has(self, number: int) -> bool:
        """Whether a block is there, with its scores."""
        return self.file(number).exists() and self.file(number, "scores").exists()

    @property
    def has_any(self) -> bool:
        """Whether any block is there, complete or not."""
        return any(True for pattern in FILES[1:4] for _ in self.path.glob(pattern))

    def missing(self, numbers: Iterable[int]) -> list[int]:
        """Those of the blocks that nobody has made yet."""
        empty = {int(path.stem.partition("-")[2]) for path in self.path.glob(FILES[3])}
        done = empty.union(self.blocks)
        return [number for number in numbers if number not in done]

    def describe(self, description: Description, *, keep_first: bool = False) -> None:
        """Write evaluation.json; with `keep_first` one that is there stays."""
        write_json(self.path / DESCRIPTION, description.to_json(), keep_first=keep_first)

    def description(self) -> Description | None:
        """What evaluation.json says; None where there is none."""
        path = self.path / DESCRIPTION
        if not path.exists():
            return None
        about = read_json(path)
        same_format(path, about.get("format", FORMAT), FORMAT, "evaluate into another folder")
        try:
            return Description.from_json(about)
        except InputError as error:
            raise DamagedError({path: shortened(str(error))}) from error

    def images_a_block(self, origin: Origin) -> int | None:
        """How many images the blocks that are here hold; None where there are none.

        Where they are not of this origin, or it has code that cannot be compared with theirs, they are
        refused: two evaluations must not be mixed. If evaluation.json is lost, the blocks say of themselves
        what they are.
        """
        hidden = unseen(origin.plan.code)
        if self.blocks and hidden:
            name, reason = next(iter(hidden.items()))
            cannot = f"holds blocks that cannot be continued with {name} ({reason})"
            raise InputError(f"{self.path} {cannot}: choose another folder (--output), or remove it")
        description = self.description()
        if description is not None:
            self.check_same(description.origin, origin)
            return description.block_size
        sizes = set[int]()
        foreign = dict[Path, object]()
        for path in map(self.file, self.blocks):
            stored = open_table(path)
            sizes.add(stored.notes.get("block", 0))  # 0: an earlier version, which did not say it
            if stored.key != origin.key or 0 in sizes or len(sizes) > 1:
                foreign[path] = Misplaced(f"no {DESCRIPTION} describes it, and it is not of this evaluation")
        if foreign:
            raise DamagedError(foreign)
        return sizes.pop() if sizes else None

    def check_same(self, here: Origin, asked: Origin) -> None:
        """Refuse to mix another evaluation with the one that is here, and show how they differ."""
        stored = here.plan.to_json()
        # Through JSON, as the other one came: a plan in memory may have tuples where a file has lists.
        now = json.loads(json.dumps(asked.plan.to_json()))
        changed = [name for name in now | stored if stored.get(name) != now.get(name)]
        if here.model != asked.model:
            other = "of another model"
        elif changed:
            other = f"with other {', '.join(changed)} ({plan_differences(stored, now)})"
        else:
            return
        raise InputError(f"{self.path} holds an evaluation {other}: {_INSTEAD}")

    def described_by_blocks(self, asked: Description) -> Description | None:
        """What the blocks say where evaluation.json is lost; None where there are none.

        `images_a_block` has found that they are of the plan that is asked for. All are compared: some may
        have been made without evaluation.json, too.
        """
        found = None
        for path in map(self.file, self.blocks):
            notes = open_table(path).notes
            with _damage_of(path):
                answers = answers_of(part_of(notes, "answers", dict[str, Any] | None))
                normalisation = part_of(notes, "normalisation", dict[str, list[float]] | None)
            found = replace(asked, answers=answers, normalisation=normalisation)
            self.check_same_answers(found, asked)
        return found

    def check_same_answers(self, here: Description, asked: Description) -> None:
        """Refuse models of the same weights that answer otherwise than those that made what is here.

        And images that were normalised in another way. An earlier version stored neither.
        """
        for who, now in (asked.answers or {}).items():
            before = (here.answers or {}).get(who)
            if before is not None and not before.is_like(now):
                changed = f"of another {who}: the weights are the same, but its code or its settings are not"
                raise InputError(f"{self.path} holds an evaluation {changed}: {_INSTEAD}")
        both = (here.normalisation, asked.normalisation)
        if None not in both and both[0] != both[1]:
            raise InputError(f"{self.path} holds an evaluation of images normalised otherwise: {_INSTEAD}")

    def write(self, number: int, block: StoredBlock, description: Description, *, anew: bool = False) -> None:
        """Store a block of the evaluation that is described; one that is there stays, unless made `anew`."""
        inner_folder(self.path, "blocks")
        notes = {**block.notes.to_json(), **description.notes_of_blocks()}
        own = {"block": description.block_size}
        key = description.origin.key
        curves = self.file(number)
        scores = self.file(number, "scores")
        # The curves last: where they are, the block is complete. So whose scores are there first has made the
        # block; who comes second leaves it to that one, which may have died in between.
        anew = anew or (curves.exists() and not scores.exists())
        table = block.scores_table()
        if not write_table(scores, table, own, key, REPEATED, keep_first=not anew):
            if self._appears(curves):
                return
            write_table(scores, table, own, key, REPEATED)
        write_table(curves, block.columns_table(), notes, key, REPEATED, keep_first=not anew)

    def _appears(self, path: Path) -> bool:
        """Whether a file is there, or comes soon."""
        until = time.monotonic() + _BETWEEN
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.02)
        return path.exists()

    def write_empty(self, number: int) -> None:
        """Say that none of the files of a block could be read, so that nobody waits for it."""
        inner_folder(self.path, "blocks")
        write_text(self.path / "blocks" / f"empty-{number:06d}.txt", "no file could be read\n")

    def clear_halves(self) -> None:
        """Remove what a killed process left of blocks: scores without curves. Nobody else may be at work."""
        for path in self.path.glob(FILES[2]):
            if not self.file(int(path.stem.partition("-")[2])).exists():
                path.unlink(missing_ok=True)

    def read(self) -> tuple[Description | None, list[StoredBlock]]:
        """evaluation.json, None where there is none, and the blocks; names all files that are damaged."""
        description = self.description()
        if description is None:
            return None, []
        blocks = self._each(lambda number: self.read_block(number, description))
        if description.images is not None or not description.numbers or self.missing(description.numbers):
            return description, blocks
        # Parts that knew nothing of each other have made it: none of them could say that it is complete.
        return replace(description, images=sum(len(each.columns["index"]) for each in blocks)), blocks

    def check_blocks(self) -> None:
        """Name all blocks that are damaged, of whatever evaluation they are."""
        self._each(lambda number: [_read(self.file(number, kind), None) for kind in ("scores", "block")])

    def _each(self, read: Callable[[int], T]) -> list[T]:
        """What `read` makes of every block; all that are damaged are named together."""
        found: list[T] = []
        damaged: dict[Path, object] = {}
        for number in self.blocks:
            try:
                found.append(read(number))
            except DamagedError as error:
                damaged |= error.reasons
        if damaged:
            raise DamagedError(damaged)
        return found

    def read_block(self, number: int, description: Description) -> StoredBlock:
        """A block of the evaluation that is described."""
        path = self.file(number)
        # Plan and weights made every block: one with another key was copied here from elsewhere.
        key = description.origin.key
        table, notes = _read(path, key)
        missing = sorted(set(needed_columns(description.plan)) - set(table.column_names))
        if missing:
            lacks = ", ".join(missing[:3])
            raise DamagedError({path: f"it is not a block of this evaluation: it has no {lacks}"})
        scores_path = self.file(number, "scores")
        scores, _ = _read(scores_path, key)
        with _damage_of(path):
            columns = columns_of(table)
            block_notes = BlockNotes.from_json(notes)
        with _damage_of(scores_path):
            values = scores_of(scores, len(table))
        return StoredBlock(columns, values, block_notes)

    def clear(self) -> None:
        """Remove the files of an evaluation, and nothing else."""
        refuse_links(self.path, ["blocks"])
        # evaluation.json last: until nothing else is left, it says what the rest is.
        for pattern in reversed(FILES):
            for path in self.path.glob(pattern):
                path.unlink()
        with suppress(OSError):  # there is none, or something of somebody else's is in it
            (self.path / "blocks").rmdir()


def read_evaluation(folder: Path | str) -> tuple[Evaluation, Description]:
    """The curves and scores stored in a folder, as far as the evaluation came, and what describes them."""
    description, blocks = EvaluationFolder(folder).read()
    if description is None or not blocks:
        raise InputError(f"{folder} holds no evaluation: run fpa evaluate with this folder first")
    try:
        return assembled(description, blocks), description
    # The files are whole, or their checksums would not fit: they do not belong together.
    except (KeyError, TypeError, ValueError, IndexError) as error:
        missing = f"what it describes is not in its blocks: {first_line(error)}"
        raise DamagedError({Path(folder) / DESCRIPTION: missing}) from error


@checked
def load_result(folder: Path | str) -> Result:
    """The result that `fpa.evaluate(folder=...)`, `fpa evaluate` or `Result.save` left in a folder.

    Everything in it is data: nothing can execute code.
    """
    evaluation, description = read_evaluation(folder)
    examples = read_examples(Path(folder), description.origin)
    return Result.of(printable(description.subject.name), evaluation, description, examples=examples)


def write_result(result: Result, folder: Path) -> Path:
    """Write a result in memory to an empty folder, as one block."""
    evaluation = result.evaluation
    target = EvaluationFolder(writable_folder(folder))
    if target.description() is not None or target.blocks:
        raise InputError(f"{folder} already holds an evaluation: choose another folder")
    columns: dict[str, NDArray[Any]] = {
        "index": evaluation.indices,
        "label": evaluation.labels,
        "target": evaluation.targets,
    }
    if evaluation.confidence is not None:
        columns["confidence"] = evaluation.confidence
    if evaluation.predicted is not None:
        columns["predicted"] = evaluation.predicted
    outputs = {result.description.plan.output: evaluation, **evaluation.others}
    columns |= curve_columns(outputs, evaluation.under, result.description.plan.with_own_features)
    columns |= {unit_column(score): unit for score, unit in evaluation.units.items()}
    columns |= {fact_column(name): values for name, values in evaluation.image_facts.items()}
    notes = BlockNotes(
        left_out=evaluation.left_out,
        fractions=evaluation.fractions.tolist(),
        importance={name: [1, *means.tolist()] for name, means in evaluation.importance.items()},
        under={name: each.fractions.tolist() for name, each in evaluation.under.items()},
    )
    values = {(score, name): each for score, by in evaluation.values.items() for name, each in by.items()}
    # Without sketches of the images it cannot be continued, so one block of any size does.
    images = len(evaluation.indices)
    description = replace(result.description, block_size=max(images, 1), images=images)
    target.write(0, StoredBlock(columns, values, notes), description)
    if result.examples is not None:
        write_examples(folder, result.examples, description.origin)
    target.describe(description)
    return folder


def named(numbers: Sequence[int]) -> str:
    """Blocks by their numbers, of many the first ones.

    >>> named([3]), named([3, 11]), named(range(40))
    ('block 3', 'blocks 3 and 11', 'blocks 0, 1, 2, 3, 4, 5, 6, 7 and 32 more')
    """
    *most, last = [str(number) for number in numbers[:_NAMED]]
    if len(numbers) > _NAMED:
        return f"blocks {', '.join([*most, last])} and {len(numbers) - _NAMED} more"
    return f"blocks {', '.join(most)} and {last}" if most else f"block {last}"


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Whatever goes wrong here is damage of this file: it holds other types than were written."""
    try:
        yield
    except Exception as error:
        raise DamagedError({path: error}) from error


def _read(path: Path, key: str | None) -> tuple[Any, dict[str, Any]]:
    """The table of a block, of the evaluation with this key, and its notes."""
    stored = open_table(path)
    if key not in (None, stored.key):
        raise DamagedError({path: Misplaced("it is a block of another evaluation or another model")})
    return stored.read(), stored.notes
