"""What the page on several processes says about memory and ImageNet is what was measured and calculated."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "howto" / "processes.md"
MEASURED = json.loads((ROOT / "docs" / "results" / "many-images.json").read_text(encoding="utf-8"))


@pytest.fixture
def calculated(monkeypatch, capsys):
    """The lines that the script of the ImageNet table prints."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import imagenet_time

    monkeypatch.setattr(sys, "argv", ["imagenet_time.py"])
    imagenet_time.main()
    return capsys.readouterr().out.splitlines()


def test_the_page_shows_the_calculation_for_imagenet(calculated):
    page = PAGE.read_text(encoding="utf-8")
    shown = page.split("<!-- imagenet -->")[1].split("<!-- end -->")[0].strip().splitlines()
    assert shown == [line for line in calculated if line.startswith("|")]
    told = re.findall(r"[\d.,]*\d", calculated[-1])
    assert told == ["64", "5.1", "64", "8"]
    assert "as many as 5.1 worker processes decode; each of the 64 processes has 8 of them" in page


def test_the_parts_of_the_calculation_are_its_sum_and_its_blocks_all_blocks(calculated):
    rows = [line.strip("| ").split(" | ") for line in calculated if re.match(r"\| \d", line)]
    totals = {}
    for gpus, blocks, *seconds, read in rows:
        *parts, total = (float(cell.removesuffix(" s").replace(",", "")) for cell in seconds)
        assert total == pytest.approx(sum(parts), abs=0.5 * len(parts))
        assert int(gpus) * int(blocks) * 128 >= 50_000 > int(gpus) * (int(blocks) - 1) * 128
        totals[int(gpus)] = total
        assert float(read.replace(",", "")) == pytest.approx(27.6 * int(gpus), abs=0.5 + 0.05 * int(gpus))
    assert sorted(totals) == [1, 8, 64]
    assert f"by a factor of {totals[8] / totals[64]:.1f} only" in PAGE.read_text(encoding="utf-8")


def test_the_page_shows_the_measured_memory():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for each in MEASURED:
        after = each["seconds_to_read_them"] + each["seconds_for_tables_figures_report"]
        memory = f"{each['mib_for_the_blocks']:,.0f} MiB | {each['mib_with_the_result']:,.0f} MiB"
        times = f"{each['seconds_for_the_blocks']:.0f} s | {after:.0f} s"
        assert f"| {each['images']:,} | {memory} | {times} | {each['mib_on_disk']:.0f} MiB |" in lines


def test_ten_times_as_many_images_took_no_more_memory_for_their_blocks():
    few, many = (each["mib_for_the_blocks"] for each in MEASURED)
    assert MEASURED[1]["images"] == 10 * MEASURED[0]["images"] == 50_000
    assert many < 1.02 * few
