"""From results to what people see: tables, figures and reports, of a study or of a single evaluation.

Everything here takes `fpa.evaluation.result.Results` and computes no new number; `show_all` writes all of it.
"""

from fpa.show.summary import STAGES
from fpa.show.write import show_all, write_comparison

__all__ = ["STAGES", "show_all", "write_comparison"]
