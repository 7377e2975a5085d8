from dejaq.broker.cluster.offsets import Offsets, Sample


def offsets(**clocks: float) -> Offsets:
    made = Offsets()
    for broker, offset in clocks.items():
        made.add(broker, Sample(offset_ms=offset, round_trip_ms=1))
    return made


def test_of_three_the_middle_clock_counts():
    tokens = {"b": 2, "c": 3}
    assert abs(offsets(b=0, c=900).deviation_ms(tokens, own_token=1)) < 1, "c strays, not we"
    assert offsets(b=-900, c=-902).deviation_ms(tokens, own_token=1) > 898, "we are ahead of both"


def test_of_two_the_clock_of_the_older_counts():
    assert offsets(b=-900).deviation_ms({"b": 1}, own_token=2) > 898
    assert offsets(b=-900).deviation_ms({"b": 2}, own_token=1) == 0


def test_a_slow_answer_proves_little():
    made = Offsets()
    made.add("b", Sample(offset_ms=-240, round_trip_ms=500))
    assert made.deviation_ms({"b": 1}, own_token=2) == 0


def test_a_jump_makes_earlier_samples_worthless():
    made = offsets(b=0)
    made.add("b", Sample(offset_ms=-3_600_000, round_trip_ms=20))
    assert made.deviation_ms({"b": 1}, own_token=2) > 3_599_000
