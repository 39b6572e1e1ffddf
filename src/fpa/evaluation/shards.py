"""The files of an evaluation, written block by block and read back without torch.

    evaluation.json                 the plan, the model's fingerprint, images a block, what it was made with
    blocks/block-000000.parquet     of every image: its number, label, class explained, and its curves
    blocks/scores-000000.parquet    every score in long form: score, estimator, image, value
    examples.npz                    a few images with the maps of every estimator

Every file appears whole or not at all and carries checksums. A block also carries a fingerprint of plan and
weights, so that one from another evaluation is found.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpa.errors import DamagedError, InputError, first_line, printable, same_format, shortened
from fpa.evaluation.description import FORMAT, Description, Origin
from fpa.evaluation.differences import plan_differences, unseen
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.examples import EXAMPLES, read_examples, write_examples
from fpa.evaluation.result import Result
from fpa.evaluation.stored_plan import StoredPlan
from fpa.files import open_table, read_json, refuse_links, writable_folder, write_json, write_table
from fpa.notes import Note
from fpa.values import checked

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

DESCRIPTION = "evaluation.json"
FILES = (DESCRIPTION, "blocks/block-[0-9]*.parquet", "blocks/scores-[0-9]*.parquet", EXAMPLES)
"""The names of an evaluation's files, as patterns."""

SIDES = ("mif", "lif")
"""The orders of a curve."""

REPEATED = ("score", "estimator")
"""The columns of texts."""


class StoredBlock(NamedTuple):
    """A block as it is stored."""

    columns: dict[str, NDArray[Any]]
    """[N] or [N, K]."""
    values: dict[tuple[str, str], NDArray[Any]]
    """By score and estimator, [N]."""
    notes: dict[str, Any]
    """Problems, fractions, and the sums of sorted importance scores."""


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

    def describe(self, description: Description) -> None:
        """Write evaluation.json."""
        write_json(self.path / DESCRIPTION, description.to_json())

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
        if self.blocks and (hidden := unseen(origin.plan.code)):
            name, reason = next(iter(hidden.items()))
            cannot = f"holds blocks that cannot be continued with {name} ({reason})"
            raise InputError(f"{self.path} {cannot}: choose another folder (--output), or remove it")
        description = self.description()
        if description is not None:
            self._check_same(description.origin, origin)
            return description.block
        sizes = set[int]()
        foreign = dict[Path, object]()
        for path in map(self.file, self.blocks):
            stored = open_table(path)
            sizes.add(stored.notes.get("block", 0))
            if stored.key != origin.key or 0 in sizes or len(sizes) > 1:
                foreign[path] = f"no {DESCRIPTION} describes it, and it is not of this evaluation"
        if foreign:
            raise DamagedError(foreign)
        return sizes.pop() if sizes else None

    def _check_same(self, here: Origin, asked: Origin) -> None:
        """Refuse to mix another evaluation with the one that is here, and show how they differ."""
        stored = here.plan.to_json()
        now = json.loads(json.dumps(asked.plan.to_json()))
        changed = [name for name in now | stored if stored.get(name) != now.get(name)]
        if here.model != asked.model:
            other = "of another model"
        elif changed:
            other = f"with other {', '.join(changed)} ({plan_differences(stored, now)})"
        else:
            return
        instead = "choose another folder (--output), or start afresh (--overwrite, or remove it)"
        raise InputError(f"{self.path} holds an evaluation {other}: {instead}")

    def write(self, number: int, block: StoredBlock, description: Description) -> None:
        """Store a block of the evaluation that is described."""
        import pyarrow as pa

        writable_folder(self.path / "blocks")
        codes = np.repeat(np.arange(len(block.values), dtype=np.int32), len(block.columns["index"]))
        long: dict[str, Any] = {}
        for place, column in enumerate(REPEATED):
            texts = pa.array([key[place] for key in block.values], pa.string())
            long[column] = pa.DictionaryArray.from_arrays(codes, texts)
        long["image"] = np.tile(block.columns["index"], len(block.values))
        long["value"] = np.concatenate([np.zeros(0), *block.values.values()])
        _write(self.file(number, "scores"), pa.table(long), {}, description)
        table = pa.table({name: _column(each) for name, each in block.columns.items()})
        _write(self.file(number), table, block.notes, description)

    def read(self) -> tuple[Description | None, list[StoredBlock]]:
        """evaluation.json, None where there is none, and the blocks; names all files that are damaged."""
        description = self.description()
        if description is None:
            return None, []
        return description, self._each(lambda number: self.read_block(number, description))

    def check_blocks(self) -> None:
        """Name all blocks that are damaged, of whatever evaluation they are."""
        self._each(lambda number: [_read(self.file(number, kind), None) for kind in ("scores", "block")])

    def _each(self, read: Callable[[int], T]) -> list[T]:
        """What `read` makes of every block; all that are damaged are named together."""
        found, damaged = list[T](), dict[Path, object]()
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
        key = description.origin.key
        table, notes = _read(path, key)
        if missing := sorted(set(_columns(description.plan)) - set(table.column_names)):
            lacks = ", ".join(missing[:3])
            raise DamagedError({path: f"it is not a block of this evaluation: it has no {lacks}"})
        long, _ = _read(self.file(number, "scores"), key)
        try:
            columns = {name: _array(table, name) for name in table.column_names}
            path = self.file(number, "scores")
            return StoredBlock(columns, _values(long, len(table)), notes)
        except Exception as error:  # other types than were written
            raise DamagedError({path: error}) from error

    def clear(self) -> None:
        """Remove the files of an evaluation, and nothing else."""
        refuse_links(self.path, ["blocks"])
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
        return _evaluation(description, blocks), description
    except (KeyError, TypeError, ValueError, IndexError) as error:
        missing = f"what it describes is not in its blocks: {first_line(error)}"
        raise DamagedError({Path(folder) / DESCRIPTION: missing}) from error


def _evaluation(description: Description, blocks: Sequence[StoredBlock]) -> Evaluation:
    """The blocks of an evaluation as one."""
    plan = description.plan
    names = list(plan.estimators)
    outputs = plan.outputs
    first = blocks[0]

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([block.columns[name] for block in blocks])

    def by_name(columns: str) -> dict[str, NDArray[Any]]:
        return {name: column(columns + name) for name in names if columns + name in first.columns}

    uneven = f"share/mif/{names[0]}" in first.columns
    shared: dict[str, Any] = {
        "fractions": np.array(first.notes["fractions"]),
        "indices": column("index"),
        "labels": column("label"),
        "targets": column("target"),
        **{
            name: column(name) if all(name in block.columns for block in blocks) else None
            for name in ("confidence", "predicted")
        },
        # Earlier versions stored sentences.
        "left_out": [Note.from_json(each) for block in blocks for each in block.notes["problems"]],
        "complete": description.images == sum(len(block.columns["index"]) for block in blocks),
        **{f"shares_{side}": by_name(f"share/{side}/") if uneven else None for side in SIDES},
    }

    def curves(masking: str, output: str, **more: Any) -> Evaluation:
        sides: dict[str, Any] = {side: by_name(curve_column(masking, output, side, "")) for side in SIDES}
        start, points = column(f"unmasked/{output}"), next(iter(sides["mif"].values())).shape[1]
        known = first.notes.get("under", {}).get(masking, shared["fractions"][:points])
        own: dict[str, Any] = {"fractions": np.array(known)}  # some maskings cannot remove everything
        for side in SIDES if uneven and masking else ():
            shares = by_name(f"{masking}|share/{side}/") or shared[f"shares_{side}"]
            own[f"shares_{side}"] = {name: each[:, :points] for name, each in shares.items()}
        return Evaluation(**shared | sides | own, unmasked=start, divided=plan.divided[output], **more)

    return curves(
        "",
        outputs[0],
        values={
            score: {name: np.concatenate([block.values[score, name] for block in blocks]) for name in names}
            for score in plan.scores
        },
        importance=_importance(blocks),
        others={output: curves("", output) for output in outputs[1:]},
        under={masking: curves(masking, outputs[0]) for masking in plan.maskings},
    )


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
    columns: dict[str, Any] = {"index": evaluation.indices, "label": evaluation.labels}
    columns["target"] = evaluation.targets
    seen = {name: getattr(evaluation, name) for name in ("confidence", "predicted")}
    columns |= {name: values for name, values in seen.items() if values is not None}
    outputs = {result.description.plan.output: evaluation, **evaluation.others}
    columns |= curve_columns(outputs, evaluation.under)
    notes = {
        "problems": [note.to_json() for note in evaluation.left_out],
        "fractions": evaluation.fractions.tolist(),
        "importance": {name: [1, *values.tolist()] for name, values in evaluation.importance.items()},
        "under": {name: each.fractions.tolist() for name, each in evaluation.under.items()},
    }
    values = {(score, name): each for score, by in evaluation.values.items() for name, each in by.items()}
    images = len(evaluation.indices)
    description = replace(result.description, block=max(images, 1), images=images)
    target.write(0, StoredBlock(columns, values, notes), description)
    if result.examples is not None:
        write_examples(folder, result.examples, description.origin)
    target.describe(description)
    return folder


def curve_column(masking: str, output: str, side: str, estimator: str) -> str:
    """The name of the column of a curve; `masking` is empty for the plan's own."""
    return f"{masking}{'|' if masking else ''}{output}/{side}/{estimator}"


def curve_columns(outputs: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of curves: by output, the first of them also under further maskings."""
    first = next(iter(outputs))
    points = outputs[first].fractions.tolist()
    parts = [("", output, curves) for output, curves in outputs.items()]
    parts += [(masking, first, curves) for masking, curves in under.items()]
    columns = {f"unmasked/{output}": curves.unmasked for output, curves in outputs.items()}
    for side in SIDES:
        for masking, output, curves in parts:
            named = getattr(curves, side).items()
            columns |= {curve_column(masking, output, side, name): curve for name, curve in named}
        others = {f"{name}|": each for name, each in under.items() if each.fractions.tolist() != points}
        for prefix, curves in {"": outputs[first], **others}.items():
            shares = getattr(curves, f"shares_{side}") or {}
            columns |= {f"{prefix}share/{side}/{name}": share for name, share in shares.items()}
    return columns


def _columns(plan: StoredPlan) -> Iterable[str]:
    yield from ("index", "label", "target")
    for output in plan.outputs:
        yield f"unmasked/{output}"
        yield from (curve_column("", output, side, name) for side in SIDES for name in plan.estimators)


def _values(long: Any, count: int) -> dict[tuple[str, str], NDArray[Any]]:
    """The long form of a block of `count` images as arrays [N] by score and estimator."""
    keys = zip(*(long[column].to_pylist()[::count] for column in REPEATED), strict=True)
    return dict(zip(keys, long["value"].to_numpy().reshape(-1, count), strict=True))


def _importance(blocks: Sequence[StoredBlock]) -> dict[str, NDArray[Any]]:
    sums: dict[str, Any] = {}
    for block in blocks:
        for name, values in block.notes["importance"].items():
            sums[name] = sums.get(name, 0) + np.array(values)
    return {name: values[1:] / max(values[0], 1) for name, values in sums.items()}


def _column(values: NDArray[Any]) -> "pa.Array":
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _array(table: Any, name: str) -> NDArray[Any]:
    column = table[name].combine_chunks()
    if hasattr(column.type, "list_size"):
        values: NDArray[Any] = column.flatten().to_numpy().reshape(-1, column.type.list_size)
        return values
    return column.to_numpy()  # type: ignore[no-any-return]


def _write(path: Path, table: Any, notes: Mapping[str, Any], description: Description) -> None:
    write_table(path, table, {**notes, "block": description.block}, description.origin.key, REPEATED)


def _read(path: Path, key: str | None) -> tuple[Any, dict[str, Any]]:
    """The table of a block, of the evaluation with this key, and its notes."""
    stored = open_table(path)
    if key not in (None, stored.key):
        raise DamagedError({path: "it is a block of another evaluation or another model"})
    return stored.read(), stored.notes
