"""`python -m fpa` is the command `fpa`."""

from fpa.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
