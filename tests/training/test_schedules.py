import keras
import numpy as np
import pytest

from keras_transformer.training import InverseSqrtWarmup


def test_it_rises_linearly_to_the_peak_and_falls_with_the_root():
    schedule = InverseSqrtWarmup(peak_rate=0.5, warmup_steps=5)
    rates = [float(schedule(step)) for step in range(20)]
    np.testing.assert_allclose(rates[:5], [0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-6)
    assert max(rates) == rates[4], "the peak is at step number warmup_steps"
    assert rates[19] == pytest.approx(0.25, rel=1e-6), "half the peak after four warm-ups"


def test_paper_form_is_equation_3():
    schedule = InverseSqrtWarmup.of_paper(hidden_dim=512, warmup_steps=4000)
    for step in (1, 17, 3999, 4000, 4001, 100_003):
        by_paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert float(schedule(step - 1)) == pytest.approx(by_paper, rel=1e-5), f"step {step}"


def test_steps_may_be_integer_tensors():
    schedule = InverseSqrtWarmup(0.5, 5)
    assert float(schedule(keras.ops.array(1, dtype="int32"))) == pytest.approx(0.2)


def test_config_round_trip_inside_an_optimizer():
    optimizer = keras.optimizers.SGD(InverseSqrtWarmup(0.5, 5))
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert isinstance(restored._learning_rate, InverseSqrtWarmup)
    assert restored._learning_rate.get_config() == {"peak_rate": 0.5, "warmup_steps": 5}


@pytest.mark.parametrize("arguments", [(0.0, 5), (-0.5, 5), (0.5, 0)])
def test_numbers_that_are_not_positive_are_refused(arguments):
    rate, steps = arguments
    with pytest.raises(ValueError, match=r"(peak_rate|warmup_steps) must be .*Received: "):
        InverseSqrtWarmup(rate, steps)
    with pytest.raises(ValueError, match=r"hidden_dim must be .*Received: hidden_dim=0"):
        InverseSqrtWarmup.of_paper(0, 5)
