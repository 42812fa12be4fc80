"""The demo, short: it ends with status 0, and its summary rests on its workers' records."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import ROOT

pytestmark = pytest.mark.long


def test_the_demo_holds_what_it_claims(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pccl_backend.demo", "--out", str(tmp_path)]
    command += ["--steps", "28", "--every", "10"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500)
    logs = "".join(path.read_text()[-3000:] for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["holds"]
    assert all(claim["holds"] for claim in summary["claims"])
    assert "bytes of it had left" in done.stdout
    assert "the loss fell" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if "picture: " not in line) <= 80
    assert re.search(r"KILLED worker \d half way through sending; the survivors redid", done.stdout)
    assert re.search(
        r"the same again, without faults(?s:.*)without faults to \d\.\d{3}", done.stdout
    )
    assert not re.search(r"[0-9a-f]{17}", done.stdout)
    picture = ElementTree.parse(tmp_path / "loss.svg").getroot()
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert {"a new worker joins", "the same run without faults"} <= set(texts)
    records = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(tmp_path.glob("worker-*.jsonl"))
    ]
    assert len(records) == 4
    finals = [r["hashes"] for worker in records for r in worker if r["what"] == "final"]
    assert len(finals) == 3
    assert len({hashes["model"] for hashes in finals}) == 1
    assert len({hashes["inner_optimizer"] for hashes in finals}) == 3
