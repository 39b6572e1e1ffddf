"""How large the report of a large evaluation is, and how fast a browser opens it.

    python benchmarks/report.py --images 5000 --classes 1000 --size 224

The results are made up, as in the tests. The time needs Selenium and Chromium; it is that until the page has
drawn its charts, the second time it is opened.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from fpa.show.report import write_report

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import browsers
import studies


def opening(page: Path) -> float:
    """Milliseconds until the page is loaded."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browsers.BROWSER or ""
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking"):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=options, service=Service(browsers.DRIVER))
    try:
        for _ in range(2):
            driver.get(page.as_uri())
        timing = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        return float(driver.execute_script(timing))
    finally:
        driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in (("images", 5000), ("classes", 1000), ("size", 224), ("examples", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = vars(parser.parse_args())
    studies.CLASSES[:] = [f"class number {place}" for place in range(chosen.pop("classes"))]
    for variants in (("fpa",), ("none", "rectangle", "fpa")):
        results = studies.made_up_study(variants=variants, **chosen)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            page = write_report(results, Path(folder) / "report.html")
            took = time.perf_counter() - start
            size = page.stat().st_size / 1e6
            print(f"models: {len(variants)}, {size:.1f} MB, written in {took:.1f} s", end="", flush=True)
            print(f", opened in {opening(page):.0f} ms" if browsers.BROWSER and browsers.DRIVER else "")


if __name__ == "__main__":
    main()
