"""Asks the metadata service of a cloud whether this machine is taken back.

    aws    /latest/meta-data/spot/instance-action, with a token (IMDSv2); 404 until there is a
           notice, two minutes before the end
    gcp    /computeMetadata/v1/instance/preempted; TRUE 30 s before the end
    azure  /metadata/scheduledevents; an event that ends this machine, of a spot machine 30 s before

A provider is a function that asks once. `Watch` asks again and again in a thread of its own: the
launcher waits for no network.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass

ENDPOINT = "PCCL_RUN_METADATA"  # http://HOST:PORT in place of the cloud's own, for tests
REQUEST_TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 1 << 20
TOKEN_S = 21600  # the longest that aws gives
AZURE_ENDS = ("Preempt", "Terminate", "Redeploy", "Reboot")  # Freeze is a pause of seconds


class MetadataError(Exception):
    """The service did not answer as it should; the text says what it did."""


class Service:
    """A metadata service, spoken to without proxies."""

    def __init__(self, endpoint: str) -> None:
        """Asks nothing yet; `endpoint` is http://HOST[:PORT]."""
        self.endpoint = endpoint.rstrip("/")
        self.token = ""  # of aws
        self.machine = ""  # of azure: the name of this one
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET"
    ) -> tuple[int, bytes]:
        """Status and body of the answer; MetadataError where there is none."""
        request = urllib.request.Request(self.endpoint + path, headers=dict(headers), method=method)
        try:
            with self._opener.open(request, timeout=REQUEST_TIMEOUT_S) as answer:
                return answer.status, answer.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, b""
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise MetadataError(f"{self.endpoint} does not answer: {reason}") from error

    def get(self, path: str, headers: Mapping[str, str]) -> bytes:
        """The body; MetadataError where the status is another one than 200."""
        status, body = self.ask(path, headers)
        if status != 200:
            raise MetadataError(f"{self.endpoint}{path} answers with status {status}")
        return body


def aws(service: Service) -> str:
    """The notice of a spot instance of EC2, "" without one."""
    if not service.token:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
        status, body = service.ask("/latest/api/token", lifetime, method="PUT")
        if status != 200:
            raise MetadataError(f"{service.endpoint} gives no token (IMDSv2): status {status}")
        service.token = body.decode("ascii", "replace").strip()
    status, body = service.ask(
        "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": service.token}
    )
    if status == 404:
        return ""
    if status == 401:
        service.token = ""
        raise MetadataError(f"{service.endpoint} refuses its own token; the next one is asked for")
    if status != 200:
        raise MetadataError(f"{service.endpoint} answers with status {status}")
    notice = _object(body)
    return f"{notice.get('action', 'an action')} at {notice.get('time', 'an unknown time')}"


def gcp(service: Service) -> str:
    """The notice of a spot or preemptible machine of Compute Engine, "" without one."""
    path = "/computeMetadata/v1/instance/preempted"
    answer = service.get(path, {"Metadata-Flavor": "Google"}).decode("ascii", "replace").strip()
    if answer not in ("TRUE", "FALSE"):
        raise MetadataError(f"{service.endpoint}{path} says {answer[:80]!r}, not TRUE or FALSE")
    return "preempted" if answer == "TRUE" else ""


def azure(service: Service) -> str:
    """The scheduled event that ends this machine, "" without one.

    The service tells of the events of all machines in a scale set or an availability set.
    """
    headers = {"Metadata": "true"}
    if not service.machine:
        path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        service.machine = service.get(path, headers).decode("utf-8", "replace").strip()
    events = _object(service.get("/metadata/scheduledevents?api-version=2020-07-01", headers)).get(
        "Events", []
    )
    for event in events if isinstance(events, list) else []:
        if not isinstance(event, dict) or event.get("EventType") not in AZURE_ENDS:
            continue
        if service.machine in (event.get("Resources") or []):
            return f"{event['EventType']} not before {event.get('NotBefore') or 'now'}"
    return ""


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise MetadataError(f"the answer is no JSON: {body[:80]!r}") from error
    if not isinstance(value, dict):
        raise MetadataError(f"the answer is no JSON object: {body[:80]!r}")
    return value


@dataclass(frozen=True)
class Provider:
    """A cloud: how it is asked, where, and how often."""

    ask: Callable[[Service], str]
    endpoint: str
    pause_s: float


PROVIDERS = {
    "aws": Provider(aws, "http://169.254.169.254", 5.0),  # as AWS recommends
    "gcp": Provider(gcp, "http://metadata.google.internal", 1.0),
    "azure": Provider(azure, "http://169.254.169.254", 1.0),
}


class Watch:
    """Asks until there is a notice, then calls `notify` once, in its own thread."""

    def __init__(
        self, name: str, notify: Callable[[str], None], say: Callable[[str], None]
    ) -> None:
        """Starts to ask the cloud `name`; `say`: it answers no more, or again."""
        self._name = name
        self._provider = PROVIDERS[name]
        self._notify, self._say = notify, say
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pccl-spot", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Asks no more; a request under way ends by its own time-out."""
        self._closed.set()

    def _run(self) -> None:
        service = Service(os.environ.get(ENDPOINT) or self._provider.endpoint)
        failure = ""
        while not self._closed.is_set():
            try:
                notice = self._provider.ask(service)
            except Exception as error:  # whatever it answers: the next answer may be a notice
                is_ours = isinstance(error, MetadataError)
                text = str(error) if is_ours else f"{service.endpoint} answers oddly: {error!r}"
                if not failure:
                    self._say(
                        f"--spot {self._name}: {text}; no notice can be seen, pccl-run asks on"
                    )
                failure = text
            else:
                if failure:
                    self._say(f"--spot {self._name}: {service.endpoint} answers")
                failure = ""
                if notice:
                    self._notify(f"{self._name} takes this machine back ({notice})")
                    return
            self._closed.wait(self._provider.pause_s)
