"""The OpenAPI document of the API, from the classes of its parameters and answers."""

from functools import cache
from typing import Any

import msgspec

from tidemill import __version__
from tidemill.ui.model import answers
from tidemill.ui.operations import OPERATIONS, Operation

_REF = "#/components/schemas/{name}"


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    types = [operation.answer for operation in OPERATIONS]
    types += [answers.Action, answers.ActionResult, answers.ErrorAnswer]
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    paths = {f"/api/v1/{operation.path}": {"get": _operation(operation)} for operation in OPERATIONS}
    paths["/api/v1/actions"] = {"post": _action()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemill",
            "version": __version__,
            "description": "Read the state of a cluster, and act on it with a token.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    return {
        "operationId": operation.path,
        "summary": operation.summary,
        "parameters": _parameters(operation.parameters),
        "responses": {"200": _json(operation.answer, operation.summary), **_errors()},
    }


def _parameters(kind: type[Any]) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(kind)
    (fields,) = (value for value in schema["$defs"].values())
    return [
        {"name": name, "in": "query", "required": name in fields.get("required", ()), "schema": field}
        for name, field in fields["properties"].items()
    ]


def _action() -> dict[str, Any]:
    return {
        "operationId": "act",
        "summary": "Retry, pause, resume, backfill, replay, or handle quarantined records",
        "security": [{"token": []}],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _REF.format(name="Action")}}},
        },
        "responses": {"200": _json(answers.ActionResult, "What the action did"), **_errors()},
    }


def _errors() -> dict[str, Any]:
    return {"default": _json(answers.ErrorAnswer, "An error, with a hint")}


def _json(kind: type[Any], description: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=kind.__name__)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
