"""A Ray that a study starts by itself is reached from this machine only."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from studies.reliability.ray_cluster import ENVIRONMENT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

PROGRAM = """
import json, psutil
from workbench.study.run.ray_cluster import joined_cluster

def listening():
    return {(one.laddr.ip, one.laddr.port) for one in psutil.net_connections("tcp") if one.status == "LISTEN"}

before = listening()
with joined_cluster("local"):
    print(json.dumps(sorted(listening() - before)))
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "boost-workbench[cluster]"')
def test_a_cluster_of_one_machine_listens_on_localhost() -> None:
    patient = {name: value for name, value in ENVIRONMENT.items() if name != "RAY_AUTH_MODE"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, **patient},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    listening = json.loads(done.stdout.splitlines()[-1])
    assert listening, "it has servers"
    assert {ip for ip, _ in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
