"""`python -m fpa` is the command `fpa`."""

from fpa.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
