"""`python -m fastjax`."""

import sys

from fastjax.cli import main

if __name__ == "__main__":
    sys.exit(main())
