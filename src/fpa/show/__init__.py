"""From results to what people see: tables, figures and reports, of a study or of a single evaluation.

Everything here takes `fpa.evaluation.result.Results` and computes no new number; `show_all` writes all of it.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from fpa.evaluation.result import Results
from fpa.files import refuse_links, writable_folder, write_text
from fpa.show.tables import comparison_table, csv_text, latex, markdown, results_table
from fpa.study.folder import SHOWN as STAGES

__all__ = ["STAGES", "show_all", "write_comparison"]


def show_all(
    results: Results, folder: str | Path, command: str | None = None, only: Collection[str] = STAGES
) -> dict[str, list[Path]]:
    """Write table.csv, table.md and table.tex, figures/ and report.html; the files written, by stage.

    - `command`: what to type to repeat it, for the report.
    - `only`: the stages wanted, of `STAGES`.
    """
    folder = writable_folder(Path(folder))
    refuse_links(folder, ["figures"])
    written: dict[str, list[Path]] = {}
    if "tables" in only:
        texts = {"csv": csv_text(results_table(results)), "md": markdown(results), "tex": latex(results)}
        written["tables"] = [write_text(folder / f"table.{kind}", text) for kind, text in texts.items()]
    if "figures" in only:
        from fpa.show.figures import save_figures

        written["figures"] = save_figures(results, folder / "figures")
    if "report" in only:
        from fpa.show.report import write_report

        written["report"] = [write_report(results, folder / "report.html", command)]
    return written


def write_comparison(several: Sequence[Results], folder: str | Path) -> list[Path]:
    """Write comparison.csv, and overviews of the signed and of the unsigned estimators if there are any."""
    from fpa.show.figures import overview, save

    folder = writable_folder(Path(folder))
    written = [write_text(folder / "comparison.csv", csv_text(comparison_table(several)))]
    for signed, kind in ((True, "signed"), (False, "unsigned")):
        stem = folder / f"overview-{kind}"
        if any(signed in results.signed.values() for results in several):
            written += save(overview(several, signed=signed), stem)
        else:  # a figure of an earlier comparison would be taken for one of this
            for suffix in (".png", ".pdf"):
                stem.with_suffix(suffix).unlink(missing_ok=True)
    return written
