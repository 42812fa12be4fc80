"""`pccl-master --status`: the members of a run, what each of them does and how late it is.

The extension `_core` asks the master; here the answer becomes a text of 80 columns, or JSON whose
fields docs/reference/pccl-master.md describes. Loads without torch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from ._config import parse_url
from ._ranges import ranges
from ._say import say

TIMEOUT_S = 5.0
PAUSE_S = 0.12  # between questions: a master answers ten of one address in a second
WIDTH = 80
Answer = dict[str, Any]


def main(
    url: str, *, as_json: bool, name: str = "URL", token_file: str = "", token: str = ""
) -> int:
    """Prints the status of the run at `url`; returns the exit status: 0, or 1 without an answer.

    Where `url` names no run and its master serves several, the status of each that the token opens.

    Args:
        url: Of the run.
        as_json: In place of text.
        name: Of the URL in errors.
        token_file: With the token by which a master lets this process in; "": none.
        token: Its line, where there is no file.

    Raises:
        ValueError: The URL is none, or the token, or the name of its file.
    """
    target = parse_url(url, name=name)
    if not token_file.isprintable():
        raise ValueError(f"the token file is {token_file!r}; expected a name in printable UTF-8")
    answer = _ask(target.masters, target.run, token_file, token)
    if answer is None:
        return 1
    if answer["state"] != "several":
        say(json.dumps(to_json(answer), indent=2) if as_json else to_text(answer))
        return 0
    answers = []
    for run in answer["runs"]:
        time.sleep(PAUSE_S)
        answers.append(_ask(target.masters, run, token_file, token))
    told = [one for one in answers if one is not None]
    if as_json:
        say(json.dumps({"runs": [to_json(one) for one in told]}, indent=2))
    elif told:
        say("\n\n".join(to_text(one) for one in told))
    return 0 if told and len(told) == len(answers) else 1


def _ask(masters: Sequence[str], run: str, token_file: str, token: str) -> Answer | None:
    """The answer of the master in charge, or else of one that stands by; None: there is none."""
    from pccl_backend import _core

    standby: Answer | None = None
    for master in masters:
        try:
            answer: Answer = _core.ask_status(master, run, TIMEOUT_S, token_file, token)
        except OSError as error:
            print(f"pccl-master: {error}", file=sys.stderr)
            continue
        if answer["state"] != "standby":
            return answer
        standby = answer
    return standby


def to_json(answer: Answer) -> Answer:
    """The fields that are documented."""
    return {
        "run": answer["run"],
        "package": answer["package"],
        "up_s": answer["up_ms"] / 1000,
        "state": answer["state"],
        "waits_for": answer["waits_for"],
        "epoch": None if answer["epoch"] == "0.0" else answer["epoch"],
        "step": answer["step"],
        "replicas": answer["replicas"],
        "min_peers": answer["min_peers"],
        "hold_below": answer["hold_below"],
        "member_count": answer["member_count"],
        "door_count": answer["door_count"],
        "members": [_member(member) for member in answer["members"]],
        "door": [_member(member, at_door=True) for member in answer["door"]],
        "events": [
            {
                "ago_s": event["ago_ms"] / 1000,
                "level": "warning" if event["warning"] else "info",
                "text": event["text"],
            }
            for event in answer["events"]
        ],
    }


def to_text(answer: Answer) -> str:
    """The same for people, in lines of at most 80 columns."""
    status = to_json(answer)
    head = f'run "{status["run"]}": {status["state"]}'
    if status["epoch"]:
        head += (
            f", epoch {status['epoch']}, step {status['step']}, "
            f"{_count(status['member_count'], 'member')} in {_count(status['replicas'], 'replica')}"
        )
    lines = [head]
    if status["waits_for"]:
        lines += _wrapped(status["waits_for"])
    if status["member_count"] == len(status["members"]):  # else some of a site are not listed
        for text in _sites(status["members"]):
            lines += _wrapped(text)
    for text in _links(status["members"]):
        lines += _wrapped(text)
    if status["members"]:
        lines += ["", f"{'rank':<6}{'name':<22}{'host, process':<20}{'late':>7}  doing"]
        lines += [_row(_rank(member), member) for member in status["members"]]
        lines += _more(status["member_count"], status["members"])
    if status["door"]:
        lines += ["", f"at the door: {_count(status['door_count'], 'peer')}"]
        lines += [_row("-", member) for member in status["door"]]
        lines += _more(status["door_count"], status["door"])
    if status["events"]:
        lines += ["", "last events"]
        for event in status["events"]:
            lines += _wrapped(f"{_duration(event['ago_s'])} ago: {event['text']}")
    up = f"master: pccl {status['package']}, up for {_duration(status['up_s'])}"
    return "\n".join([*lines, "", up])


def _member(member: Answer, *, at_door: bool = False) -> Answer:
    return {
        "id": member["peer"],
        "name": member["name"],
        "host": member["host"] or None,
        "process": member["process"] or None,
        "address": member["address"] or None,
        "replica": member["replica"],
        "rank": None if at_door else member["rank"],
        "peer_group": member["group"],
        "site": member["site"] - 1 if member["site"] else None,
        "doing": member["doing"],
        "detail": member["detail"],
        "step": member["step"],
        "silent_s": member["silent_ms"] / 1000,
        "late_s": member["late_s"],
        "token": member["token"] or None,
        "longest_round_trip_s": member["farthest_us"] / 1e6 or None,
        "slowest_link": {
            "to": member["slowest_to"],
            "rate": member["slowest_rate"],
            "round_trip_s": member["slowest_us"] / 1e6 or None,
        }
        if member["slowest_rate"]
        else None,
    }


def _links(members: list[Answer]) -> list[str]:
    """Sentences about the slowest link that has been measured, and the longest round trip."""
    texts = []
    measured = [member for member in members if member["slowest_link"]]
    if measured:
        member = min(measured, key=lambda one: one["slowest_link"]["rate"])
        link = member["slowest_link"]
        to = next((f"rank {_rank(one)}" for one in members if one["id"] == link["to"]), link["to"])
        trip = link["round_trip_s"]
        texts.append(
            f"slowest link: {link['rate'] / 1e6:.1f} MB/s from rank {_rank(member)} to {to}"
            + (f", round trip {1000 * trip:.1f} ms" if trip else "")
        )
    far = [member for member in members if member["longest_round_trip_s"]]
    if far:
        member = max(far, key=lambda one: float(one["longest_round_trip_s"]))
        trip = member["longest_round_trip_s"]
        texts.append(f"longest round trip: {1000 * trip:.1f} ms, at rank {_rank(member)}")
    return texts


def _sites(members: list[Answer]) -> list[str]:
    """A sentence for each peer group whose members stand at sites: "2 sites: ranks 0-3 | 4-7"."""
    ranks: dict[int, dict[int, list[int]]] = {}  # by peer group and site
    for member in members:
        if member["site"] is not None:
            sites = ranks.setdefault(member["peer_group"], {})
            sites.setdefault(member["site"], []).append(member["rank"])
    several = any(member["peer_group"] for member in members)
    return [
        (f"peer group {group} at " if several else "")
        + f"{_count(len(sites), 'site')}: ranks "
        + " | ".join(_text_of(sites[site]) for site in sorted(sites))
        for group, sites in sorted(ranks.items())
    ]


def _text_of(ranks: list[int]) -> str:
    """Of ascending ranks: "0-3, 5"."""
    return ", ".join(
        str(first) if count == 1 else f"{first}-{first + count - 1}"
        for first, count in ranges(ranks)
    )


def _rank(member: Answer) -> str:
    return (
        f"{member['rank']}.{member['peer_group']}" if member["peer_group"] else str(member["rank"])
    )


def _row(rank: str, member: Answer) -> str:
    where = f"{member['host']}/{member['process']}" if member["host"] else "-"
    late = f"{member['late_s']} s" if member["late_s"] else "-"
    doing: str = member["detail"]
    if member["address"] and member["silent_s"] >= 3:
        doing = f"silent for {member['silent_s']:.1f} s; {doing}"
    if member["token"]:
        doing += f" (token {member['token']})"
    start = f"{rank:<6}{_cut(member['name'], 21):<22}{_cut(where, 19):<20}{late:>7}  "
    if len(start) + len(doing) <= WIDTH:
        return start + doing
    return "\n".join([start.rstrip(), *_wrapped(doing, indent=8)])


def _wrapped(text: str, indent: int = 2) -> list[str]:
    import textwrap

    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_on_hyphens=False,
    )


def _more(count: int, shown: list[Answer]) -> list[str]:
    return [f"and {count - len(shown)} more"] if count > len(shown) else []


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours >= 48:
        return f"{hours // 24} days"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s" if minutes else f"{seconds:.0f} s"
