"""Events about objects (``events.k8s.io/v1``), as ``kubectl describe`` shows them.

A manager gives a recorder by ``manager.recorder("component")``.
"""

from pyreconcile.events._recorder import EventBroadcaster, EventRecorder

__all__ = ["EventBroadcaster", "EventRecorder"]
