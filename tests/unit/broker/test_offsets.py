from dejaq.broker.cluster.offsets import Offsets, OffsetSample


def offsets(**clocks: float) -> Offsets:
    made = Offsets()
    for broker, offset in clocks.items():
        made.add(broker, OffsetSample(offset_ms=offset, round_trip_ms=1))
    return made


def test_the_middle_one_of_three_clocks_is_the_reference() -> None:
    tokens = {"b": 2, "c": 3}
    assert abs(offsets(b=0, c=900).deviation_ms(tokens, own_token=1)) < 1, "the clock of c is wrong, not ours"
    assert offsets(b=-900, c=-902).deviation_ms(tokens, own_token=1) > 898, "our clock is ahead of both"


def test_the_clock_of_the_older_of_two_brokers_is_the_reference() -> None:
    assert offsets(b=-900).deviation_ms({"b": 1}, own_token=2) > 898
    assert offsets(b=-900).deviation_ms({"b": 2}, own_token=1) == 0


def test_a_slow_answer_has_a_large_uncertainty() -> None:
    made = Offsets()
    made.add("b", OffsetSample(offset_ms=-240, round_trip_ms=500))
    assert made.deviation_ms({"b": 1}, own_token=2) == 0


def test_a_jump_discards_earlier_samples() -> None:
    made = offsets(b=0)
    made.add("b", OffsetSample(offset_ms=-3_600_000, round_trip_ms=20))
    assert made.deviation_ms({"b": 1}, own_token=2) > 3_599_000
