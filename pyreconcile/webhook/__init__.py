"""Admission webhooks: an HTTPS server, mutating and validating handlers, certificates, and their registration.

Register handlers at a `WebhookServer` (``manager.webhooks``), describe each with an `AdmissionWebhook`, and `install`
what `webhook_configurations` builds. Conversion webhooks are not served.
"""

from pyreconcile.webhook._errors import Denied, FieldError, FieldErrors
from pyreconcile.webhook._handlers import Defaulter, Handler, Mutator, RawValidator, Validator
from pyreconcile.webhook._request import AdmissionRequest
from pyreconcile.webhook._server import (
    ServiceReference,
    WebhookOptions,
    WebhookServer,
    mutating_path,
    validating_path,
)

__all__ = [
    "AdmissionRequest",
    "Defaulter",
    "Denied",
    "FieldError",
    "FieldErrors",
    "Handler",
    "Mutator",
    "RawValidator",
    "ServiceReference",
    "Validator",
    "WebhookOptions",
    "WebhookServer",
    "mutating_path",
    "validating_path",
]
