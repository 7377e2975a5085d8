import pickle

import pytest

from dejaq import errors
from dejaq.errors import MEANINGS, Code, DejaqError, InternalError, error_class, error_of
from dejaq.protocol.v1 import errors_pb2


def test_codes_are_those_of_the_protocol() -> None:
    assert {code.name: code.value for code in Code} == dict(errors_pb2.Code.items())


def test_exactly_the_codes_have_a_meaning() -> None:
    assert set(MEANINGS) == set(Code)
    assert all(meaning.endswith((".", "-")) for meaning in MEANINGS.values())


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_an_error_survives_pickling(code: Code) -> None:
    error = error_of(code, "what happened", details="to what", throttled_ms=7)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    fields = ("code", "message", "details", "throttled_ms", "retryable", "indefinite", "should_resync", "args")
    assert [getattr(copy, name) for name in fields] == [getattr(error, name) for name in fields]
    assert str(copy) == str(error)


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_the_text_of_an_error_has_its_code_and_meaning(code: Code) -> None:
    error = error_of(code)
    assert error.code is code
    assert str(error) == f"{code.name}: {MEANINGS[code]}"
    assert isinstance(error, error_class(code))


def test_details_are_shown_after_the_message() -> None:
    assert str(error_of(Code.LEASED, "held", details="by w")) == "LEASED: held (by w)"


def test_only_ok_and_already_exists_succeeded() -> None:
    assert [code for code in Code if code.succeeded] == [Code.OK, Code.ALREADY_EXISTS]


def test_every_failure_has_a_class_of_its_own_kind() -> None:
    plain = [code for code in Code if error_class(code) is InternalError and code is not Code.INTERNAL]
    assert plain == [Code.OK, Code.ALREADY_EXISTS]


def test_whether_an_error_may_be_retried_is_an_attribute() -> None:
    retryable = {code for code in Code if error_class(code).retryable}
    unavailable = {Code.UNAVAILABLE, Code.DRAINING, Code.OVERLOADED, Code.NO_BROKER, Code.CUT_OFF}
    assert retryable == unavailable | {Code.INDEFINITE, Code.SYNCHRONIZATION_FAILED}
    assert {code for code in Code if error_class(code).indefinite} == {Code.INDEFINITE}


def test_the_tree_in_the_docstring_is_the_class_tree() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DejaqError)]
    drawn = errors.__doc__ or ""
    assert [kind.__name__ for kind in kinds if kind.__name__ not in drawn] == []
    assert [code.name for code in Code if not code.succeeded and code.name not in drawn] == []


def test_a_code_is_printed_as_its_name() -> None:
    """U23: `print(code)` showed 34."""
    assert (str(Code.VERSION_CONFLICT), f"{Code.VERSION_CONFLICT}") == ("VERSION_CONFLICT", "VERSION_CONFLICT")
    assert (f"{Code.VERSION_CONFLICT:d}", int(Code.VERSION_CONFLICT)) == ("34", 34)
