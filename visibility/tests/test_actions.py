"""The table of actions: claims of its columns that no other tests of the actions show."""

from __future__ import annotations

from visibility.contract.actions import ACTIONS, AnsweredBy


def test_a_batch_needs_the_permission_of_its_single_action() -> None:
    assert ACTIONS["SendMessageBatch"].permission == ACTIONS["SendMessage"].permission
    assert {row.permission for row in ACTIONS.values()} == {
        f"sqs:{name}" for name in ACTIONS if not name.endswith("Batch")
    }


def test_actions_of_a_shard_name_their_queue_by_url() -> None:
    assert all(
        row.required[0] == "queue_url"
        for row in ACTIONS.values()
        if row.answered_by is AnsweredBy.SHARD
    )


def test_no_action_on_messages_one_by_one_is_audited() -> None:
    assert not any(row.audited for row in ACTIONS.values() if row.answered_by is AnsweredBy.SHARD)
