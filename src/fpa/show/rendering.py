"""The templates of pages and tables, filled in."""

import math
from pathlib import Path
from typing import Any

from fpa.errors import percent, without_controls
from fpa.files import writable_folder, write_text
from fpa.show import summary
from fpa.show.names import markdown_text, model_name, tex


def rendered(template: str, **values: Any) -> str:
    """A template of the package with these values; text from data is escaped in HTML, controls anywhere."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fpa.show"),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": number,
        "model": model_name,
        "percent": percent,
        "tenths": "{:.1f}".format,
    }
    environment.filters |= {"latex": tex, "md": markdown_text}
    return without_controls(environment.get_template(template).render(values, summary=summary))


def write_page(path: str | Path, page: str) -> Path:
    """Write a page to `path`, in one piece."""
    writable_folder(Path(path).parent)
    return write_text(Path(path), page)


def number(value: float, digits: int = 1, sign: bool = False) -> str:
    """A number with a real minus sign; a dash where there is none.

    >>> number(-3.14), number(2, sign=True), number(-0.01), number(float("nan"))
    ('−3.1', '+2.0', '0.0', '–')
    """
    if not math.isfinite(value):
        return "–"
    rounded = round(value, digits) + 0.0  # no negative zero
    return f"{rounded:{'+' if sign else ''}.{digits}f}".replace("-", "−")
