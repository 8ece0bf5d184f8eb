"""A task that finds hundreds of its inputs gone with one node."""

import pytest

from tests.unit.futures_stage import Stage
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.rows import Blocked, Realized, Unclaimed
from tidemill.futures.protocol.submit import MOST_INPUTS
from tidemill.futures.worker.jobs import FutureJob
from tidemill.futures.worker.ledger import Ledger
from tidemill.futures.worker.wire import Loss
from tidemill.store import LIMITS


@pytest.mark.rule("FUT-45", "FUT-51")
def test_hundreds_of_inputs_lost_with_one_node_are_reported_in_transactions_that_fit() -> None:
    stage = Stage(scan=False)
    holder, worker = stage.worker("holder"), stage.worker("w")
    data = [stage.submit() for _ in range(MOST_INPUTS)]
    while claimed := stage.claim(holder):
        stage.realize_fast(holder, *claimed, kind="segment")
    use = stage.submit(*data)
    spec = stage.spec_of(use)
    job = FutureJob(stage.claim_one(worker, use), spec, rows.encode(spec), spec.needs, (), b"")
    stage.kill(holder, alive=[worker])
    stage.writes.clear()
    data_rows = {future_id: stage.row(future_id) for future_id in data}
    versions = {key: row.result.version for key, row in data_rows.items() if isinstance(row, Realized)}
    ledger = Ledger(stage.store, "c", worker.id, stage.chance)
    losses = [Loss(key, version, "holder", unreachable=False) for key, version in versions.items()]
    ledger.block(job, data, losses)
    while ledger.pending:
        ledger.write_pending(worker)
    assert max(stage.writes) < LIMITS.transaction_writes
    assert stage.row(use) == Blocked(tally=stage.row(use).tally, waits_on=MOST_INPUTS)
    assert all(isinstance(stage.row(future_id), Unclaimed) for future_id in data)
    stage.check()
