"""The verdicts and the evidence of several audits as one table.

    python research/audit_table.py docs/results/audit/*.json --before docs/results/audit/before

Each file is an audit.json that `fpa audit` wrote; its name is that of the row. With `--before` a column has
the verdict of the file of the same name there.
"""

import argparse
import json
from pathlib import Path
from typing import Any

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
    cells += [percent(evidence["kept"][share]) for share in ("10", "25", "50")]
    cells += [percent(evidence["right"][share]) for share in ("0", "10", "25", "50")]
    rises = [found["low"] > 0 for found in evidence["rise"].values()]
    cells.append(f"{sum(rises)} of {len(rises)}")
    cells += [f"{evidence['agreement'][name]['value']:.2f}" for name in OTHER_MASKINGS]
    return cells


def percent(found: dict[str, Any]) -> str:
    """A share with its interval as a whole number of percent."""
    return f"{100 * found['value']:.0f}"


def table(paths: list[Path], before: Path | None = None) -> list[str]:
    """The lines of the table, a row an audit."""
    new = json.loads(paths[0].read_text(encoding="utf-8"))["format"] > 1
    head = ["model", *(["before"] if before else []), "verdict"]
    head += ["by the raw logit", "offset of the head"] if new else []
    head += ["opposite pairs", "95 % interval", "logit kept at 10 %", "25 %", "50 %"]
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
