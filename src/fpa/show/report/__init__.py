"""Reports: one HTML file each, which loads nothing from elsewhere."""

from fpa.show.report.page import write_report
from fpa.show.report.verdict import Meaning, finding, verdict

__all__ = ["Meaning", "finding", "verdict", "write_report"]
