"""A pipeline whose alerts go to a file, for tests that kill its processes."""

import os
import sys

import tidemill as tm

WRITE = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
shop = tm.Pipeline(
    "shop",
    home=os.environ["ALERT_HOME"],
    on_stale=tm.command([sys.executable, "-c", WRITE, os.environ["ALERT_FILE"]]),
)
orders = shop.dataset("orders", "id BIGINT", fresh_within=1)
