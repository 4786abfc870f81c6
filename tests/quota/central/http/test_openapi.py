"""The API does what its document says: driven by schemathesis, which reads nothing but that."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from sluicegate.quota import Entry
from sluicegate.quota.central.http.openapi import document
from tests.harness.central_without_sockets import Connected, SocketlessCentral

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]


def _central() -> SocketlessCentral:
    central = SocketlessCentral([Entry("front", "*", rates={"requests": 10.0, "reads": 5.0})])
    central.connected = [Connected("node-1", quota_sent=central.now()), Connected("node-2")]
    for _ in range(3):
        central.slot(
            {
                ("node-1", "front", "ann", "requests"): (8.0, 0),
                ("node-2", "front", "ann", "free"): (8.0, 2),
                ("node-3", "front", "bob", "reads"): (0.0, 2),
            }
        )
    return central


schema = schemathesis.openapi.from_asgi("/api/openapi.json", _central().app)


@schema.parametrize()
@settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_the_document_says(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [
        operation["operationId"]
        for path in document("1")["paths"].values()
        for operation in path.values()
    ]
    assert len(names) == len(set(names)) == 10
