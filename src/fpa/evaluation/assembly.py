"""The blocks of an evaluation as one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fpa.evaluation.description import Description
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.stored_block import (
    SIDES,
    Array,
    StoredBlock,
    curve_column,
    fact_column,
    share_column,
    unit_column,
)


def assembled(description: Description, blocks: Sequence[StoredBlock]) -> Evaluation:
    """Everything that was measured, from the blocks in their order."""
    plan = description.plan
    stored = _Blocks(description, blocks)
    return replace(
        stored.curves("", plan.output),
        values={
            score: {name: stored.score(score, name) for name in plan.estimators} for score in plan.scores
        },
        units={
            score: unit
            for score in plan.scores
            if (unit := stored.column_if_everywhere(unit_column(score))) is not None
        },
        image_facts=stored.image_facts(),
        importance=_importance(blocks),
        others={output: stored.curves("", output) for output in plan.outputs[1:]},
        under={name: stored.curves(name, plan.output) for name in plan.protocols},
    )


class _Blocks:
    """The columns of all blocks, and the curves that they hold."""

    def __init__(self, description: Description, blocks: Sequence[StoredBlock]) -> None:
        self.plan = description.plan
        self.blocks = blocks
        self.first = blocks[0]
        # What all curves share is put together once: it may be as large as a curve.
        self.indices = self.column("index")
        self.labels = self.column("label")
        self.targets = self.column("target")
        self.predicted = self.column_if_everywhere("predicted")
        self.confidence = self.column_if_everywhere("confidence")
        self.shares = {side: self.by_estimator(share_column("", side, "")) for side in SIDES}
        self.left_out = [note for block in blocks for note in block.notes.left_out]
        self.complete = description.images == len(self.indices)

    def column(self, name: str) -> Array:
        """A column of all blocks."""
        return np.concatenate([block.columns[name] for block in self.blocks])

    def score(self, score: str, estimator: str) -> Array:
        """The values of a score, [N]."""
        return np.concatenate([block.values[score, estimator] for block in self.blocks])

    def column_if_everywhere(self, name: str) -> Array | None:
        """A column that blocks of an earlier version may lack."""
        return self.column(name) if all(name in block.columns for block in self.blocks) else None

    def by_estimator(self, prefix: str) -> dict[str, Array]:
        """The columns that begin so, by the estimator that they end with; not all need to have one."""
        named = {name: prefix + name for name in self.plan.estimators}
        return {name: self.column(column) for name, column in named.items() if column in self.first.columns}

    def image_facts(self) -> dict[str, Array]:
        """What scores knew of the images besides their values, [N] by name."""
        prefix = fact_column("")
        names = [column.removeprefix(prefix) for column in self.first.columns if column.startswith(prefix)]
        return {name: self.column(fact_column(name)) for name in names}

    def curves(self, protocol: str, output: str) -> Evaluation:
        """The curves of an output; `protocol` is empty for the plan's own."""
        mif = self.by_estimator(curve_column(protocol, output, "mif", ""))
        lif = self.by_estimator(curve_column(protocol, output, "lif", ""))
        points = next(iter(mif.values())).shape[1]
        notes = self.first.notes
        return Evaluation(
            fractions=np.array(notes.under.get(protocol, notes.fractions[:points])),
            indices=self.indices,
            labels=self.labels,
            targets=self.targets,
            unmasked=self.column(f"unmasked/{output}"),
            mif=mif,
            lif=lif,
            predicted=self.predicted,
            confidence=self.confidence,
            shares_mif=self.shares_by(protocol, "mif", points),
            shares_lif=self.shares_by(protocol, "lif", points),
            divided=self.plan.divided[output],
            left_out=self.left_out,
            complete=self.complete,
        )

    def shares_by(self, protocol: str, side: str, points: int) -> dict[str, Array] | None:
        """The shares of pixels removed, [N, K] by estimator; None where all features have the same size."""
        if protocol in self.plan.with_own_features:
            return self.by_estimator(share_column(protocol, side, "")) or None
        shares = self.shares[side]
        if not shares or not protocol:
            return shares or None
        own = self.by_estimator(share_column(protocol, side, "")) or shares
        return {name: each[:, :points] for name, each in own.items()}


def _importance(blocks: Sequence[StoredBlock]) -> dict[str, Array]:
    """By estimator: the mean over images of their sorted importance scores."""
    sums: dict[str, Array] = {}
    for block in blocks:
        for name, values in block.notes.importance.items():
            sums[name] = sums.get(name, np.zeros(len(values))) + np.array(values)
    # The first number counts the images whose maps were finite.
    return {name: each[1:] / max(each[0], 1) for name, each in sums.items()}
