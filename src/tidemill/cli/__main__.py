"""`python -m tidemill.cli` is `tidemill`."""

import sys

from tidemill.cli import main

sys.exit(main())
