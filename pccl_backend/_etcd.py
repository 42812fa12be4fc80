"""The register of a run in an etcd cluster, which several masters share.

Two keys: KEY holds the register, as bytes that csrc/master/register_file.h makes and reads;
KEY/holder the name of the master that is in charge, under a lease. The register changes only on
condition that it has not changed since this master last read or wrote it (etcd compares the
modification revision), so two masters never both succeed; the lease keeps them from taking turns.

How etcd is spoken to is in _etcd_gateway.py.
"""

from __future__ import annotations

import base64
import os
import secrets
import socket
from typing import Any

from ._etcd_gateway import Access, Gateway, parse_etcd

TAG_BYTES = 8


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


class EtcdRegister:
    """The register of a master, in etcd. Calls may come from any thread."""

    def __init__(
        self, url: str, *, lease_s: float, name: str, access: Access | None = None
    ) -> None:
        """Connects to nothing yet.

        Args:
            url: As parse_etcd takes it.
            lease_s: Seconds after which a standby may take over from a master that has died.
            name: Of this master, for the others' log.
            access: How the cluster is spoken to; None: in the clear, as nobody.
        """
        addresses, self._key = parse_etcd(url)
        self._gateway = Gateway(addresses, access or Access())
        self._lease_s = max(1, round(lease_s))
        # Two masters of one name are still two holders.
        self._name = f"{name} ({socket.gethostname()}, process {os.getpid()})"
        # This tag begins what this master writes: two masters may want to write one register (both
        # take over from the same one), and have to see that only one of them did.
        self._tag = secrets.token_bytes(TAG_BYTES)
        self._revision: int | None = None  # of the register, as last read or written; 0: not there
        self._writes = 0
        self._lease = 0
        self._holder = ""

    # ------------------------------------------------------------------------- the register

    def read(self) -> bytes:
        """What the register holds, b"" if it was never written. Raises EtcdError."""
        answer = self._gateway.call("kv/range", {"key": _encode(self._key.encode())})
        found = answer.get("kvs") or []
        self._revision = int(found[0]["mod_revision"]) if found else 0
        return base64.b64decode(found[0].get("value", ""))[2 * TAG_BYTES :] if found else b""

    def write(self, value: bytes) -> bool:
        """Writes `value` if nobody has written since this master last read or wrote.

        Returns:
            False: somebody has, and nothing was written.

        Raises:
            EtcdError: Nobody knows what it holds now; read it anew.
        """
        revision, self._revision = self._revision, None
        if revision is None:
            return False
        key = _encode(self._key.encode())
        self._writes += 1
        value = self._tag + self._writes.to_bytes(TAG_BYTES, "big") + value
        answer = self._gateway.call(
            "kv/txn",
            {
                "compare": [
                    {
                        "key": key,
                        "target": "MOD",
                        "result": "EQUAL",
                        "mod_revision": str(revision),
                    }
                ],
                "success": [{"request_put": {"key": key, "value": _encode(value)}}],
                "failure": [{"request_range": {"key": key}}],
            },
        )
        if answer.get("succeeded"):
            self._revision = int(answer["header"]["revision"])
            return True
        # A request that was tried again at another member may have been carried out at the first.
        found = answer["responses"][0].get("response_range", {}).get("kvs") or []
        if found and base64.b64decode(found[0].get("value", "")) == value:
            self._revision = int(found[0]["mod_revision"])
            return True
        return False

    # ---------------------------------------------------------------------------- the lease

    def hold(self) -> bool:
        """Takes the lease or renews it. False: another master holds it (`holder`)."""
        if self._lease and self._keep_alive():
            return self._take()
        found = self._gateway.call("kv/range", {"key": _encode(f"{self._key}/holder".encode())})
        if self._is_others(found.get("kvs")):
            return False
        self._lease = int(self._gateway.call("lease/grant", {"TTL": str(self._lease_s)})["ID"])
        held = self._take()
        if not held:
            self.release()
        return held

    def holder(self) -> str:
        """Who holds the lease, as of the last call of hold()."""
        return self._holder

    def release(self) -> bool:
        """Gives the lease up; a standby takes over at once. Raises EtcdError."""
        lease, self._lease = self._lease, 0
        if lease:
            self._gateway.call("lease/revoke", {"ID": str(lease)})
        return True

    def _keep_alive(self) -> bool:
        answer = self._gateway.call("lease/keepalive", {"ID": str(self._lease)})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def _take(self) -> bool:
        """Puts this master's name under its lease where there is none."""
        key = _encode(f"{self._key}/holder".encode())
        put = {"key": key, "value": _encode(self._name.encode()), "lease": str(self._lease)}
        answer = self._gateway.call(
            "kv/txn",
            {
                "compare": [
                    {
                        "key": key,
                        "target": "CREATE",
                        "result": "EQUAL",
                        "create_revision": "0",
                    }
                ],
                "success": [{"request_put": put}],
                "failure": [{"request_range": {"key": key}}],
            },
        )
        if answer.get("succeeded"):
            self._holder = self._name
            return True
        found = answer["responses"][0].get("response_range", {}).get("kvs") or []
        return bool(found) and not self._is_others(found)

    def _is_others(self, found: list[dict[str, Any]] | None) -> bool:
        """Is this entry of the holder that of another master? Notes its name."""
        if not found:
            return False
        self._holder = base64.b64decode(found[0].get("value", "")).decode(errors="replace")
        return int(found[0].get("lease", 0)) != self._lease
