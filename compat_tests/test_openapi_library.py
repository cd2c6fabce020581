"""The OpenAPI document that a service serves, read by a library of its specification."""

from __future__ import annotations

import json
import urllib.request

from openapi_spec_validator import OpenAPIV31SpecValidator


def test_the_document_of_the_admin_api_is_valid_openapi(endpoint: str) -> None:
    with urllib.request.urlopen(f"{endpoint}/_holdfast/api/openapi.json", timeout=60) as answer:
        document = json.load(answer)

    OpenAPIV31SpecValidator(document).validate()
    assert document["paths"].keys() >= {"/_holdfast/api/queues", "/_holdfast/metrics", "/healthz"}
