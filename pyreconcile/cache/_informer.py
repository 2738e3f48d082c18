"""Keeps a store equal to the server and tells handlers what changed (rules IN-2 to IN-15)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.cache._consistency import PendingWrites
from pyreconcile.cache._options import Scope
from pyreconcile.cache._reflector import Reflector
from pyreconcile.cache._registration import NOTHING, Call, Change, EventHandler, InformerStoppedError, Registration
from pyreconcile.cache._sharing import FieldSets
from pyreconcile.cache._store import IndexFunction, Store, key_of
from pyreconcile.cache._watching import Sink

T = TypeVar("T", bound=KubeObject)

SLICE = 200
"""Objects of a full list that are stored and passed on before other tasks get their turn (rule RF-17)."""

log = structlog.get_logger()

MakeReflector = Callable[[Scope, Sink], Reflector]
"""Makes the reflector of one scope."""


class Informer(Generic[T]):
    """One kind's store and handlers. Get it from `Cache.informer`.

    Since everything happens on one event loop, a change goes into the store and into the handlers' buffers in one
    step. The queue of deltas that client-go has between reflector and store is not needed; what was only queued there
    is in the store here (rule IN-3).

    Attributes:
        kind: the model class that typed reads use.
        store: the objects, as parsed JSON; read only.
        handlers_removed: how often a handler was removed.
    """

    def __init__(
        self,
        kind: type[T],
        scopes: Sequence[Scope],
        make_reflector: MakeReflector,
        *,
        resync: Callable[[], float] = lambda: 0.0,
        field_sets: FieldSets | None = None,
        on_unused: Callable[[], None] = lambda: None,
    ) -> None:
        self.kind = kind
        self.store = Store()
        self.handlers_removed = 0
        self._resync = resync
        self._on_unused = on_unused
        self._registrations: list[Registration] = []
        self._make_reflector = make_reflector
        self._share = (field_sets or FieldSets()).share
        self._parts: tuple[Part, ...] = ()
        self._everything: Part | None = None
        self._settled = anyio.Event()
        self._synced = False
        self._stopped = False
        self._ran = False
        self._tasks: anyio.abc.TaskGroup | None = None
        for scope in scopes:
            self.add_scope(scope)

    @property
    def has_synced(self) -> bool:
        """Whether the first list of every namespace is in the store (rule IN-4)."""
        return self._synced

    @property
    def last_resource_version(self) -> str:
        """The version of the last event or bookmark; with several namespaces, of the one that is furthest behind."""
        return min((part.version for part in self._parts), key=lambda version: (len(version), version))

    @property
    def reflectors(self) -> tuple[Reflector, ...]:
        """The list-and-watches, one for each namespace, for diagnosis."""
        return tuple(part.reflector for part in self._parts)

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """The handlers' places, for diagnosis."""
        return tuple(self._registrations)

    @property
    def stopped(self) -> bool:
        """Whether the informer has ended."""
        return self._stopped

    @property
    def last_error(self) -> Exception | None:
        """The last error of a list or watch, None when there never was one."""
        return next((reflector.last_error for reflector in self.reflectors if reflector.last_error), None)

    async def wait_synced(self) -> None:
        """Wait for `has_synced`; bound it with ``anyio.fail_after``.

        Raises:
            InformerStoppedError: the informer stopped before that.
        """
        await self._settled.wait()
        if not self._synced:
            raise InformerStoppedError(f"informer of {self.kind.__name__} stopped before its first list")

    def add_handler(self, handler: EventHandler, *, resync: float | None = None, name: str = "") -> Registration:
        """Tell a handler of every change from now on, after one add for each object that is stored already.

        Args:
            handler: called from its own buffer; what it raises is logged and counted (rule IN-12).
            resync: seconds between updates that repeat every stored object, 0 for none. Given here, the handler also
                hears of objects that a new list shows unchanged (rule IN-14). The default is the cache's period.
                Less than a second counts as one (rule IN-13).
            name: names the handler in logs; by default its class.

        Raises:
            InformerStoppedError: the informer has stopped.
        """
        if self._stopped:
            raise InformerStoppedError(f"informer of {self.kind.__name__} has stopped: add handlers before that")
        period = self._resync() if resync is None else resync
        registration = Registration(
            handler,
            name=name or type(handler).__name__,
            resync=max(period, 1.0) if period > 0 else 0.0,
            wants_unchanged=bool(resync),
            snapshot=self.store.snapshot,
            forget=self._forget,
        )
        if len(self.store):
            registration.push_initial(self.store.snapshot())
        if self._synced:
            registration.push("synced", NOTHING, NOTHING)
        self._registrations.append(registration)
        if self._tasks is not None:
            self._start(self._tasks, registration)
        return registration

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Index the stored and all later objects (rule IN-15).

        Raises:
            ValueError: the name is taken by another function.
        """
        self.store.add_index(name, function)

    def part_for(self, namespace: str) -> Part | None:
        """Return the list-and-watch that covers a namespace, or None. For the cache alone."""
        if self._everything is not None:
            return self._everything
        return next((part for part in self._parts if part.scope.covers(namespace)), None)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The list-and-watches' state. For the cache alone."""
        return self._parts

    def add_scope(self, scope: Scope) -> Part:
        """Watch one more namespace from now on. For the cache alone."""
        part = Part(scope, self, self._share, self._make_reflector)
        self._parts = (*self._parts, part)
        self._everything = part if len(self._parts) == 1 and not scope.namespace else None
        if self._tasks is not None:
            self._start_part(self._tasks, part)
        return part

    async def drop_scope(self, part: Part) -> None:
        """Watch a namespace no longer; handlers are told that its objects vanished. For the cache alone."""
        self._parts = tuple(other for other in self._parts if other is not part)
        part.drop()
        if self._tasks is not None:
            await part.ended.wait()
        calls: list[Call] = [("vanished", obj, NOTHING) for obj in self.store.snapshot(part.scope.covers)]
        self.store.replacement(part.scope.covers).commit()
        self.tell_all(calls)
        part.pending.clear()
        self.part_synced()

    async def run(self) -> None:
        """List, watch and deliver until cancelled or stopped; the streams are closed at once then.

        A second run does nothing but log a warning (rule IN-15).
        """
        if self._ran:
            log.warning("informer_runs_already", kind=self.kind.resource.group_kind)
            return
        self._ran = True
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for registration in self._registrations:
                    self._start(tasks, registration)
                for part in self._parts:
                    self._start_part(tasks, part)
                if self._stopped:
                    tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            self.stop()

    def stop(self) -> None:
        """End the informer; waiters and later handlers get an InformerStoppedError."""
        self._stopped = True
        self._settled.set()
        for registration in self._registrations:
            registration.close()
        for part in self._parts:
            part.pending.clear()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def tell(self, change: Change, old: RawObject, new: RawObject) -> None:
        """Pass a change on to all handlers. For the parts alone."""
        for registration in self._registrations:
            registration.push(change, old, new)

    def tell_unchanged(self, obj: RawObject) -> None:
        """Pass on that the server shows an object again, unchanged (rule IN-14). For the parts alone."""
        for registration in self._registrations:
            if registration.wants_unchanged:
                registration.push("update", obj, obj)

    def tell_all(self, calls: Sequence[Call]) -> None:
        """Pass on what a full list changes, in one step. For the parts alone."""
        if calls:
            for registration in self._registrations:
                registration.push_all(calls)

    def part_synced(self) -> None:
        """Note that one more first list is in the store. For the parts alone."""
        if not self._synced and not self._stopped and all(part.synced for part in self._parts):
            self._synced = True
            self._settled.set()
            self.tell("synced", NOTHING, NOTHING)

    def _forget(self, registration: Registration) -> None:
        self._registrations.remove(registration)
        self.handlers_removed += 1
        if not self._registrations and not self._stopped:
            self._on_unused()

    def _start_part(self, tasks: anyio.abc.TaskGroup, part: Part) -> None:
        where = f" in {part.scope.namespace}" if part.scope.namespace else ""
        tasks.start_soon(part.run, name=f"reflector {self.kind.resource.group_kind}{where}")

    def _start(self, tasks: anyio.abc.TaskGroup, registration: Registration) -> None:
        name = f"handler {registration.name} of {self.kind.resource.group_kind}"
        tasks.start_soon(registration.deliver, name=name)
        if registration.resync:
            tasks.start_soon(registration.deliver_resyncs, name=f"resync of {name}")


class Part(Sink):
    """One list-and-watch of an informer, and what it has brought into the store."""

    def __init__(
        self,
        scope: Scope,
        informer: Informer[Any],
        share: Callable[[RawObject], None],
        make_reflector: MakeReflector,
    ) -> None:
        self.kind = informer.kind.resource.group_kind
        self.scope = scope
        self.version = ""
        self.synced = False
        self.settled = anyio.Event()
        self.pending = PendingWrites(self.stored_uid)
        self.reflector = make_reflector(scope, self)
        self.ended = anyio.Event()
        self._run_scope: anyio.CancelScope | None = None
        self._dropped = False
        self._informer = informer
        self._store = informer.store
        self._share = share

    async def run(self) -> None:
        """List and watch until cancelled, or until the part is dropped."""
        try:
            if not self._dropped:
                with anyio.CancelScope() as self._run_scope:
                    await self.reflector.run()
        finally:
            self.ended.set()

    def drop(self) -> None:
        """End the list-and-watch; ``ended`` is set when it has."""
        self._dropped = True
        if self._run_scope is not None:
            self._run_scope.cancel()

    def prepare(self, obj: RawObject) -> RawObject:
        """Make an object ready to be stored, as soon as it is parsed (rule IN-6)."""
        if self.scope.transform is not None:
            obj = self.scope.transform(obj)
        self._share(obj)
        return obj

    async def replace(self, objects: Mapping[str, RawObject], version: str) -> None:
        """Make the store equal to a list, in one step; it tells first what vanished, then the rest (rule IN-2)."""
        store = self._store
        coming = store.replacement(self.scope.covers)
        calls: list[Call] = []
        gone: list[tuple[str, str]] = []
        done = 0
        for old in store.snapshot(self.scope.covers):
            if key_of(old) not in objects:
                calls.append(("vanished", old, NOTHING))
                gone.append((key_of(old), old["metadata"].get("uid", "")))
            done += 1
            if done % SLICE == 0:
                await anyio.lowlevel.checkpoint()
        for key, obj in objects.items():
            stored = store.get(key)
            if stored is None:
                calls.append(("add" if self.synced else "initial", NOTHING, obj))
            elif _same_version(stored, obj):
                obj = stored
                calls.append(("unchanged", obj, obj))
            else:
                calls.append(("update", stored, obj))
                if stored["metadata"].get("uid") != obj["metadata"].get("uid"):
                    gone.append((key, stored["metadata"].get("uid", "")))
            coming.put(key, obj)
            done += 1
            if done % SLICE == 0:
                await anyio.lowlevel.checkpoint()
        coming.commit()
        self._informer.tell_all(calls)
        if self.pending:
            for key, uid in gone:
                self.pending.gone(key, uid)
        self.progressed(version)
        self.pending.replaced()
        if not self.synced:
            self.synced = True
            self.settled.set()
            self._informer.part_synced()

    def apply(self, change: str, obj: RawObject) -> None:
        """Take one change from the watch."""
        key = key_of(obj)
        if change != "DELETED":
            self._put(key, obj)
            return
        old = self._store.delete(key)
        if old is not None:
            # IN-7: the handlers get the object as the delete shows it, with the delete's own version.
            self._informer.tell("delete", obj, NOTHING)
        if self.pending:
            self.pending.gone(key, obj["metadata"].get("uid", ""))

    def progressed(self, version: str) -> None:
        """Note how far the watch has come, and let readers go that waited for that."""
        self.version = version
        if self.pending:
            self.pending.reached(version)

    def stored_uid(self, key: str) -> str:
        """Return the UID of the stored object of a key, empty for none."""
        stored = self._store.get(key)
        return stored["metadata"].get("uid", "") if stored is not None else ""

    def _put(self, key: str, obj: RawObject) -> None:
        informer = self._informer
        old = self._store.get(key)
        if old is None:
            self._store.put(key, obj)
            informer.tell("add", NOTHING, obj)
            return
        if _same_version(old, obj):
            informer.tell_unchanged(old)
            return
        self._store.put(key, obj)
        informer.tell("update", old, obj)
        if self.pending and old["metadata"].get("uid") != obj["metadata"].get("uid"):
            self.pending.gone(key, old["metadata"].get("uid", ""))


def _same_version(old: RawObject, new: RawObject) -> bool:
    version = new["metadata"].get("resourceVersion")
    return bool(version) and version == old["metadata"].get("resourceVersion")
