from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dejaq
import dejaq.sync

PUBLIC = """
AppendedBatch Log LogBatch LogBucketInfo LogGroup LogGroupInfo LogMessage LogOffset LogReader LogWorker
Cron MessagePage MessageHistory HistoryEvent Reply Schedule ScheduleInfo
Backoff Postpone Reject Worker
JSON MSGPACK Codec Rights RightsDecision RightsQuota RightsRule TopicsPage
AllTopics TopicEntry TopicCopies StoreCopies StandbyInfo
Batch Broker BrokerInfo BulkResult Client ClientInfo ClusterInfo Code Conflict Consumer
DeadLetters DejaqError Durability FanOut Indefinite
InternalError InvalidArgument Lease LimitExceeded Message Missing NoBroker OutOfState Pong PortTaken Producer Refused
Results Status StoreError TopicExists TopicInfo TopicKind TopicSettings TopicStage Transaction Unavailable
PermissionDenied Unauthenticated VersionUnsupported Where
connect
"""


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(PUBLIC.split()) == sorted(dejaq.__all__)
    assert all(getattr(dejaq, name) is not None for name in dejaq.__all__)


def test_a_client_loads_neither_a_store_nor_the_broker() -> None:
    code = (
        "import sys, dejaq, dejaq.sync; dejaq.connect; "
        "print([m for m in sys.modules if m.startswith(('rocksdict', 'dejaq.broker', 'dejaq.storage'))])"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"


def test_importing_the_package_alone_loads_no_grpc() -> None:
    code = "import sys, dejaq.errors; print('grpc' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "False"


def test_every_public_name_is_in_the_reference() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/sdk.md").read_text(encoding="utf-8")
    assert [name for name in (*dejaq.__all__, *dejaq.sync.__all__) if f"`{name}`" not in page] == []
    assert "#### `Lease.reject`" in page
    assert "codec: Codec | CodecName | None = None" in page
