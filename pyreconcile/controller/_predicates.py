"""Predicates: which events reach a handler. They save work, not memory; use selectors to cache less (SR-11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyreconcile.api import RawObject
from pyreconcile.api.selectors import LabelSelector, label_selector
from pyreconcile.controller._events import CreateEvent, DeleteEvent, GenericEvent, UpdateEvent


class Predicate:
    """Judges events; True lets one pass. Every method of this base passes all.

    Predicates combine with ``&``, ``|`` and ``~``. They run for every event in the event loop: keep them cheap, and
    look at the raw objects rather than the typed ones.
    """

    def create(self, event: CreateEvent[Any]) -> bool:
        """Judge a new object."""
        return True

    def update(self, event: UpdateEvent[Any]) -> bool:
        """Judge a changed object."""
        return True

    def delete(self, event: DeleteEvent[Any]) -> bool:
        """Judge an object that is gone."""
        return True

    def generic(self, event: GenericEvent[Any]) -> bool:
        """Judge an event from outside of the cluster."""
        return True

    def __and__(self, other: Predicate) -> Predicate:
        return and_(self, other)

    def __or__(self, other: Predicate) -> Predicate:
        return or_(self, other)

    def __invert__(self) -> Predicate:
        return not_(self)


class GenerationChanged(Predicate):
    """Passes updates that changed ``metadata.generation``: those of the spec (SR-9).

    Changes of status, labels, annotations and finalizers, and resyncs, are dropped. On kinds that never set a
    generation, such as ConfigMap and Secret, it drops every update, the mark of deletion too.
    """

    def update(self, event: UpdateEvent[Any]) -> bool:
        """Compare the generations."""
        return bool(_metadata(event.old_raw, "generation") != _metadata(event.new_raw, "generation"))


class ResourceVersionChanged(Predicate):
    """Passes updates that changed anything; drops resyncs (SR-9)."""

    def update(self, event: UpdateEvent[Any]) -> bool:
        """Compare the resource versions."""
        return bool(_metadata(event.old_raw, "resourceVersion") != _metadata(event.new_raw, "resourceVersion"))


class LabelChanged(Predicate):
    """Passes updates that changed labels (SR-9)."""

    def update(self, event: UpdateEvent[Any]) -> bool:
        """Compare the labels."""
        return bool((_metadata(event.old_raw, "labels") or {}) != (_metadata(event.new_raw, "labels") or {}))


class AnnotationChanged(Predicate):
    """Passes updates that changed annotations (SR-9)."""

    def update(self, event: UpdateEvent[Any]) -> bool:
        """Compare the annotations."""
        return bool((_metadata(event.old_raw, "annotations") or {}) != (_metadata(event.new_raw, "annotations") or {}))


class PredicateFuncs(Predicate):
    """A predicate made of functions; events without a function pass (SR-10)."""

    def __init__(
        self,
        *,
        create: Callable[[CreateEvent[Any]], bool] | None = None,
        update: Callable[[UpdateEvent[Any]], bool] | None = None,
        delete: Callable[[DeleteEvent[Any]], bool] | None = None,
        generic: Callable[[GenericEvent[Any]], bool] | None = None,
    ) -> None:
        self._create = create
        self._update = update
        self._delete = delete
        self._generic = generic

    def create(self, event: CreateEvent[Any]) -> bool:
        """Ask the function for new objects."""
        return self._create is None or self._create(event)

    def update(self, event: UpdateEvent[Any]) -> bool:
        """Ask the function for changed objects."""
        return self._update is None or self._update(event)

    def delete(self, event: DeleteEvent[Any]) -> bool:
        """Ask the function for objects that are gone."""
        return self._delete is None or self._delete(event)

    def generic(self, event: GenericEvent[Any]) -> bool:
        """Ask the function for events from outside."""
        return self._generic is None or self._generic(event)


class ObjectPredicate(Predicate):
    """Judges the raw object of any event; on update the new one (SR-10)."""

    def __init__(self, matches: Callable[[RawObject], bool]) -> None:
        self._matches = matches

    def create(self, event: CreateEvent[Any]) -> bool:
        """Judge the new object."""
        return self._matches(event.raw)

    def update(self, event: UpdateEvent[Any]) -> bool:
        """Judge the object after the change."""
        return self._matches(event.new_raw)

    def delete(self, event: DeleteEvent[Any]) -> bool:
        """Judge the last state of the object."""
        return self._matches(event.raw)

    def generic(self, event: GenericEvent[Any]) -> bool:
        """Judge the object of the event."""
        return self._matches(event.raw)


class MatchesLabels(ObjectPredicate):
    """Passes objects that a label selector selects.

    It saves passes, not memory: a watch of the whole cluster that has it and no selector logs a warning (SR-11).

    Args:
        selector: as kubectl writes it (``"app=web,tier!=db"``), a mapping of labels, or a `LabelSelector`.

    Raises:
        SelectorError: the text is no label selector.
    """

    def __init__(self, selector: str | dict[str, str] | LabelSelector) -> None:
        self.selector = parsed = label_selector(selector)
        super().__init__(lambda raw: parsed.matches(_metadata(raw, "labels") or {}))


class _And(Predicate):
    def __init__(self, predicates: tuple[Predicate, ...]) -> None:
        self._predicates = predicates

    def create(self, event: CreateEvent[Any]) -> bool:
        return all(predicate.create(event) for predicate in self._predicates)

    def update(self, event: UpdateEvent[Any]) -> bool:
        return all(predicate.update(event) for predicate in self._predicates)

    def delete(self, event: DeleteEvent[Any]) -> bool:
        return all(predicate.delete(event) for predicate in self._predicates)

    def generic(self, event: GenericEvent[Any]) -> bool:
        return all(predicate.generic(event) for predicate in self._predicates)


class _Or(Predicate):
    def __init__(self, predicates: tuple[Predicate, ...]) -> None:
        self._predicates = predicates

    def create(self, event: CreateEvent[Any]) -> bool:
        return any(predicate.create(event) for predicate in self._predicates)

    def update(self, event: UpdateEvent[Any]) -> bool:
        return any(predicate.update(event) for predicate in self._predicates)

    def delete(self, event: DeleteEvent[Any]) -> bool:
        return any(predicate.delete(event) for predicate in self._predicates)

    def generic(self, event: GenericEvent[Any]) -> bool:
        return any(predicate.generic(event) for predicate in self._predicates)


class _Not(Predicate):
    def __init__(self, predicate: Predicate) -> None:
        self._predicate = predicate

    def create(self, event: CreateEvent[Any]) -> bool:
        return not self._predicate.create(event)

    def update(self, event: UpdateEvent[Any]) -> bool:
        return not self._predicate.update(event)

    def delete(self, event: DeleteEvent[Any]) -> bool:
        return not self._predicate.delete(event)

    def generic(self, event: GenericEvent[Any]) -> bool:
        return not self._predicate.generic(event)


def and_(*predicates: Predicate) -> Predicate:
    """Pass what every predicate passes; without predicates, everything."""
    return _And(predicates)


def or_(*predicates: Predicate) -> Predicate:
    """Pass what any predicate passes; without predicates, nothing."""
    return _Or(predicates)


def not_(predicate: Predicate) -> Predicate:
    """Pass what the predicate drops."""
    return _Not(predicate)


def _metadata(raw: RawObject, field: str) -> Any:
    return raw["metadata"].get(field)
