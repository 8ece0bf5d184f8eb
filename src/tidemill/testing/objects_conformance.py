"""Conformance tests for object storage, for authors of backends.

    class TestMyObjects(ObjectsConformance):
        @pytest.fixture
        def objects(self, objects_url):
            return open_objects(objects_url, clock=SYSTEM)

        @pytest.fixture
        def objects_url(self, my_server):
            return f"my://{my_server.new_bucket()}"

`objects` is an empty root for each test. `objects_url` is the URL with which another process opens it;
without it the tests with several processes are skipped. Set `etags_differ = False` if an etag is a digest of
the body.

Storage over a network also runs `LostAnswerConformance`, with a fixture `lossy`: a proxy in front of a real
server drops requests and responses. The marks `rule` name the rules of docs/rules/store.md.
"""

from tidemill.testing.objects_laws.bodies import BodyLaws
from tidemill.testing.objects_laws.conditions import ConditionLaws
from tidemill.testing.objects_laws.listings import ListingLaws
from tidemill.testing.objects_laws.losses import Lossy, LostAnswerLaws
from tidemill.testing.objects_laws.names import NameLaws
from tidemill.testing.objects_laws.processes import ObjectProcessLaws

__all__ = ["Lossy", "LostAnswerConformance", "ObjectsConformance"]


class ObjectsConformance(BodyLaws, ConditionLaws, ListingLaws, NameLaws, ObjectProcessLaws):
    """Every law of object storage."""


class LostAnswerConformance(LostAnswerLaws):
    """Every law of object storage that loses answers."""
