"""A Ray that a study starts by itself is reached from this machine only."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

PROGRAM = """
import ipaddress, json, psutil
from workbench.study.run.ray_cluster import joined_cluster

def listening():
    return {(one.laddr.ip, one.laddr.port) for one in psutil.net_connections("tcp") if one.status == "LISTEN"}

before = listening()
with joined_cluster("local"):
    print(json.dumps(sorted(listening() - before)))
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "boost-workbench[cluster]"')
def test_a_cluster_of_one_machine_listens_on_localhost() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=500)
    listening = json.loads(done.stdout.splitlines()[-1])
    assert listening, "it has servers"
    assert {ip for ip, _ in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
