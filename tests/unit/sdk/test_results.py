from __future__ import annotations

import pytest

from dejaq.errors import Code, Conflict, Missing
from dejaq.sdk.results import FanOut, Results


def test_results_name_every_item_and_make_ids_only_when_asked() -> None:
    made: list[int] = []

    def ids() -> list[str]:
        made.append(1)
        return ["a", "b", "c"]

    results = Results(3, {1: Code.ID_TAKEN, 2: Code.ALREADY_EXISTS}, ids)
    assert not results.ok
    assert results.failed == {1: Code.ID_TAKEN}
    assert made == []
    assert list(results.items()) == [("a", Code.OK), ("b", Code.ID_TAKEN), ("c", Code.ALREADY_EXISTS)]
    assert results.ids is results.ids
    assert made == [1]
    assert (len(results), results[0], results[-1]) == (3, Code.OK, Code.ALREADY_EXISTS)
    assert results.codes == list(results)
    with pytest.raises(IndexError):
        results[3]


def test_the_first_failure_is_raised_with_its_id_and_their_number() -> None:
    with pytest.raises(Conflict, match="2 of 3 items failed, 1 were done") as raised:
        Results(3, {2: Code.NOT_FOUND, 1: Code.LEASED}, ["a", "b", "c"]).raise_for_failures()
    assert raised.value.code is Code.LEASED
    assert raised.value.failed == {"b": Code.LEASED, "c": Code.NOT_FOUND}
    assert "(b: LEASED, c: NOT_FOUND)" in str(raised.value)
    Results(2, {0: Code.ALREADY_EXISTS}, ["a", "b"]).raise_for_failures()


def test_a_fan_out_fails_by_topic() -> None:
    sent = FanOut("m", {"a": Code.OK, "b": Code.TOPIC_NOT_FOUND})
    assert not sent.ok
    assert sent.failed == {"b": Code.TOPIC_NOT_FOUND}
    with pytest.raises(Missing, match="topic b"):
        sent.raise_for_failures()
    FanOut("m", {"a": Code.OK}).raise_for_failures()
