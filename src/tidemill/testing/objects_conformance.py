"""The contract of the port of object storage as a test class: whoever writes a backend runs it.

    class TestMyObjects(ObjectsConformance):
        @pytest.fixture
        def objects(self, objects_url):
            return open_objects(objects_url, clock=SYSTEM)

        @pytest.fixture
        def objects_url(self, my_server):
            return f"my://{my_server.new_bucket()}"

`objects` is a fresh, empty root for each test. `objects_url` is how another process opens it; without it the
laws among processes are skipped. `etags_differ = False` where an etag is a digest of the body.

Storage behind a network also runs `LostAnswerConformance`, with a fixture `lossy`: it loses requests and
answers by a proxy in front of a real server. The marks `rule` name the rules of docs/rules/store.md.
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
