"""`python -m quarl_nb.cli`, the same as `quarl-nb`."""

from __future__ import annotations

import sys

from quarl_nb.cli import main

if __name__ == "__main__":
    sys.exit(main())
