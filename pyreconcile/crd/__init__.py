"""Custom resource definitions from models: schema, defaults, CEL rules, columns, sub-resources, versions."""

from pyreconcile.crd._crd import crd_for, crd_yaml
from pyreconcile.crd._extras import cel, combine, list_type, map_type, nullable, preserve_unknown_fields
from pyreconcile.crd._install import CRDNotServedError, install_crds, wait_until_served
from pyreconcile.crd._schema import SchemaError

__all__ = [
    "CRDNotServedError",
    "SchemaError",
    "cel",
    "combine",
    "crd_for",
    "crd_yaml",
    "install_crds",
    "list_type",
    "map_type",
    "nullable",
    "preserve_unknown_fields",
    "wait_until_served",
]
