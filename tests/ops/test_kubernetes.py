"""Manifests for Kubernetes and KEDA: they fit the schemas, fit each other, and what they ask works.

No cluster runs here: what a cluster does with them is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import psycopg
import pytest
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from calling import ask, fetch
from deploying import OPS, documents, manifests, parse, pods, seconds
from trunq import Client

VERSION = "1.31"
"""Of Kubernetes; the oldest that these manifests are for."""

FOLDER = OPS / "kubernetes"
KEDA = sorted((OPS / "keda").glob("*.yml"))
PORT = 8080


class Strict(BaseModel):
    """Nothing else is there."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Named(Strict):
    name: str


class Target(Named):
    apiVersion: str = "apps/v1"  # noqa: N815  # as KEDA has it, here and below
    kind: str = "Deployment"


class Fallback(Strict):
    failureThreshold: int  # noqa: N815
    replicas: int


class Trigger(Strict):
    """Values of metadata are texts, numbers too."""

    type: str
    metadata: dict[str, str]
    authenticationRef: Named | None = None  # noqa: N815


class Scaled(Strict):
    scaleTargetRef: Target  # noqa: N815
    triggers: list[Trigger]
    minReplicaCount: int  # noqa: N815
    maxReplicaCount: int  # noqa: N815
    pollingInterval: int  # noqa: N815
    cooldownPeriod: int  # noqa: N815
    fallback: Fallback


class Reference(Named):
    parameter: str
    key: str


class Authentication(Strict):
    secretTargetRef: list[Reference]  # noqa: N815


SPECIFICATIONS = {"ScaledObject": Scaled, "TriggerAuthentication": Authentication}
TRIGGERS = {
    "postgresql": {"query", "targetQueryValue", "activationTargetQueryValue"},
    "prometheus": {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues"},
}
"""What the documentation of each scaler has of metadata, as far as we use it."""


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each with the name of its workload and the specification of its pod."""
    for name, pod in pods().items():
        for container in pod["containers"]:
            yield name, pod, container


def kustomized() -> list[str]:
    (found,) = documents(FOLDER / "kustomization.yaml")
    return list(found["resources"])


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_each_manifest_fits_the_schema_of_its_kind(path: Path) -> None:
    for each in documents(path):
        if each["kind"] != "Kustomization":
            assert kubernetes_validate.validate(each, VERSION, strict=True) == VERSION


def test_the_schema_notices_a_name_that_is_none() -> None:
    leader = manifests()["Deployment", "trunq-leader"]
    wrong = yaml.safe_load(yaml.safe_dump(leader))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_kustomize_takes_every_file_but_the_example_of_the_secret() -> None:
    others = {"kustomization.yaml", "secret.example.yaml"}
    assert set(kustomized()) == {path.name for path in FOLDER.glob("*.yaml")} - others


def test_selectors_find_the_pods_they_are_for() -> None:
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for (_, name), each in manifests().items()
        if "template" in each.get("spec", {})
    }
    checked = 0
    for (kind, name), each in manifests().items():
        spec = each.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if selector is None:
            continue
        wanted = selector if kind == "Service" else selector["matchLabels"]
        found = {other for other, has in labels.items() if wanted.items() <= has.items()}
        assert found == ({name} if name in labels else set(labels)), (kind, name)
        checked += 1
    assert checked >= 10


def test_secrets_ports_and_volumes_that_a_container_names_are_there() -> None:
    secret = manifests()["Secret", "trunq-database"]["stringData"]
    used = set()
    for name, pod, container in containers():
        for variable in container["env"]:
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                assert reference["name"] == "trunq-database"
                used.add(reference["key"])
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                assert ports[container[probe]["httpGet"]["port"]] == PORT
        volumes = {each["name"] for each in pod.get("volumes", [])}
        assert {each["name"] for each in container.get("volumeMounts", [])} <= volumes, name
    assert used | {"scaler-dsn"} == set(secret)


def test_what_runs_for_long_is_asked_at_the_port_where_it_answers() -> None:
    """Liveness asks no database, readiness does."""
    for name, _, container in containers():
        if name.startswith("Job/"):
            continue
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        given = parse(container["command"][1:]).params
        at = given["port"] if name == "Deployment/trunq-web" else given["health"]
        assert str(at) == str(PORT), name


def test_a_pod_has_longer_to_end_than_its_worker_takes() -> None:
    graces = {}
    for name, pod, container in containers():
        if "worker" in container["command"]:
            graces[name] = parse(container["command"][1:]).params["grace"].total_seconds()
            assert pod["terminationGracePeriodSeconds"] >= graces[name] + 5, name
    assert set(graces) == {"StatefulSet/trunq-worker", "Deployment/trunq-runner"}


def test_containers_have_no_more_rights_than_they_need() -> None:
    for name, pod, container in containers():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_only_the_owner_leads_and_a_worker_is_called_as_its_pod() -> None:
    for name, _, container in containers():
        given = parse(container["command"][1:]).params
        if "worker" not in container["command"]:
            continue
        assert given["lead"] is False, name
        if name.startswith("StatefulSet/"):
            fields = {
                f"$({each['name']})": each["valueFrom"]["fieldRef"]["fieldPath"]
                for each in container["env"]
                if "fieldRef" in each.get("valueFrom", {})
            }
            assert fields["$(POD_NAME)"] == "metadata.name"
            assert all(variable in given["name"] for variable in fields)


@pytest.mark.parametrize("path", KEDA, ids=lambda path: path.name)
def test_what_keda_reads_fits_its_schema(path: Path) -> None:
    for each in documents(path):
        assert each["apiVersion"] == "keda.sh/v1alpha1"
        SPECIFICATIONS[each["kind"]].model_validate(each["spec"])
        for trigger in each["spec"].get("triggers", []):
            assert set(trigger["metadata"]) == TRIGGERS[trigger["type"]]
        if each["kind"] == "ScaledObject":
            target = each["spec"]["scaleTargetRef"]
            scaled = manifests()[target["kind"], target["name"]]
            # Else each `kubectl apply` would undo what the scaler did.
            assert "replicas" not in scaled["spec"]


def test_keda_s_schema_notices_a_number_that_is_no_text() -> None:
    (scaled, _) = documents(OPS / "keda" / "sql.yml")
    scaled["spec"]["triggers"][0]["metadata"]["targetQueryValue"] = 50
    with pytest.raises(ValidationError, match="targetQueryValue"):
        Scaled.model_validate(scaled["spec"])


def test_the_scaler_by_sql_counts_what_waits_and_what_runs_as_a_reader(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    scaled, authentication = documents(OPS / "keda" / "sql.yml")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    (reference,) = authentication["spec"]["secretTargetRef"]
    assert reference["parameter"] == "connection"
    assert reference["key"] in manifests()["Secret", reference["name"]]["stringData"]
    query = trigger["metadata"]["query"]
    connection.execute("create role scaler_of_keda")
    try:
        with Client(database) as client:
            client.create_queue("orders")
            ask(connection, "grant_role", queue="orders", role="reader", grantee="scaler_of_keda")
            connection.execute("set role scaler_of_keda")
            assert fetch(connection, query) == 0
            client.publish_many("orders", [1, 2, 3])
            client.lease("orders", "default", "ada", 2)
            # Who counted what waits alone would say 1, and take the worker of two away.
            assert fetch(connection, query) == 3
    finally:
        connection.execute("reset role")
        connection.execute("drop owned by scaler_of_keda; drop role scaler_of_keda")


def test_a_scale_down_waits_no_shorter_than_a_worker_drains() -> None:
    for path in KEDA:
        spec = documents(path)[0]["spec"]
        grace = pods()["StatefulSet/trunq-worker"]["terminationGracePeriodSeconds"]
        assert spec["cooldownPeriod"] >= seconds(grace)
