"""The examples of the guide to the SDKs: those that need nothing but Python run here, all of them with `make sdks`."""

from __future__ import annotations

from compat_tests.conftest import NodeFactory


def test_first_start_prints_every_variable_that_the_sdks_read(start_node: NodeFactory) -> None:
    exports = start_node("--region", "eu-central-1").exports()

    assert sorted(exports) == [
        "AWS_ACCESS_KEY_ID",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_SECRET_ACCESS_KEY",
    ]
    assert exports["AWS_REGION"] == exports["AWS_DEFAULT_REGION"] == "eu-central-1"
