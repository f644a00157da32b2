"""A canary for each private name that the files called `internals.py` rely on."""

import ast
import subprocess
import sys

import keras
import numpy as np
import pytest

from .test_private_names import INTERNALS, PACKAGE

if keras.backend.backend() != "tensorflow":
    pytest.skip("the versions of TensorFlow and Keras are tried together", allow_module_level=True)

import tensorflow as tf

from keras_transformer.layers import internals as of_layers
from keras_transformer.ops import internals as of_ops
from keras_transformer.tokenizers import internals as of_tokenizers
from keras_transformer.tokenizers import train_sentencepiece
from keras_transformer.training import Adam, Model, internals

CANARIES = {}


def canary(*names):
    """Marks the canary of functions in internals."""

    def remember(check):
        CANARIES.update(dict.fromkeys(names, check))
        return check

    return remember


def model_of_two_layers(**settings):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(2, activity_regularizer="l2", name="hidden")(inputs)
    model = keras.Model(inputs, keras.Sequential([keras.layers.Dense(1, name="inner")])(hidden))
    model.compile(**{"optimizer": "sgd", "loss": "mse", **settings})
    return model


@canary("training.all_layers")
def layers_of_layers_are_found():
    names = [layer.name for layer in internals.all_layers(model_of_two_layers())]
    assert {"hidden", "inner"} <= set(names)


@canary("ops.look_up_rows")
def an_id_outside_of_a_table_is_no_row_of_it():
    table, ids = np.ones((3, 2), "float32"), np.array([2, -1, 3])
    compiled = tf.function(of_ops.look_up_rows, jit_compile=True)
    np.testing.assert_array_equal(compiled(table, ids), [[1, 1], [np.nan] * 2, [np.nan] * 2])
    for wrong in (-1, 3):
        with tf.device("CPU"), pytest.raises(tf.errors.InvalidArgumentError, match=str(wrong)):
            tf.gather(table, wrong)


@canary("training.calls_of")
def the_calls_in_a_model_are_found():
    calls = internals.calls_of(model_of_two_layers())
    assert {layer.name for layer, _, _ in calls} >= {"hidden"}
    assert all(len(inputs) == 1 for _, _, inputs in calls)


@canary("layers.parts_of")
def the_parts_of_a_layer_come_after_what_they_are_in():
    inner = keras.Sequential([keras.layers.Dense(2, name="b"), keras.layers.Dropout(0.5)], name="a")
    wrapper = keras.layers.TimeDistributed(inner)
    assert [path for path, _ in of_layers.parts_of(wrapper)] == ["a", "a/b"]


@canary("training.added_losses")
def the_penalty_of_a_layer_is_found_once():
    model = model_of_two_layers()
    model(np.ones((5, 3)))
    counts = [len(internals.added_losses(layer)) for layer in internals.all_layers(model)]
    assert sorted(counts) == [0] * (len(counts) - 1) + [1]


@canary("training.divides_activity_penalties")
def what_keras_divides_penalties_by_is_the_rows_or_nothing():
    dense = keras.layers.Dense(3, kernel_initializer="ones", activity_regularizer="l1")
    penalties = []
    for rows in (1, 2):
        dense(tf.ones([rows, 5]))
        penalties.append(float(dense.losses[0]))
    is_divided = penalties[0] == pytest.approx(penalties[1])
    assert is_divided or penalties[1] == pytest.approx(2 * penalties[0])
    assert internals.divides_activity_penalties() == is_divided


@canary("training.loss_axis")
def the_axis_of_a_loss_is_known():
    assert internals.loss_axis(keras.losses.CosineSimilarity(axis=1)) == 1
    assert internals.loss_axis(keras.losses.MeanSquaredError()) is None


@canary("training.keras_mask_of", "training.set_keras_mask", "layers.keras_mask_of")
def a_mask_goes_with_its_tensor():
    given = tf.zeros([1, 2])
    internals.set_keras_mask(given, tf.constant([[True, False]]))
    assert of_layers.keras_mask_of(given).numpy().tolist() == [[True, False]]
    embedded = keras.layers.Embedding(3, 2, mask_zero=True)(keras.ops.array([[1, 0]]))
    for mask_of in (internals.keras_mask_of, of_layers.keras_mask_of):
        assert mask_of(embedded * 2) is None
        assert mask_of(embedded).numpy().tolist() == [[True, False]]


@canary("ops.is_compiled", "training.is_compiled_on_tensorflow")
def a_function_that_xla_will_compile_is_known_while_it_is_traced():
    for is_compiled in (of_ops.is_compiled, internals.is_compiled_on_tensorflow):
        for settings in ({}, {"jit_compile": True}):
            traced = tf.function(lambda ask=is_compiled: tf.constant(ask()), **settings)
            assert traced().numpy() == bool(settings)
        assert not is_compiled()


@canary("ops.keep_mask", "ops.draw_seed")
def xla_draws_the_noise_of_plain_tensorflow():
    plain, compiled = keras.random.SeedGenerator(11), keras.random.SeedGenerator(11)
    plain = of_ops.keep_mask((3, 5, 7), 0.5, plain).numpy()
    draw = tf.function(lambda: of_ops.keep_mask((3, 5, 7), 0.5, compiled), jit_compile=True)
    np.testing.assert_array_equal(draw().numpy(), plain)
    np.testing.assert_array_equal(plain[0, 0].astype(int), [0, 1, 1, 1, 0, 0, 1])


@canary(*(f"training.{what}_metrics" for what in ("compiled", "build_compiled", "forget_compiled")))
def metrics_of_compile_are_one_metric_that_can_be_forgotten():
    model = model_of_two_layers(metrics=["mae"])
    model.fit(np.ones((5, 3)), np.ones((5, 1)), verbose=0)
    assert list(internals.compiled_metrics(model).result()) == ["mae"]
    model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError("own")])
    internals.build_compiled_metrics(model)
    assert list(internals.compiled_metrics(model).result()) == ["own"]
    internals.forget_compiled_metrics(model)
    model.compile("sgd", "mse")
    assert internals.compiled_metrics(model) is None


@canary("training.loss_tracker")
def the_mean_of_the_losses_is_a_metric_of_the_model():
    model = model_of_two_layers()
    loss = model.fit(np.ones((5, 3)), np.ones((5, 1)), verbose=0).history["loss"]
    assert float(internals.loss_tracker(model).result()) == loss[0]


@canary("training.last_call")
def the_layer_and_the_arguments_that_made_an_output_are_known():
    inputs = keras.Input((None, 3))
    layer = keras.layers.Dropout(0.1)
    found, arguments, [first] = internals.last_call(layer(inputs, training=False))
    assert found is layer and arguments["training"] is False and first is inputs


@canary("training.disable_gradient_reduction")
def the_optimizer_asks_the_method_that_we_replace():
    asked = []
    optimizer = keras.optimizers.SGD(0.1)
    internals.disable_gradient_reduction(optimizer)
    assert optimizer._all_reduce_sum_gradients is list
    optimizer._all_reduce_sum_gradients = lambda pairs: asked.append(pairs) or list(pairs)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        weight = keras.Variable(1.0)
        optimizer.build([weight])
    strategy.run(lambda: optimizer.apply_gradients([(tf.ones([]), weight)]))
    assert asked
    with pytest.raises(RuntimeError, match=r"does not know.*Received: Keras"):
        internals.disable_gradient_reduction(object())


@canary("training.adam_moments")
def adam_keeps_two_moments():
    optimizer, weights = Adam(0.1), [keras.Variable([1.0]), keras.Variable([2.0, 3.0])]
    optimizer.build(weights)
    optimizer.apply([tf.ones([1]), tf.ones([2])], weights)
    first, second = internals.adam_moments(optimizer, weights[1])
    np.testing.assert_allclose(first.numpy(), [0.1, 0.1], rtol=1e-6)  # 1 - beta_1
    np.testing.assert_allclose(second.numpy(), [0.02, 0.02], rtol=1e-5)  # 1 - beta_2


@canary("training.SymbolicBuildMixin")
def metrics_are_built_without_reading_the_data():
    read = []

    def example(index):
        read.append(int(index))
        return tf.ones([2])

    data = tf.data.Dataset.range(7).map(lambda i: tf.py_function(example, [i], tf.float32))
    data = data.map(lambda y: (tf.ones([3]), tf.ensure_shape(y, [2]))).batch(7)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        inputs = keras.Input((3,))
        model = Model(inputs, keras.layers.Dense(2)(inputs))
        model.compile("sgd", "mse", metrics=["mae"])
    assert set(model.fit(data, verbose=0).history) == {"loss", "mae"}
    assert len(read) == 7, "each example once"


@canary("training.has_unseeded_shuffle")
def a_shuffle_without_a_seed_is_found_behind_other_steps():
    tf.random.set_seed(None)
    numbers = tf.data.Dataset.range(7)
    unseeded = numbers.shuffle(7).batch(2).prefetch(1)
    assert internals.has_unseeded_shuffle(tf.data.Dataset.zip((numbers.batch(2), unseeded)))
    assert not internals.has_unseeded_shuffle(numbers.shuffle(7, seed=1).batch(2))


@canary("training.workers_on_split_cpus")
def a_worker_has_all_its_cpu_devices():
    program = (
        "import tensorflow as tf; from keras_transformer.training import internals, split_cpu; "
        "split_cpu(3); options = tf.distribute.experimental.CommunicationOptions(); "
        "print(internals.workers_on_split_cpus(3, options).num_replicas_in_sync)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["3"], done.stderr[-2000:]


@canary("ops.after")
def xla_is_told_that_a_tensor_waits():
    tensors = tf.constant([2.0, 3.0]), tf.constant([5.0])
    compute = tf.function(lambda x, y: tf.exp(of_ops.after(x, y)), jit_compile=True)
    np.testing.assert_allclose(compute(*tensors), np.exp([2, 3]), rtol=1e-6)
    program = compute.experimental_get_compiler_ir(*tensors)("hlo")
    assert program.count(" opt-barrier(") == 1
    assert of_ops.after(*tensors) is tensors[0], "nothing waits without XLA"


@canary("ops.attach_recipe", "ops.recompute")
def a_layer_is_given_the_tensor_that_another_returned():
    class Asks(keras.layers.Layer):
        def call(self, inputs):
            return of_ops.recompute(inputs)

    class Computes(keras.layers.Layer):
        def call(self, inputs):
            return of_ops.attach_recipe(inputs + 1, lambda: inputs + 2)

    inputs = keras.Input((3,))
    model = keras.Model(inputs, Asks()(Computes()(inputs)))
    for jit_compile in (False, True):
        outputs = tf.function(model, jit_compile=jit_compile)(tf.zeros([1, 3]))
        assert outputs.numpy().tolist() == [[2, 2, 2]]


@canary("tokenizers.lasting_tokenizer")
def a_tokenizer_outlives_a_new_random_seed():
    tokenizer = train_sentencepiece(["ab abc", "abc ab"], vocabulary_size=267)
    before = tokenizer.tokenize(["abc ab"]).to_list()
    tf.random.set_seed(1)
    assert tokenizer.tokenize(["abc ab"]).to_list() == before


@canary("tokenizers.with_pieces")
def a_copy_of_a_tokenizer_returns_pieces_of_the_same_model():
    model = train_sentencepiece(["ab abc", "abc ab"], vocabulary_size=267).model
    ids = of_tokenizers.lasting_tokenizer(model)
    [pieces] = of_tokenizers.with_pieces(ids).tokenize(["abc ab"]).to_list()
    assert b"".join(pieces).decode().replace("\u2581", " ") == " abc ab"
    [found] = ids.tokenize(["abc ab"]).to_list()
    assert ids.id_to_string(found).numpy().tolist() == pieces


@pytest.mark.parametrize("name", sorted(CANARIES))
def test_what_internals_rely_on_is_there(name):
    try:
        CANARIES[name]()
    except Exception as error:
        room, function = name.split(".")
        message = (
            f"Keras {keras.__version__} or TensorFlow {tf.__version__} has changed what {function} "
            f"of keras_transformer/{room}/internals.py relies on. Its docstring says what that is. "
            "Look up in the new version what does the same, and have this one function take "
            "whichever of the two is there. If nothing does, leave the version out in setup.py."
        )
        raise AssertionError(message) from error


def test_each_function_of_internals_has_a_canary():
    names = {
        f"{path.parent.name}.{node.name}"
        for path in INTERNALS
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    }
    assert names == set(CANARIES)


def test_the_documentation_lists_each_function_of_internals():
    page = (PACKAGE.parent / "docs" / "versions.md").read_text("utf-8")
    assert not [name for name in CANARIES if f"`{name.split('.')[1]}`" not in page]
