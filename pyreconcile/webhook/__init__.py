"""Admission webhooks: an HTTPS server, mutating and validating handlers, certificates, and their registration.

Register handlers at a `WebhookServer` (``manager.webhooks``), describe each with an `AdmissionWebhook`, and `install`
what `webhook_configurations` builds. Conversion webhooks are not served.
"""

from pyreconcile.webhook._errors import Denied, FieldError, FieldErrors
from pyreconcile.webhook._handlers import Defaulter, Handler, Mutator, RawValidator, Validator
from pyreconcile.webhook._install import AdmissionWebhook, install, webhook_configurations
from pyreconcile.webhook._request import AdmissionRequest, admission_review, apply_patch
from pyreconcile.webhook._server import (
    ServiceReference,
    WebhookOptions,
    WebhookServer,
    mutating_path,
    validating_path,
)

__all__ = [
    "AdmissionRequest",
    "AdmissionWebhook",
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
    "admission_review",
    "apply_patch",
    "install",
    "mutating_path",
    "validating_path",
    "webhook_configurations",
]
