"""The verdicts and the evidence of several audits as one table.

    python research/audit_table.py docs/results/audit/*.json --before docs/results/audit/before

Each file is an audit.json that `fpa audit` wrote; its name is that of the row. With `--before` a column has
the verdict of the file of the same name there. Audits of a format before 3 were judged by an interval from
resampling images; beside it stands what the tests of the pairs say, from the p-values that they have stored.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from fpa.auditing.rule import Evidence, judge
from fpa.statistics.intervals import Estimate
from fpa.statistics.orders import Orders

OTHER_MASKINGS = ("mean", "blur", "uniform")


def row(path: Path, before: Path | None = None) -> list[str]:
    """The cells of one audit."""
    audit = json.loads(path.read_text(encoding="utf-8"))
    evidence = audit["evidence"]
    cells = [path.stem]
    if before is not None:
        old = before / path.name
        cells.append(json.loads(old.read_text(encoding="utf-8"))["verdict"] if old.exists() else "")
    cells.append(audit["verdict"])
    if audit["format"] > 1:  # since then the centred logit is judged
        cells += [audit["verdict_of_raw_logit"], f"{100 * evidence['offset']:.1f} %"]
    cells.append(f"{evidence['opposite']['value']:.0f} of {evidence['pairs']}")
    cells.append(f"{evidence['opposite']['low']:.0f} to {evidence['opposite']['high']:.0f}")
    cells += judged_again(audit) if audit["format"] < 3 else []
    cells += [percent(evidence["kept"][share]) for share in ("10", "25", "50")]
    cells += [percent(evidence["right"][share]) for share in ("0", "10", "25", "50")]
    rises = [found["low"] > 0 for found in evidence["rise"].values()]
    cells.append(f"{sum(rises)} of {len(rises)}")
    cells += [f"{evidence['agreement'][name]['value']:.2f}" for name in OTHER_MASKINGS]
    return cells


def judged_again(audit: dict[str, Any]) -> tuple[str, str]:
    """The verdict of an audit of format 1 or 2 by the tests of its pairs, and the number in opposite order.

    It has stored p-values that were Holm-corrected over the two tests of all pairs: the k-th smallest of m
    was multiplied by m - k + 1. Where the correction had made two equal, dividing gives too large a p; where
    it was cut off at 1, one that is not significant.
    """
    pairs = audit["pairs"]
    corrected = np.array([[pair["p_mif"] for pair in pairs], [pair["p_lif"] for pair in pairs]])
    flat = corrected.ravel()
    rank = np.empty(flat.size)
    rank[np.argsort(flat, kind="stable")] = np.arange(flat.size)
    p_mif, p_lif = (flat / (flat.size - rank)).reshape(corrected.shape)
    of = np.array([pair["kind"] == "signed-unsigned" for pair in pairs])
    differences = (np.array([pair[side] for pair in pairs]) for side in ("mif", "lif"))
    low, high = Orders(*differences, p_mif, p_lif).of(of).bounds()
    evidence = audit["evidence"]
    accuracy = evidence["accuracy"]
    again = Evidence(
        images=evidence["images"],
        used=evidence["used"],
        accuracy=accuracy,
        labels=evidence["labels"],
        chance=evidence.get("chance"),
        change=Estimate(**evidence["change"]) if evidence.get("change") else None,
        signed=sum(audit["signed"].values()),
        unsigned=len(audit["signed"]) - sum(audit["signed"].values()),
        opposite=Estimate(evidence["opposite"]["value"], float(low), float(high)),
        kept={int(share): Estimate(**kept) for share, kept in evidence["kept"].items()},
    )
    return judge(again)[0], f"{low} to {high}"


def percent(found: dict[str, Any]) -> str:
    """A share with its interval as a whole number of percent."""
    return f"{100 * found['value']:.0f}"


def table(paths: list[Path], before: Path | None = None) -> list[str]:
    """The lines of the table, a row an audit."""
    form = json.loads(paths[0].read_text(encoding="utf-8"))["format"]
    head = ["model", *(["before"] if before else []), "verdict"]
    head += ["by the raw logit", "offset of the head"] if form > 1 else []
    head += ["opposite pairs", "95 % interval"]
    head += ["verdict by tests", "for sure"] if form < 3 else []
    head += ["logit kept at 10 %", "25 %", "50 %"]
    head += ["accuracy at 0 %", "10 %", "25 %", "50 %", "signed LIF that rise"]
    head += [f"ranking, {name}" for name in OTHER_MASKINGS]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    return lines + ["| " + " | ".join(row(path, before)) + " |" for path in paths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--before", type=Path)
    chosen = parser.parse_args()
    print("\n".join(table(chosen.files, chosen.before)))


if __name__ == "__main__":
    main()
