"""Find the views that make a step fail, by computing the step for fewer views.

Views are ordered so that each comes after the views that it reads, so every prefix of the order can be
computed alone. The last view of the shortest prefix that fails is the cause. A binary search finds it. Then
the search leaves out this view and its readers, and continues with the rest.
"""

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from tidemill.errors import ViewError
from tidemill.views.steps import failed_views
from tidemill.views.steps.groups import GroupSpec

T = TypeVar("T")


class FailureSearch(Generic[T]):
    """The search for one step.

    - spec: the group.
    - aside: the views to leave out. The search adds the views that fail, and their readers.
    - suspects: the views that failed before and are tried again; the search checks the other views first.
    - compute: computes the step without some views. Each call makes the result of the call before invalid.
    - blame: called with each view that fails and its error; raises an error to end the search.
    """

    def __init__(
        self,
        spec: GroupSpec,
        aside: Collection[str],
        suspects: Collection[str],
        compute: Callable[[frozenset[str]], T],
        blame: Callable[[str, ViewError], None],
    ) -> None:
        self._spec = spec
        self.aside = frozenset(aside)
        self._compute = compute
        self._blame = blame
        last = failed_views.readers(spec, suspects)
        names = [view.name for view in spec.views if view.name not in self.aside]
        self._names = sorted(names, key=lambda name: name in last)
        self._middle = sum(name not in last for name in names)
        self._good = 0  # the first `_good` names are computed without an error
        self._results: dict[int, T] = {}  # the last result, by how many of the names it has

    def run(self) -> T:
        """Compute the step for all views that do not fail; return the result."""
        while (result := self._results.get(len(self._names))) is None:
            error = self._try(len(self._names))
            if error is not None:
                self._leave_out_first(error)
        return result

    def _try(self, size: int) -> ViewError | None:
        """Compute the step for the first names; return the error."""
        self._results = {}
        try:
            self._results = {size: self._compute(self._spec.names - set(self._names[:size]))}
        except ViewError as error:
            if error.view is None or not size:
                raise
            return error
        self._good = size
        return None

    def _leave_out_first(self, error: ViewError) -> None:
        """Find the first view that fails. The step fails with this error for all names."""
        bad = len(self._names)
        middle, self._middle = self._middle, 0
        while error.view not in self._names and bad - self._good > 1:
            size = middle if self._good < middle < bad else (self._good + bad) // 2
            failed = self._try(size)
            if failed is not None:
                bad, error = size, failed
            middle = 0
        view = error.view if error.view in self._names else self._names[bad - 1]
        assert view is not None
        self._blame(view, error)
        self.aside |= failed_views.readers(self._spec, [view])
        good = sum(name not in self.aside for name in self._names[: self._good])
        if good != self._good:
            self._good, self._results = good, {}
        self._names = [name for name in self._names if name not in self.aside]
