"""Selectors as query text."""

import pytest

from pyreconcile.client import field_selector, label_selector


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (None, ""),
        ({}, ""),
        ("a in (b,c),!d", "a in (b,c),!d"),
        ({"a": "b", "c": ""}, "a=b,c="),
        ({"a": ["b", "c"]}, "a in (b,c)"),
    ],
)
def test_cl_8_label_selectors(labels, text):
    assert label_selector(labels) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (None, ""),
        ("spec.nodeName!=a", "spec.nodeName!=a"),
        ({"metadata.name": "x", "status.phase": "Running"}, "metadata.name=x,status.phase=Running"),
        ({"involvedObject.fieldPath": "a=b,c\\d"}, "involvedObject.fieldPath=a\\=b\\,c\\\\d"),
    ],
)
def test_cl_8_field_selectors(fields, text):
    assert field_selector(fields) == text
