"""Events about objects, as ``kubectl describe`` shows them: ``events.k8s.io/v1``, or the older ones of core.

A manager gives a recorder by ``manager.recorder("component")``.
"""

from pyreconcile.events._broadcaster import EventBroadcaster
from pyreconcile.events._recorder import EventRecorder, EventsApi

__all__ = ["EventBroadcaster", "EventRecorder", "EventsApi"]
