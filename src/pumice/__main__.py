"""`python -m pumice`."""

from __future__ import annotations

from pumice.cli.main import main

if __name__ == "__main__":
    main()
