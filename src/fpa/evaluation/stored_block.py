"""A block of an evaluation as it is stored: columns by name, scores in long form, and a few notes."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpa.evaluation.stored_plan import StoredPlan
from fpa.notes import Note
from fpa.values import part_of

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[Any]
Values = TypeVar("Values", covariant=True)

SIDES = ("mif", "lif")
"""The orders of a curve."""

REPEATED = ("score", "estimator")
"""The columns of texts."""


@dataclass(frozen=True)
class BlockNotes:
    """What a block says besides its columns."""

    left_out: list[Note]
    """Images, maps and curves that are not finite."""
    fractions: list[float] = field(default_factory=list)
    """[K], of the curves under the plan's own masking."""
    importance: dict[str, list[float]] = field(default_factory=dict)
    """By estimator: how many maps were finite, then the sum of their sorted scores at some places."""
    under: dict[str, list[float]] = field(default_factory=dict)
    """The fractions of further protocols, whose maskings may be unable to remove everything."""

    @classmethod
    def from_json(cls, notes: Mapping[str, Any]) -> "BlockNotes":
        """The notes of a file, or the error that says what is wrong with them."""
        return cls(
            # Earlier versions stored sentences.
            left_out=[Note.from_json(each) for each in part_of(notes, "problems", list[Any])],
            fractions=part_of(notes, "fractions", list[float]),
            importance=part_of(notes, "importance", dict[str, list[float]]),
            under=part_of(notes, "under", dict[str, list[float]] | None) or {},
        )

    def to_json(self) -> dict[str, Any]:
        """As the file has them."""
        return {
            "problems": [note.to_json() for note in self.left_out],
            "fractions": self.fractions,
            "importance": self.importance,
            "under": self.under,
        }


@dataclass(frozen=True)
class StoredBlock:
    """The results of a block of images."""

    columns: dict[str, Array]
    """[N] or [N, K]."""
    values: dict[tuple[str, str], Array]
    """By score and estimator, [N]."""
    notes: BlockNotes

    def scores_table(self) -> "pa.Table":
        """The scores in long form: score, estimator, image, value."""
        import pyarrow as pa

        images = self.columns["index"]
        # A name is stored once, and its number with every value: as texts they would take more than these.
        codes = np.repeat(np.arange(len(self.values), dtype=np.int32), len(images))
        long: dict[str, Any] = {}
        for place, column in enumerate(REPEATED):
            names = pa.array([key[place] for key in self.values], pa.string())
            long[column] = pa.DictionaryArray.from_arrays(codes, names)
        long["image"] = np.tile(images, len(self.values))
        long["value"] = np.concatenate([np.zeros(0), *self.values.values()])
        return pa.table(long)

    def columns_table(self) -> "pa.Table":
        """The columns, one row an image; a curve is a list of fixed length."""
        import pyarrow as pa

        return pa.table({name: _column(values) for name, values in self.columns.items()})


class CurvesLike(Protocol[Values]):
    """Curves as they are computed or as they were read: `perturbation.Curves` of tensors, `Evaluation`."""

    @property
    def fractions(self) -> Any:
        """[K]."""

    @property
    def unmasked(self) -> Values:
        """[N]."""

    @property
    def mif(self) -> Mapping[str, Values]:
        """[N, K] by estimator."""

    @property
    def lif(self) -> Mapping[str, Values]:
        """[N, K] by estimator."""

    @property
    def shares_mif(self) -> Mapping[str, Values] | None:
        """[N, K] by estimator."""

    @property
    def shares_lif(self) -> Mapping[str, Values] | None:
        """[N, K] by estimator."""


def curve_column(protocol: str, output: str, side: str, estimator: str) -> str:
    """The name of the column of a curve; `protocol` is empty for the plan's own."""
    return f"{protocol}{'|' if protocol else ''}{output}/{side}/{estimator}"


def share_column(protocol: str, side: str, estimator: str) -> str:
    """The name of the column of the shares of pixels that a curve removes."""
    return f"{protocol}{'|' if protocol else ''}share/{side}/{estimator}"


def unit_column(score: str) -> str:
    """The name of the column of what the values of a score are in."""
    return f"unit/{score}"


def fact_column(name: str) -> str:
    """The name of the column of what a score knows of the images besides its values."""
    return f"fact/{name}"


def curve_columns(
    outputs: Mapping[str, CurvesLike[Values]],
    under: Mapping[str, CurvesLike[Values]],
    with_own_features: Collection[str] = (),
) -> dict[str, Values]:
    """The columns of curves: by output, the first of them also by further protocols."""
    scored_output = next(iter(outputs))
    curves = [("", output, each) for output, each in outputs.items()]
    curves += [(protocol, scored_output, each) for protocol, each in under.items()]
    # All outputs remove the same pixels; another masking does too, unless it must stop earlier.
    points = outputs[scored_output].fractions.tolist()
    shares = {"": outputs[scored_output]}
    for protocol, each in under.items():
        if protocol in with_own_features or each.fractions.tolist() != points:
            shares[protocol] = each

    columns = {f"unmasked/{output}": each.unmasked for output, each in outputs.items()}
    for side in SIDES:
        for protocol, output, each in curves:
            for estimator, values in (each.mif if side == "mif" else each.lif).items():
                columns[curve_column(protocol, output, side, estimator)] = values
        for protocol, each in shares.items():
            removed = each.shares_mif if side == "mif" else each.shares_lif
            for estimator, values in (removed or {}).items():
                columns[share_column(protocol, side, estimator)] = values
    return columns


def needed_columns(plan: StoredPlan) -> Iterator[str]:
    """The columns that every block of a plan has."""
    yield from ("index", "label", "target")
    for output in plan.outputs:
        yield f"unmasked/{output}"
        yield from (curve_column("", output, side, name) for side in SIDES for name in plan.estimators)


def columns_of(table: "pa.Table") -> dict[str, Array]:
    """The reverse of `columns_table`."""
    return {name: _array(table[name].combine_chunks()) for name in table.column_names}


def scores_of(table: "pa.Table", images: int) -> dict[tuple[str, str], Array]:
    """The reverse of `scores_table`, for a block of so many images."""
    scores, estimators = (table[column].to_pylist()[::images] for column in REPEATED)
    values = table["value"].to_numpy().reshape(-1, images)
    return dict(zip(zip(scores, estimators, strict=True), values, strict=True))


def _column(values: Array) -> "pa.Array":
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _array(column: Any) -> Array:
    values: Array
    if hasattr(column.type, "list_size"):
        values = column.flatten().to_numpy().reshape(-1, column.type.list_size)
    else:
        values = column.to_numpy()
    return values
