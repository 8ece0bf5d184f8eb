"""Test lost responses, for storage over a network: a PUT that timed out may have taken effect."""

from typing import NamedTuple

import pytest

from tidemill.errors import ObjectConflict, ObjectUnavailable
from tidemill.objects import Objects, Put
from tidemill.testing.lossy_proxy import Loss, LossyProxy
from tidemill.testing.objects_laws.laws import nonce


class Lossy(NamedTuple):
    """One storage three times: through a proxy that loses things, patiently or not, and directly."""

    through: Objects
    impatient: Objects
    direct: Objects
    proxy: LossyProxy


class LostAnswerLaws:
    """Needs a fixture `lossy`. A request of `impatient` gives up after a few seconds without an answer."""

    @pytest.fixture
    def lossy(self) -> Lossy:
        """Overridden by each backend."""
        raise pytest.UsageError(f"{type(self).__name__} has no fixture `lossy`")

    @pytest.mark.rule("STO-12")
    @pytest.mark.parametrize("loss", ["answer", "silence"])
    def test_a_create_whose_answer_is_lost_is_mine(self, lossy: Lossy, loss: Loss) -> None:
        mark = nonce()
        lossy.proxy.lose(loss, b"PUT ")
        objects = lossy.impatient if loss == "silence" else lossy.through
        assert objects.put_if_absent("k", mark, mark) is Put.MINE
        assert lossy.proxy.pending == 0
        assert lossy.direct.get("k")[0] == mark

    @pytest.mark.rule("STO-12")
    def test_a_create_that_never_arrived_is_made(self, lossy: Lossy) -> None:
        mark = nonce()
        lossy.proxy.lose("request", b"PUT ")
        assert lossy.through.put_if_absent("k", mark, mark) is Put.CREATED
        assert lossy.proxy.pending == 0

    @pytest.mark.rule("STO-12")
    def test_a_create_that_somebody_else_won_is_other_for_all_losses(self, lossy: Lossy) -> None:
        theirs, ours = nonce(), nonce()
        lossy.direct.put_if_absent("k", theirs, theirs)
        lossy.proxy.lose("answer", b"PUT ", times=2)
        assert lossy.through.put_if_absent("k", ours, ours) is Put.OTHER
        assert lossy.proxy.pending == 0
        assert lossy.direct.get("k")[0] == theirs

    @pytest.mark.rule("STO-12")
    def test_a_caller_that_gave_up_learns_by_repeating(self, lossy: Lossy) -> None:
        mark = nonce()
        lossy.proxy.lose("answer", b"PUT ", times=100)
        with pytest.raises(ObjectUnavailable):
            lossy.through.put_if_absent("k", mark, mark)
        lossy.proxy.lose("answer", b"PUT ", times=0)
        assert lossy.through.put_if_absent("k", mark, mark) is Put.MINE

    @pytest.mark.rule("STO-12")
    def test_a_replacement_whose_answer_is_lost_has_happened(self, lossy: Lossy) -> None:
        first = lossy.direct.put("k", nonce())
        mark = nonce()
        lossy.proxy.lose("answer", b"PUT ")
        info = lossy.through.put_if_match("k", mark, first.etag)
        assert lossy.proxy.pending == 0
        assert lossy.direct.get("k")[0] == mark
        assert lossy.direct.head("k").etag == info.etag
        with pytest.raises(ObjectConflict):
            lossy.through.put_if_match("k", nonce(), first.etag)

    def test_reads_and_listings_go_on_after_a_loss(self, lossy: Lossy) -> None:
        for number in range(20):
            lossy.direct.put(f"k/{number:02d}", b"%d" % number)
        lossy.proxy.lose("answer", b"GET ", times=2)
        assert [info.key for info in lossy.through.list("k/")] == [f"k/{number:02d}" for number in range(20)]
        lossy.proxy.lose("answer", b"GET ", times=2)
        assert lossy.through.get("k/07")[0] == b"7"
        lossy.proxy.lose("answer", b"GET ")
        assert lossy.through.get_ranges("k/11", [(0, 1), (900_000, 1)]) == [b"1", b""]
        lossy.proxy.lose("answer", b"HEAD ")
        assert lossy.through.head("k/11").size == 2
        lossy.proxy.lose("answer", b"DELETE ")
        lossy.through.delete("k/11")
        lossy.proxy.lose("answer", b"POST ")
        lossy.through.delete_many(["k/12", "k/13"])
        assert lossy.proxy.pending == 0
        assert [info.key for info in lossy.direct.list("k/", after="k/10", limit=1)] == ["k/14"]
