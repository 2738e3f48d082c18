"""Webhooks: an HTTPS server for admission and conversion, its certificates, and its registration.

Register handlers at a `WebhookServer` (``manager.webhooks``), describe each with an `AdmissionWebhook`, and `install`
what `webhook_configurations` builds. `Conversions` say how versions of a kind become one another. An `AdmissionPolicy`
needs no server: it is CEL.
"""

from pyreconcile.webhook._conversion import ConversionError, Conversions, PartialConversionError
from pyreconcile.webhook._errors import Denied, FieldError, FieldErrors
from pyreconcile.webhook._handlers import Defaulter, Handler, Mutator, RawValidator, Validator
from pyreconcile.webhook._install import (
    AdmissionWebhook,
    BundleInjector,
    client_config,
    conversion_config,
    install,
    install_conversion,
    webhook_configurations,
)
from pyreconcile.webhook._options import ServiceReference, WebhookOptions, mutating_path, validating_path
from pyreconcile.webhook._policy import AdmissionPolicy
from pyreconcile.webhook._request import AdmissionRequest, admission_review, apply_patch
from pyreconcile.webhook._server import WebhookServer

__all__ = [
    "AdmissionPolicy",
    "AdmissionRequest",
    "AdmissionWebhook",
    "BundleInjector",
    "ConversionError",
    "Conversions",
    "Defaulter",
    "Denied",
    "FieldError",
    "FieldErrors",
    "Handler",
    "Mutator",
    "PartialConversionError",
    "RawValidator",
    "ServiceReference",
    "Validator",
    "WebhookOptions",
    "WebhookServer",
    "admission_review",
    "apply_patch",
    "client_config",
    "conversion_config",
    "install",
    "install_conversion",
    "mutating_path",
    "validating_path",
    "webhook_configurations",
]
