"""Controllers: watch kinds, queue what changed, reconcile it; and helpers for reconcilers.

Start with `Builder` and `Reconciler`; ``docs/controllers.md`` shows how.
"""

from pyreconcile.api.owners import (
    AlreadyOwnedError,
    OwnerError,
    controller_of,
    has_owner_reference,
    remove_owner_reference,
    set_controller_reference,
    set_owner_reference,
)
from pyreconcile.client import semantic_equal
from pyreconcile.controller._builder import Builder, Host
from pyreconcile.controller._conditions import (
    find_condition,
    is_condition_false,
    is_condition_true,
    remove_condition,
    set_condition,
)
from pyreconcile.controller._controller import Controller, ControllerMetrics, current_reconcile_id
from pyreconcile.controller._events import CreateEvent, DeleteEvent, GenericEvent, UpdateEvent
from pyreconcile.controller._finalizers import (
    Finalized,
    Finalizers,
    add_finalizer,
    ensure_finalizer,
    has_finalizer,
    release_finalizer,
    remove_finalizer,
)
from pyreconcile.controller._handlers import (
    EnqueueMapped,
    EnqueueObject,
    EnqueueOwner,
    Handler,
    HandlerFuncs,
    MapFunction,
    RequestQueue,
)
from pyreconcile.controller._mapped import MappedSource
from pyreconcile.controller._names import PROCESS_NAMES, ControllerNames
from pyreconcile.controller._options import ControllerOptions
from pyreconcile.controller._predicates import (
    AnnotationChanged,
    GenerationChanged,
    LabelChanged,
    MatchesLabels,
    ObjectPredicate,
    Predicate,
    PredicateFuncs,
    ResourceVersionChanged,
    and_,
    not_,
    or_,
)
from pyreconcile.controller._reconciler import BoundReconciler, ObjectReconciler, Reconciler, Recorder, SyncReconciler
from pyreconcile.controller._sources import ChannelSource, FunctionSource, InformerSource, KindSource, Source
from pyreconcile.controller._threads import ReconcileFunction, SyncReconcileFunction, run_in_loop
from pyreconcile.controller._types import (
    EXPECTED_ERRORS,
    ReconcileError,
    ReconcileTimeoutError,
    Request,
    Result,
    TerminalError,
)
from pyreconcile.controller._writes import OperationResult, create_or_patch, create_or_update

__all__ = [
    "EXPECTED_ERRORS",
    "PROCESS_NAMES",
    "AlreadyOwnedError",
    "AnnotationChanged",
    "BoundReconciler",
    "Builder",
    "ChannelSource",
    "Controller",
    "ControllerMetrics",
    "ControllerNames",
    "ControllerOptions",
    "CreateEvent",
    "DeleteEvent",
    "EnqueueMapped",
    "EnqueueObject",
    "EnqueueOwner",
    "Finalized",
    "Finalizers",
    "FunctionSource",
    "GenerationChanged",
    "GenericEvent",
    "Handler",
    "HandlerFuncs",
    "Host",
    "InformerSource",
    "KindSource",
    "LabelChanged",
    "MapFunction",
    "MappedSource",
    "MatchesLabels",
    "ObjectPredicate",
    "ObjectReconciler",
    "OperationResult",
    "OwnerError",
    "Predicate",
    "PredicateFuncs",
    "ReconcileError",
    "ReconcileFunction",
    "ReconcileTimeoutError",
    "Reconciler",
    "Recorder",
    "Request",
    "RequestQueue",
    "ResourceVersionChanged",
    "Result",
    "Source",
    "SyncReconcileFunction",
    "SyncReconciler",
    "TerminalError",
    "UpdateEvent",
    "add_finalizer",
    "and_",
    "controller_of",
    "create_or_patch",
    "create_or_update",
    "current_reconcile_id",
    "ensure_finalizer",
    "find_condition",
    "has_finalizer",
    "has_owner_reference",
    "is_condition_false",
    "is_condition_true",
    "not_",
    "or_",
    "release_finalizer",
    "remove_condition",
    "remove_finalizer",
    "remove_owner_reference",
    "run_in_loop",
    "semantic_equal",
    "set_condition",
    "set_controller_reference",
    "set_owner_reference",
]
