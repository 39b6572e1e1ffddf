"""The verdicts and the evidence of several audits as one table.

    python benchmarks/audit_table.py docs/results/audit/*.json

Each file is an audit.json that `fpa audit` wrote; its name is the name of the row.
"""

import argparse
import json
from pathlib import Path
from typing import Any

MASKINGS = ("mean", "blur", "uniform")


def row(path: Path) -> list[str]:
    audit = json.loads(path.read_text(encoding="utf-8"))
    evidence = audit["evidence"]
    cells = [path.stem, audit["verdict"], f"{evidence['opposite']['value']:.0f} of {evidence['pairs']}"]
    cells.append(f"{evidence['opposite']['low']:.0f} to {evidence['opposite']['high']:.0f}")
    cells += [percent(evidence["kept"][share]) for share in ("10", "25", "50")]
    cells += [percent(evidence["right"][share]) for share in ("0", "10", "25", "50")]
    rises = [found["low"] > 0 for found in evidence["rise"].values()]
    cells.append(f"{sum(rises)} of {len(rises)}")
    cells += [f"{evidence['agreement'][name]['value']:.2f}" for name in MASKINGS]
    return cells


def percent(found: dict[str, Any]) -> str:
    return f"{100 * found['value']:.0f}"


def table(paths: list[Path]) -> list[str]:
    head = ["model", "verdict", "opposite pairs", "95 % interval", "logit kept at 10 %", "25 %", "50 %"]
    head += ["accuracy at 0 %", "10 %", "25 %", "50 %", "signed LIF that rise"]
    head += [f"ranking, {name}" for name in MASKINGS]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    return lines + ["| " + " | ".join(row(path)) + " |" for path in paths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    print("\n".join(table(parser.parse_args().files)))


if __name__ == "__main__":
    main()
