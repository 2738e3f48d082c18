"""The bytes that a Go controller would write for an object (LWS §5, DS §2.4).

The revisions of a LeaderWorkerSet and of a DisaggregatedSet are hashes over such text, so a set changes hands between
our controllers and the Go ones without a rollout only if every byte is the same. Which fields Go always writes, which
it drops when empty, and in which order they are declared, is in ``shape.json``: facts taken from the Go types of
k8s.io/api and of kubernetes-sigs/lws.

| name | what it does |
| --- | --- |
| `go_struct` | gives parsed JSON the form of a Go struct |
| `go_text` | writes it as Go does |
| `canonical_quantity` | the text of a quantity that Go has read |
"""

from pyreconcile_controllers.gojson._quantity import canonical_quantity
from pyreconcile_controllers.gojson._structs import go_struct, go_text

__all__ = ["canonical_quantity", "go_struct", "go_text"]
