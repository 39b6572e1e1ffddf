"""Lists what fpa depends on, with versions and licences, and asks for known vulnerabilities; for `make lint`.

    python tools/dependencies.py            # is docs/dependencies.md up to date? are vulnerabilities known?
    python tools/dependencies.py --write    # write docs/dependencies.md

The package registry that pip uses is asked for known vulnerabilities of the installed versions, where it
answers at all; where it does not, that is said and nothing fails.
"""

import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dependencies.md"
HEAD = """# Dependencies

What is installed with fpa, directly or by one of these, and under which licence; the extras timm, captum, hf
and segments only on request. Made by `python tools/dependencies.py --write`; `make lint` compares the names.

| package | needed by | licence |
|---|---|---|
"""


def name_of(requirement: str) -> str:
    """The name of a package, spelled as registries do."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()  # type: ignore[index]


def needed() -> dict[str, set[str]]:
    """Every package that is installed with fpa, and those that need it; those of extras are marked so."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, set[str]] = {}
    waiting = [(name_of(each), "fpa") for each in project["dependencies"]]
    for extra in ("timm", "captum", "hf", "segments"):
        waiting += [(name_of(each), f"fpa[{extra}]") for each in project["optional-dependencies"][extra]]
    while waiting:
        name, by = waiting.pop()
        known = name in found
        found.setdefault(name, set()).add(by)
        if not known:
            try:
                inner = metadata.requires(name) or []
            except metadata.PackageNotFoundError:
                inner = []
            waiting += [(name_of(each), name) for each in inner if ";" not in each]
    return found


def licence(name: str) -> str:
    """What a package says of its licence, in one line."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "not installed here"
    classified = [
        each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or [] if "License ::" in each
    ]
    stated = (about.get("License") or "").strip().splitlines()
    return (
        about.get("License-Expression") or ", ".join(classified) or (stated[0][:60] if stated else "unknown")
    )


def table(packages: dict[str, set[str]]) -> str:
    """The page."""
    rows = (
        f"| {name} | {', '.join(sorted(by)[:3])} | {licence(name)} |" for name, by in sorted(packages.items())
    )
    return HEAD + "\n".join(rows) + "\n"


def registry() -> str | None:
    """The address of the registry that pip uses, if it is on the network."""
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    address = configured or "https://pypi.org/simple"
    return address.rstrip("/").removesuffix("/simple") if address.startswith("http") else None


def vulnerabilities(names: list[str]) -> list[str] | None:
    """Known ones of the installed versions; None where the registry does not say."""
    address, found = registry(), list[str]()
    for name in names:
        try:
            version = metadata.version(name).partition("+")[0]
            with urllib.request.urlopen(f"{address}/pypi/{name}/{version}/json", timeout=5) as answer:
                entries = json.load(answer)["vulnerabilities"]
        except metadata.PackageNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError):
            return None
        found += [f"{name} {version}: {each['id']} {each.get('summary') or ''}" for each in entries]
    return found


def main() -> int:
    """The exit code is 1 if the page lacks a direct dependency or a vulnerability is known."""
    packages = needed()
    if "--write" in sys.argv:
        PAGE.write_text(table(packages), encoding="utf-8")
    listed = set(re.findall(r"^\| ([\w.-]+) \|", PAGE.read_text(encoding="utf-8"), re.M))
    direct = {name for name, by in packages.items() if any(each.startswith("fpa") for each in by)}
    wrong = [
        f"docs/dependencies.md lacks {name}: run tools/dependencies.py --write" for name in direct - listed
    ]
    known = vulnerabilities(sorted(direct))
    said = (
        "not audited for vulnerabilities: the registry does not say"
        if known is None
        else "no known vulnerability"
    )
    wrong += known or []
    print(
        *wrong,
        f"{len(packages)} dependencies; {f'{len(known)} vulnerabilities' if known else said}",
        sep="\n",
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
