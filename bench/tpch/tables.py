"""Generate the tables of TPC-H and steps that change them: orders with their line items come and go.

`tpchgen-cli` generates the tables. The orders of the steps are held back from the base, so new orders have
new keys. All sides read the same Parquet files.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.integration.tpch import DDL
from tidemill.spark import schema

CHANGING = ("orders", "lineitem")
LINES_EACH = 4
"""How many line items an order has on average."""

Keys = npt.NDArray[np.int64]


class Step(NamedTuple):
    """The rows that a step deletes and appends, by table."""

    deleted: dict[str, pa.Table]
    appended: dict[str, pa.Table]


class Tables:
    """The tables of a scale factor, and what they contain after some steps.

    Args:
        folder: an empty folder for the Parquet files of the base.
        scale: the scale factor.
        changes: how many line items a step changes.
        steps: how many steps are needed.
    """

    def __init__(self, folder: Path, scale: float, changes: int, steps: int) -> None:
        self._random = np.random.default_rng(1)
        self._each = changes // 2 // LINES_EACH
        generated = folder / "generated"
        program = Path(sys.executable).with_name("tpchgen-cli")
        command = [str(program), "parquet", "-s", f"{scale:g}", "-o", str(generated)]
        subprocess.run(command, check=True, capture_output=True)
        self.files = {name: folder / name for name in DDL}
        self._rows: dict[str, pa.Table] = {}
        for name, ddl in DDL.items():
            rows = pq.read_table(generated / f"{name}.parquet").cast(schema.to_arrow(schema.parse(ddl)))
            self.files[name].mkdir()
            if name in CHANGING:
                self._rows[name] = rows
            else:
                pq.write_table(rows, self.files[name] / "base.parquet")
        shutil.rmtree(generated)
        keys = self._random.permutation(self._keys("orders"))
        held = steps * self._each
        self._held, self._present = keys[:held], keys[held:]
        self.write(folder)

    def write(self, folder: Path) -> dict[str, Path]:
        """Write the changing tables as they are now below a folder; return the folder of each table."""
        files = dict(self.files)
        for name in CHANGING:
            files[name] = folder / name
            files[name].mkdir(parents=True, exist_ok=True)
            pq.write_table(self._of(name, self._present), files[name] / "base.parquet")
        return files

    def step(self) -> Step:
        """Return the next step, and apply it."""
        gone = self._random.choice(len(self._present), self._each, replace=False)
        new, self._held = self._held[: self._each], self._held[self._each :]
        deleted = {name: self._of(name, self._present[gone]) for name in CHANGING}
        self._present = np.concatenate([np.delete(self._present, gone), new])
        return Step(deleted, {name: self._of(name, new) for name in CHANGING})

    def _keys(self, name: str) -> Keys:
        keys: Keys = self._rows[name].column(0).to_numpy().astype(np.int64)
        return keys

    def _of(self, name: str, orders: Keys) -> pa.Table:
        """Return the rows of these orders."""
        rows = self._rows[name]
        wanted = pa.array(orders).cast(rows.column(0).type)
        return rows.filter(pc.is_in(rows.column(0), wanted))
