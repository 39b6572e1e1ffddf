"""Reports: one HTML file each, which loads nothing from elsewhere."""

from fpa.show.report.page import write_report
from fpa.show.report.verdict import verdict

__all__ = ["verdict", "write_report"]
