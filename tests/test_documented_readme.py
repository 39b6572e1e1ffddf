"""What the README and the page "Which evaluation should I use?" say is so, and what they point to exists."""

import re
import sys
from pathlib import Path

import pandas as pd
import pytest

from fpa.evaluation.recommended import ERRORS, RECOMMENDED

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
WHICH = ROOT / "docs" / "which.md"
TRUTH = ROOT / "docs" / "results" / "truth"
CONFIRMING = [10, 11, 12, 13, 14]


def table(page, mark):
    """The cells of a table of a page, by the first of their row and the title of their column."""
    text = page.read_text(encoding="utf-8").split(f"<!-- table: {mark} -->")[1].split("<!-- end -->")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    titles = [title.strip("`") for title in rows[0][1:]]
    return {(row[0], title): cell for row in rows[1:] for title, cell in zip(titles, row[1:], strict=True)}


@pytest.fixture(scope="module")
def errors():
    """The mean error by row, protocol and side, where evidence adds up."""
    found = pd.read_csv(TRUTH / "errors.csv.gz")
    found = found[found["seed"].isin(CONFIRMING) & (found["rule"] == "additive")]
    found = found[(found["truth"] == "truth") & (found["pairs"] == "all") & (found["over"] == "image")]
    return found.groupby(["row", "protocol", "side"])["error"].mean()


def test_the_readme_gives_the_errors_of_the_stored_tables():
    told = README.read_text(encoding="utf-8").split("<!-- truth -->")[1].split("<!-- end -->")[0]
    known = [ERRORS["pixels"].untouched, ERRORS["pixels"].twin, ERRORS[RECOMMENDED].untouched]
    assert re.findall(r"(\d+) %", told) == [f"{100 * error:.0f}" for error in known] + ["50"]
    assert told.count(".") == 2  # the outcome in two sentences


def test_what_the_readme_recommends_is_the_protocol_that_errs_least():
    least = min(ERRORS, key=lambda name: ERRORS[name].untouched)
    assert least == RECOMMENDED
    assert f"--protocols {least}" in README.read_text(encoding="utf-8")
    assert WHICH.read_text(encoding="utf-8").count(f"--protocols {least} ") >= 2


def test_errors_by_person_are_means_over_the_confirming_seeds(errors):
    people = {
        "cannot change the model": "none",
        "can fine-tune a twin that judges its maps": "judge",
        "train it with FPA from the start": "fpa",
    }
    shown = table(WHICH, "you")
    assert {who for who, _ in shown} == set(people)
    for (who, protocol), cell in shown.items():
        assert float(cell.strip("*")) == pytest.approx(100 * errors[people[who], protocol, "A"], abs=0.051), (
            who,
            protocol,
        )
        assert cell.startswith("**") is (protocol == RECOMMENDED)


def test_both_curves_err_less_than_either_alone(errors):
    sides = {"A, from both": "A", "MIF alone": "MIF", "LIF alone": "LIF"}
    shown = table(WHICH, "curves")
    for (title, protocol), cell in shown.items():
        assert float(cell) == pytest.approx(100 * errors["none", protocol, sides[title]], abs=0.051)
        assert float(cell) >= float(shown["A, from both", protocol])
    least = errors.xs("A", level="side").min()
    assert round(1 / least) == 6  # "errs in one pair of six"


def test_the_page_shows_the_stored_tables(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "research"))
    import which_page

    page = WHICH.read_text(encoding="utf-8")
    emptied = re.sub(r"(<!-- table: [^\n]*-->\n).*?(\n<!-- end)", r"\1\2", page, flags=re.DOTALL)
    assert emptied.count("\n|") == 0
    (tmp_path / "which.md").write_text(emptied, encoding="utf-8")
    arguments = ["which_page.py", "--tables", str(TRUTH), "--page", str(tmp_path / "which.md")]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.chdir(ROOT)
    which_page.main()
    assert (tmp_path / "which.md").read_text(encoding="utf-8") == page


def test_falls_of_the_error_are_read_from_the_claims():
    claims = pd.read_csv(TRUTH / "claims.csv")
    shown = table(WHICH, "rules")
    rules = {
        "evidence adds up": "additive",
        "each of two cues is enough": "redundant",
        "it takes two cues together": "joint",
    }
    for where, rule in rules.items():
        (claim,) = claims[
            (claims["rule"] == rule)
            & (claims["claim"] == "larger or blurred pieces against pixels, judged by itself")
            & (claims["after"] == f"none, {RECOMMENDED}")
        ].to_dict("records")
        cell = shown[where, f"{RECOMMENDED}` in place of `pixels"]
        assert cell.strip("*").startswith(f"{claim['reduction']:.1f} ± {claim['half-width']:.1f}")
        assert cell.startswith("**") is (claim["reading"] == "supported")


PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_of_the_documentation_exist(page):
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in headings(found), target


def headings(page):
    """The anchors that MkDocs and GitHub make of the headings of a page."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", line.lower()).strip()) for line in lines}


def test_what_the_readme_tells_to_type_is_there():
    text = README.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^    make (\w+)", text, flags=re.MULTILINE)
    assert targets == ["run", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert re.findall(r"^    fpa (\w+) MODEL", text, flags=re.MULTILINE) == ["evaluate", "audit", "finetune"]


def test_all_pages_are_in_the_navigation_of_the_site():
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]}
    shown = {page for page in pages if page.count("/") < 2}  # deeper ones are stored beside results
    assert sorted(named) == sorted(shown)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "howto").glob("*.md")), ids=lambda page: page.stem)
def test_every_how_to_begins_with_what_one_types(page):
    title, empty, first, *_ = page.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert empty == ""
    assert re.match(r"    fpa (\w+) \S", first), first
