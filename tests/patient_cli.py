"""The command `tidemill` with leases that outlast any pause of the machine; see `tests.leases`.

python -m tests.patient_cli worker --home …
"""

import sys

from tests import leases
from tidemill.cli import main

if __name__ == "__main__":
    leases.lengthen()
    sys.exit(main(sys.argv[1:]))
