"""The command `tidemill` with leases and transactions that outlast any pause of the machine.

See `tests.leases` and `tests.patience`.

python -m tests.patient_cli worker --home …
"""

import sys

from tests import leases, patience
from tidemill.cli import main

if __name__ == "__main__":
    leases.lengthen()
    patience.lengthen_transactions()
    sys.exit(main(sys.argv[1:]))
