"""Errors of evaluations against the truth on photos, from the files of research/truth_pets.py.

    python research/truth_pets_tables.py --work runs/truth-pets --output docs/results/truth

Prints, for every seed, row and protocol, how often A prefers the worse of two maps, and writes `pets.csv`
(the same by A, MIF and LIF, with the accuracy of the models), `pets-comparisons.csv` (rows against each other
on the same pairs) and `pets-contradictions.csv` (what an audit would say).
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truth import Experiment
from truth_pets import PROTOCOL
from truth_tables import Cell, Row, comparisons, contradictions, errors, read_cells, write_table

PAIRS = ("all", "ladders", "explanations")
"""Kinds of pairs that are printed."""
ACCURACIES = ("explained test", "explained judged", "judge test", "judge judged")


def with_accuracy(cell: Cell) -> Iterator[dict[str, Any]]:
    """The errors of a cell, with how often either model of a row is right."""
    for row in errors(cell):
        values = cell.rows[row["row"]].values
        shares = {f"accuracy {name}": round(float(values[f"accuracy {name}"]), 4) for name in ACCURACIES}
        yield row | shares


def print_errors(rows: list[dict[str, Any]]) -> None:
    """A line a seed, row and protocol: the errors of A on each kind of pairs, in percent."""
    wanted = {"truth": "truth", "over": "image", "side": "A"}
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if all(row[name] == value for name, value in wanted.items()):
            found.setdefault((row["seed"], row["row"], row["protocol"]), {})[row["pairs"]] = row
    print(f"{'seed row   protocol':<24}" + "".join(f"{kind:>14}" for kind in PAIRS) + "   accuracy")
    for (seed, name, protocol), kinds in found.items():
        shares = "".join(f"{100 * kinds[kind]['error']:>14.1f}" for kind in PAIRS)
        accuracy = 100 * kinds["all"]["accuracy explained test"]
        print(f"{seed:<4} {name:<6} {protocol:<12}{shares}   {accuracy:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/truth-pets"))
    parser.add_argument("--output", type=Path, default=Path("docs/results/truth"))
    parser.add_argument("--seeds", nargs="*", type=int, help="default: those of truth_pets.yaml")
    options = parser.parse_args()
    experiment = Experiment.read(PROTOCOL)
    seeds = options.seeds or experiment.settings["seeds"]
    cells = []
    for rule, seed, paths in read_cells(options.work, experiment, seeds):
        rows = {row: Row.read(path, experiment.digest) for row, path in paths.items()}
        cells.append(Cell(rule, seed, rows))
    found = [row for cell in cells for row in with_accuracy(cell)]
    print_errors(found)
    options.output.mkdir(parents=True, exist_ok=True)
    write_table(options.output / "pets.csv", found)
    for name, make in (("comparisons", comparisons), ("contradictions", contradictions)):
        write_table(options.output / f"pets-{name}.csv", [row for cell in cells for row in make(cell)])


if __name__ == "__main__":
    main()
