"""Errors of evaluations against the truth, from the files of research/truth.py.

    python research/truth_tables.py --work runs/truth --output docs/results/truth --seeds 0 1

Writes `errors.csv.gz` (how often each protocol prefers the worse of two maps, for every cell, row, truth and
kind of pairs), `comparisons.csv.gz` (models against each other on matched pairs), `contradictions.csv` (pairs
of estimators that MIF and LIF order oppositely, and the audit's verdict) and `maps.csv.gz` (mean truth and
mean A of every explanation). Seeds: those of truth.yaml, exploring and confirming, that are there.
Cells that are stored and have no files stay. `truth_claims.py` judges the claims by these tables,
`truth_page.py` makes the page of them.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fpa.auditing.areas import ImageAreas, OutputAreas
from fpa.auditing.rule import judge
from fpa.explanation.estimator import get_estimators
from fpa.statistics.intervals import Areas
from fpa.statistics.preferences import (
    Judged,
    all_pairs,
    data_set_errors,
    ladder_pairs,
    matched_errors,
    preference_errors,
    same_sign_pairs,
)
from truth import SHARES, Experiment

TRUTHS = ("truth", "truth_cues", "truth_unsigned", "truth_parts")
SIDES = ("A", "MIF", "LIF")
LEAST_GAP_OF_PARTS = 0.05
"""Truths of parts have no redrawn backgrounds to take a noise from."""
FEWEST_IN_BIN = 30
WIDTHS = (0.1, 0.025)


@dataclass(frozen=True)
class Row:
    """What was measured of one model and one judge."""

    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, digest: str) -> "Row":
        values = dict(np.load(path))
        if str(values["digest"]) != digest:
            raise SystemExit(f"{path} was made with another yaml")
        return cls(values)

    @property
    def names(self) -> list[str]:
        return [str(name) for name in self.values["names"]]

    @property
    def protocols(self) -> list[str]:
        return [str(name) for name in self.values["protocols"]]

    def truths(self, kind: str) -> Any:
        return self.values[kind].astype(np.float64)

    def noise(self, kind: str) -> Any:
        noise = self.values["fact centred_noise"].astype(np.float64)
        return np.full_like(noise, LEAST_GAP_OF_PARTS) if kind == "truth_parts" else noise

    def scores(self, sides: Iterable[str] = SIDES) -> dict[tuple[str, str], Any]:
        """[N, M] by protocol and side, the larger the better; A of the raw logit beside the first."""
        found: dict[tuple[str, str], Any] = {}
        for place, protocol in enumerate(self.protocols):
            mif = self.values["mif"][place].astype(np.float64)
            lif = self.values["lif"][place].astype(np.float64)
            by_side = {"A": lif - mif, "MIF": -mif, "LIF": lif}
            found |= {(protocol, side): by_side[side] for side in sides}
        return found

    def pairs(self, kind: str) -> Any:
        ladders = [frozenset(str(each).split()) for each in self.values["ladders"]]
        estimators = [
            place for place, sign in enumerate(self.values["signs"]) if sign in ("signed", "unsigned")
        ]
        every = all_pairs(len(ladders))
        if kind == "all":
            return every
        if kind == "ladders":
            return ladder_pairs(ladders)
        if kind == "same sign":
            return same_sign_pairs(every, [bool(each) for each in self.values["signed"]])
        assert kind == "explanations"
        return every[np.isin(every, estimators).all(axis=1)]

    def evidence(self, protocol: str) -> Any:
        """What the audit's rule would see by this protocol: the ten estimators of the paper."""
        place = self.protocols.index(protocol)
        unmasked = self.values["unmasked"].astype(np.float64)
        usable = unmasked > 0
        paper = {name: each for name, each in get_estimators("paper").items() if each.explains}
        areas = {}
        for name in paper:
            column = self.names.index(name)
            areas_of = [self.values[side][place][:, column].astype(np.float64) for side in ("mif", "lif")]
            mif, lif = (np.where(usable, each / np.where(usable, unmasked, 1), np.nan) for each in areas_of)
            areas[name] = Areas(normalise="each", mif_areas=mif, lif_areas=lif, kept=usable)
        random = self.values["random"][place].astype(np.float64)
        output = OutputAreas(unmasked, dict(zip(SHARES, random, strict=True)), areas)
        facts = {name: each.facts(name) for name, each in paper.items()}
        found = ImageAreas(
            name=protocol,
            images=self.values["images"],
            labels=self.values["labels"],
            predicted=self.values["targets"],
            outputs={"centred": output},
            signed={name: each.sign == "signed" for name, each in facts.items()},
            families={name: str(each.family) for name, each in facts.items()},
        )
        return found.evidence()


@dataclass(frozen=True)
class Cell:
    """The rows of a rule and a seed that are there."""

    rule: str
    seed: int
    rows: Mapping[str, Row]

    @property
    def keys(self) -> dict[str, Any]:
        return {"rule": self.rule, "seed": self.seed}


def read_cells(
    work: Path, experiment: Experiment, seeds: Iterable[int]
) -> Iterator[tuple[str, int, dict[str, Path]]]:
    """The files of every cell by row; says which rows a cell lacks."""
    for seed in seeds:
        for rule in experiment.settings["rules"]:
            paths = {row: work / rule / str(seed) / f"{row}.npz" for row in experiment.settings["rows"]}
            there = {row: path for row, path in paths.items() if path.exists()}
            lacking = [row for row in paths if row not in there]
            if lacking:
                print(f"{rule} {seed}: without {', '.join(lacking)}")
            if there:
                yield rule, seed, there


def errors(cell: Cell) -> Iterator[dict[str, Any]]:
    """How often each protocol prefers the worse map."""
    wanted = [("truth", kind) for kind in ("all", "ladders", "same sign", "explanations")]
    wanted += [(truth, "all") for truth in TRUTHS[1:]]
    for name, row in cell.rows.items():
        scores = row.scores()
        named = {f"{protocol}|{side}": each for (protocol, side), each in scores.items()}
        for truth, kind in wanted:
            truths = row.truths(truth)
            noise = row.noise(truth)
            for over, count in (("image", preference_errors), ("data set", data_set_errors)):
                if over == "data set" and (truth, kind) not in (("truth", "all"), ("truth", "explanations")):
                    continue
                found = count(truths, named, noise, row.pairs(kind))
                for key, error in found.errors.items():
                    protocol, side = key.split("|")
                    yield cell.keys | {
                        "row": name,
                        "truth": truth,
                        "pairs": kind,
                        "over": over,
                        "protocol": protocol,
                        "side": side,
                        "error": round(error, 5),
                        "counted": found.pairs,
                        "close": found.close,
                        "missing": found.missing,
                    }
        truths = row.truths("truth")
        raw = {"raw": row.values["raw areas"].astype(np.float64)}
        found = preference_errors(truths, raw, row.noise("truth"), row.pairs("all"))
        yield cell.keys | {
            "row": name,
            "truth": "truth",
            "pairs": "all",
            "over": "image",
            "protocol": row.protocols[0],
            "side": "A of the raw logit",
            "error": round(found.errors["raw"], 5),
            "counted": found.pairs,
            "close": found.close,
            "missing": found.missing,
        }


def comparisons(cell: Cell) -> Iterator[dict[str, Any]]:
    """Two models with truths of their own, on ladder pairs that are matched."""
    if "none" not in cell.rows:
        return
    own = cell.rows["none"]
    pairs = own.pairs("ladders")
    # Those whose maps and truths are their own; the judge's are those of none.
    for other, row in cell.rows.items():
        if other in ("none", "judge"):
            continue
        for truth in ("truth", "truth_cues"):
            noises = (own.noise(truth), row.noise(truth))
            for (protocol, side), scores in own.scores(("A", "MIF", "LIF")).items():
                theirs = row.scores((side,))[protocol, side]
                for width in WIDTHS:
                    matched = matched_errors(
                        Judged(own.truths(truth), scores, noises[0]),
                        Judged(row.truths(truth), theirs, noises[1]),
                        pairs,
                        width=width,
                        fewest=FEWEST_IN_BIN,
                    )
                    yield cell.keys | {
                        "comparison": f"none, {other}",
                        "truth": truth,
                        "pairs": f"ladders, matched, bins of {width}",
                        "protocol": protocol,
                        "side": side,
                        "first": round(matched.first, 5),
                        "second": round(matched.second, 5),
                        "counted": int(matched.counts.sum()),
                        "bins": len(matched.counts),
                        "gap first": round(float(matched.gaps[0].mean()), 4) if len(matched.bins) else "",
                        "gap second": round(float(matched.gaps[1].mean()), 4) if len(matched.bins) else "",
                        "missing": matched.missing,
                        "close": matched.close,
                        "unlike": matched.unlike,
                        "thin": matched.thin,
                    }


def contradictions(cell: Cell) -> Iterator[dict[str, Any]]:
    """What an audit would say of every row and protocol."""
    for name, row in cell.rows.items():
        for protocol in row.protocols:
            evidence = row.evidence(protocol)
            verdict = judge(evidence)[0]
            opposite = evidence.opposite
            yield cell.keys | {
                "row": name,
                "protocol": protocol,
                "verdict": verdict,
                "pairs": evidence.pairs,
                # Of too few images nothing is said.
                "opposite": None if opposite is None else opposite.value,
                "surely": None if opposite is None else opposite.low,
                "at most": None if opposite is None else opposite.high,
                "kept": round(evidence.kept[10].value, 4) if 10 in evidence.kept else None,
                "images": evidence.images,
                "used": evidence.used,
                "right": round(evidence.images * (evidence.accuracy or 0)),
                "chance": round(evidence.chance or 1, 4),
            }


def maps(cell: Cell) -> Iterator[dict[str, Any]]:
    """The mean truth of every map that is not made from the truth, and its mean A by every protocol."""
    for name, row in cell.rows.items():
        scores = row.scores(("A",))
        for place, each in enumerate(row.names):
            if row.values["ladders"][place]:
                continue
            means = {truth: float(np.nanmean(row.truths(truth)[:, place])) for truth in TRUTHS}
            areas = {
                protocol: float(np.nanmean(values[:, place])) for (protocol, _), values in scores.items()
            }
            yield cell.keys | {
                "row": name,
                "map": each,
                **{truth: round(mean, 4) for truth, mean in means.items()},
                **{f"A, {protocol}": round(area, 2) for protocol, area in areas.items()},
            }


TABLES = {"errors": errors, "comparisons": comparisons, "contradictions": contradictions, "maps": maps}


def path_of(table: str) -> str:
    """The large ones are packed."""
    return f"{table}.csv" if table == "contradictions" else f"{table}.csv.gz"


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    # Without a time in a packed file the same table gives the same bytes.
    packed = {"method": "gzip", "mtime": 0} if path.suffix == ".gz" else None
    pd.DataFrame(rows).to_csv(path, index=False, compression=packed)


def tables_of(digest: str, place: tuple[str, int, dict[str, Path]]) -> dict[str, list[dict[str, Any]]]:
    rule, seed, paths = place
    cell = Cell(rule, seed, {row: Row.read(path, digest) for row, path in paths.items()})
    return {name: list(make(cell)) for name, make in TABLES.items()}


def with_stored(path: Path, rows: list[dict[str, Any]], rules: list[str]) -> list[dict[str, Any]]:
    """Rows of a table, and those of the stored one whose cells are not among them, by seed and rule."""
    if not path.exists():
        return rows
    made = {(row["rule"], row["seed"]) for row in rows}
    stored = pd.read_csv(path).to_dict("records")
    both = [*rows, *(row for row in stored if (row["rule"], row["seed"]) not in made)]
    return sorted(both, key=lambda row: (row["seed"], rules.index(row["rule"])))


def check_stored(folder: Path, digest: str) -> None:
    """Refuse to put cells beside stored ones that another `truth.yaml` made."""
    known = folder / "truth.yaml.sha256"
    if known.exists() and known.read_text(encoding="utf-8").strip() != digest:
        raise SystemExit(f"the tables in {folder} were made with another truth.yaml: use another --output")
    known.write_text(f"{digest}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/truth"))
    parser.add_argument("--output", type=Path, default=Path("docs/results/truth"))
    parser.add_argument("--seeds", nargs="*", type=int, help="default: all of truth.yaml")
    options = parser.parse_args()
    experiment = Experiment.read()
    settings = experiment.settings
    seeds = options.seeds or [*settings["exploring"], *settings["confirming"]]
    places = list(read_cells(options.work, experiment, seeds))
    with ProcessPoolExecutor(2) as pool:
        made = list(pool.map(partial(tables_of, experiment.digest), places))
    options.output.mkdir(parents=True, exist_ok=True)
    check_stored(options.output, experiment.digest)
    for table in TABLES:
        path = options.output / path_of(table)
        write_table(path, with_stored(path, [row for each in made for row in each[table]], settings["rules"]))


if __name__ == "__main__":
    main()
