"""The notices of the clouds, against metadata services of the test that answer as theirs do."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import wait_until
from fake_cloud import Cloud

from pccl_backend.launch import spot

ACTION = {"action": "terminate", "time": "2026-11-23T17:00:00Z"}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    server = Cloud()
    monkeypatch.setenv(spot.ENDPOINT, server.url)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a link-local address has no proxy
    yield server
    server.close()


TOKEN = "PUT /latest/api/token"
AWS = "GET /latest/meta-data/spot/instance-action"
GCP = "GET /computeMetadata/v1/instance/preempted"
AZURE_NAME = "GET /metadata/instance/compute/name?api-version=2021-02-01&format=text"
AZURE = "GET /metadata/scheduledevents?api-version=2020-07-01"


def azure_events(*events: dict[str, Any]) -> tuple[int, str]:
    return 200, json.dumps({"DocumentIncarnation": 1, "Events": list(events)})


PREEMPT = {
    "EventType": "Preempt",
    "Resources": ["me"],
    "NotBefore": "Mon, 23 Nov 2026 17:00:00 GMT",
}


def test_aws_is_asked_with_a_token_and_says_404_until_there_is_a_notice(cloud: Cloud) -> None:
    service = spot.Service(cloud.url)
    cloud.answers[TOKEN] = (200, "secret")
    assert spot.aws(service) == ""
    cloud.answers[AWS] = (200, json.dumps(ACTION))
    assert spot.aws(service) == "terminate at 2026-11-23T17:00:00Z"
    assert [h["x-aws-ec2-metadata-token"] for h in cloud.heads(AWS)] == ["secret", "secret"]
    (head,) = cloud.heads(TOKEN)  # one for both
    assert head["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"


def test_a_token_that_has_run_out_is_replaced(cloud: Cloud) -> None:
    service = spot.Service(cloud.url)
    cloud.answers = {TOKEN: (200, "first"), AWS: (401, "")}
    with pytest.raises(spot.MetadataError, match="refuses its own token"):
        spot.aws(service)
    cloud.answers = {TOKEN: (200, "second"), AWS: (200, json.dumps(ACTION))}
    assert spot.aws(service)
    assert cloud.heads(AWS)[-1]["x-aws-ec2-metadata-token"] == "second"


def test_gcp_says_true_or_false(cloud: Cloud) -> None:
    service = spot.Service(cloud.url)
    cloud.answers[GCP] = (200, "FALSE")
    assert spot.gcp(service) == ""
    cloud.answers[GCP] = (200, "TRUE\n")
    assert spot.gcp(service) == "preempted"
    assert cloud.heads(GCP)[0]["metadata-flavor"] == "Google"
    cloud.answers[GCP] = (200, "<html>")
    with pytest.raises(spot.MetadataError, match="not TRUE or FALSE"):
        spot.gcp(service)


def test_azure_tells_of_this_machine_and_of_others(cloud: Cloud) -> None:
    service = spot.Service(cloud.url)
    cloud.answers[AZURE_NAME] = (200, "me")
    for events in ([], [PREEMPT | {"Resources": ["other"]}], [PREEMPT | {"EventType": "Freeze"}]):
        cloud.answers[AZURE] = azure_events(*events)
        assert spot.azure(service) == ""
    cloud.answers[AZURE] = azure_events(PREEMPT | {"Resources": ["other", "me"]})
    assert spot.azure(service) == "Preempt not before Mon, 23 Nov 2026 17:00:00 GMT"
    assert len(cloud.heads(AZURE_NAME)) == 1
    assert all(head["metadata"] == "true" for head in cloud.heads(AZURE))


@pytest.mark.parametrize(
    ("ask", "answers", "text"),
    [
        (spot.aws, {}, "gives no token .* status 404"),
        (spot.aws, {TOKEN: (200, "t"), AWS: (500, "")}, "status 500"),
        (spot.aws, {TOKEN: (200, "t"), AWS: (200, "terminate")}, "no JSON"),
        (spot.aws, {TOKEN: (200, "t"), AWS: (200, "[]")}, "no JSON object"),
        (spot.gcp, {}, "status 404"),
        (spot.azure, {AZURE_NAME: (200, "me"), AZURE: (200, "{")}, "no JSON"),
    ],
)
def test_an_answer_of_another_kind_is_an_error_that_says_which(
    cloud: Cloud, ask: Callable[[spot.Service], str], answers: dict[str, Any], text: str
) -> None:
    cloud.answers = answers
    with pytest.raises(spot.MetadataError, match=text):
        ask(spot.Service(cloud.url))


def test_nobody_at_the_address_is_an_error() -> None:
    with pytest.raises(spot.MetadataError, match="does not answer"):
        spot.gcp(spot.Service("http://127.0.0.1:1"))


def test_a_watch_says_once_that_nobody_answers_goes_on_and_notifies_once(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = spot.Provider(spot.gcp, "http://unused", 0.01)
    monkeypatch.setitem(spot.PROVIDERS, "gcp", quick)
    notices: list[str] = []
    said: list[str] = []
    watch = spot.Watch("gcp", notices.append, said.append)
    wait_until(lambda: len(cloud.seen) > 3)
    assert len(said) == 1
    assert "no notice can be seen" in said[0]
    cloud.answers[GCP] = (200, "FALSE")
    wait_until(lambda: len(said) > 1)
    assert said[1].endswith("answers")
    assert notices == []
    cloud.answers[GCP] = (200, "TRUE")
    wait_until(lambda: notices)
    assert notices == ["gcp takes this machine back (preempted)"]
    watch.close()


def test_a_watch_goes_on_after_an_answer_that_nobody_has_thought_of(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = spot.Provider(spot.azure, "http://unused", 0.01)
    monkeypatch.setitem(spot.PROVIDERS, "azure", quick)
    event: dict[str, Any] = {"EventType": "Preempt", "Resources": 5}
    cloud.answers = {AZURE_NAME: (200, "me"), AZURE: (200, json.dumps({"Events": [event]}))}
    notices: list[str] = []
    said: list[str] = []
    watch = spot.Watch("azure", notices.append, said.append)
    wait_until(lambda: said)
    assert "answers oddly: TypeError" in said[0]
    event["Resources"] = ["me"]
    cloud.answers[AZURE] = (200, json.dumps({"Events": [event]}))
    wait_until(lambda: notices)
    watch.close()
