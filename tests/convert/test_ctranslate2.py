"""Our models in CTranslate2, beside themselves."""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import ctranslate2 as module
from keras_transformer.convert.generation import power_penalty
from keras_transformer.data import TokenBatches, tokenize
from keras_transformer.decoding import BeamSearch, HuggingFaceScoring
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.serving import Generator, SearchSettings, Translator
from keras_transformer.serving.settings import scoring_of
from keras_transformer.tokenizers import END_ID, PAD_ID, START_ID
from tests.convert.drawn import CORPUS, by_ctranslate2, noisy, pieces_of, translator_of
from tests.reference import array
from train.demo.corpus import demo_corpus

pytestmark = pytest.mark.oracle
GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "to-other-formats.md"


T5 = {"scale_embedding": False, "use_bias": False, "normalization": "rms",
      "position_bias": {"type": "t5", "num_buckets": 8, "max_distance": 20}}  # fmt: skip


@pytest.mark.usefixtures("checked_here")
@pytest.mark.parametrize(
    ("num_beams", "options"),
    [
        (1, {}),
        (4, {"num_decoder_layers": 1}),
        (1, {"normalize_first": False, "activation": "silu", "positions": {"interleaved": False}}),
        (
            4,
            {
                "target_vocabulary_size": 410,
                "tie_output": False,
                "output_bias": True,
                "activation": "gelu",
            },
        ),
        (1, {"scale_embedding": False, "use_bias": False, "activation": gelu_tanh}),
        (2, {"max_sequence_length": 24, "embedding_norm": True, "normalize_first": False}),
        (1, {"source_end": False, "positions": {"interleaved": False, "first_position": 2}}),
        (1, {"gated": True, "activation": gelu_tanh, **T5}),
        (1, {"key_dim": 8, "num_decoder_layers": 1, **T5}),
    ],
    ids=[
        "greedy",
        "pre-norm",
        "as Marian",
        "two vocabularies",
        "without biases",
        "BART",
        "no end",
        "T5",
        "T5 of narrow heads",
    ],
)
def test_translations_are_ours(num_beams, options, tokenizer, tmp_path):
    pytest.importorskip("ctranslate2")
    ours = translator_of(tokenizer, num_beams, **options)
    path = convert.write(ours, "ctranslate2", tmp_path / "model")
    texts = demo_corpus(48, seed=3).sources
    if num_beams == 1:
        check_greedy(path, ours, texts)
        return
    pairs = zip(by_ctranslate2(path, ours, texts), ours.answer(texts)["translation"], strict=True)
    equal = [one == other.decode() for one, other in pairs]
    print(f"{sum(equal)} of {len(equal)} texts equal")
    assert all(equal)


def check_greedy(path, ours, texts):
    """Each token of the engine is the likeliest by our logits, which need no graph of a search."""
    import ctranslate2

    [file] = [*path.glob("shared_vocabulary.*"), *path.glob("target_vocabulary.*")]
    names = json.loads(file.read_text("utf-8"))
    longest = ours.settings.max_source_length - 1
    found = ctranslate2.Translator(str(path), device="cpu").translate_batch(
        [row[:longest] for row in pieces_of(ours.tokenizer, texts)],
        beam_size=1,
        max_decoding_length=longest,
        suppress_sequences=[[names[PAD_ID]], [names[START_ID]]],
    )
    targets = [[*map(names.index, result.hypotheses[0])] for result in found]
    sources = [[*row[:longest], END_ID] for row in ours.tokenizer.tokenize(texts).to_list()]
    inputs = {"source_ids": sources, "target_ids": [[START_ID, *row] for row in targets]}
    inputs = {name: tf.ragged.constant(rows).to_tensor() for name, rows in inputs.items()}
    logits = array(ours.model(inputs))
    logits[..., [PAD_ID, START_ID]] = -np.inf
    for row, target in zip(logits.argmax(-1).tolist(), targets, strict=True):
        assert row[: len(target)] == target
        assert len(target) == longest or row[len(target)] == END_ID
    assert len(set(map(tuple, targets))) > 6


def test_the_search_of_the_guide_gives_our_translations(tokenizer, tmp_path, monkeypatch, capsys):
    pytest.importorskip("ctranslate2")
    model = noisy(kt.translation(400, size="tiny", num_layers=2))
    given = Translator(model, tokenizer)
    convert.write(given, "ctranslate2", tmp_path / "converted" / "mine")
    monkeypatch.chdir(tmp_path)
    exec(search_of_the_guide(), names := {})
    assert capsys.readouterr().out.startswith("['")
    texts = demo_corpus(24, seed=3).sources
    for num_beams, penalty in ((1, 1.0), (4, 1.0), (4, 0.0)):
        search = BeamSearch(num_beams, 1, HuggingFaceScoring(penalty))
        settings = SearchSettings(search, max_source_length=64, max_target_length=20)
        ours = Translator(model, tokenizer, settings=settings)
        assert names["translations"](texts, num_beams, penalty, 19) == ours(texts)


def search_of_the_guide():
    blocks = re.findall(r'```python title="oracle"\n(.*?)```', GUIDE.read_text(), re.DOTALL)
    [block] = [block for block in blocks if "import ctranslate2" in block]
    return block


@pytest.mark.soak
def test_a_trained_model_translates_by_both_engines_alike(tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    keras.utils.set_random_seed(1)
    train, valid = demo_corpus(3000), demo_corpus(80, seed=9)
    tokenizer = kt.tokenizers.train_sentencepiece([*train.sources, *train.targets], 400)
    sides = (tokenize(side, tokenizer) for side in train)
    batches = TokenBatches(*sides, 2048, 64, 1)
    sizes = {"hidden_dim": 64, "intermediate_dim": 128, "num_heads": 4}
    model = kt.translation(400, size="tiny", num_layers=1, **sizes)
    model.compile(kt.Adam(2e-3), kt.TokenCrossentropy(0.1), clip_norm=1.0)
    model.fit(batches.dataset(0), steps_per_epoch=250, epochs=1, verbose=0)
    texts = list(valid.sources)
    ours = Translator(model, tokenizer)
    convert.write(ours, "ctranslate2", tmp_path / "converted" / "mine")
    monkeypatch.chdir(tmp_path)
    exec(search_of_the_guide(), names := {})
    for num_beams, scoring, penalty, least in (
        (1, "huggingface", 1.0, 1.0),
        (5, "huggingface", 0.6, 0.7),
        (5, "gnmt", 1.0, 0.7),
        (5, "gnmt_heuristic", 1.0, 0.7),
    ):
        search = BeamSearch(num_beams, 1, scoring_of(scoring, penalty))
        settings = SearchSettings(search, max_target_length=65)
        ours = Translator(model, tokenizer, settings=settings)
        found = names["translations"](texts, num_beams, power_penalty(search.scoring))
        share = np.mean([one == other for one, other in zip(found, ours(texts), strict=True)])
        print(f"{num_beams} beams, {scoring}: {share:.0%} of {len(texts)} equal")
        assert share >= least


LLAMAS = {
    "Llama": {
        "attention_arguments": {"num_key_value_heads": 2, "rotary": {"max_wavelength": 500.0}}
    },
    "Qwen2": {
        "attention_arguments": {
            "use_bias": True,
            "use_output_bias": False,
            "rotary": {"scaling": {"type": "linear", "factor": 2.0}},
        },
        "tie_output": False,
    },
    "Qwen3": {
        "attention_arguments": {"query_key_norm": 1e-6, "rotary": {}},
        "key_dim": 16,
        "norm_epsilon": 1e-6,
    },
}


@pytest.mark.usefixtures("checked_here")
@pytest.mark.parametrize(
    "kind",
    [
        "gpt2",
        *LLAMAS,
        *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("sines", "learned")),
    ],
)
def test_language_models_go_on_as_ours(kind, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    tokenizer = kt.tokenizers.train_byte_pairs(CORPUS.sources, 400)
    model = {
        "sines": lambda: kt.language_model(400, num_layers=2),
        "learned": lambda: kt.language_model(400, 64, num_layers=2, normalize_first=False),
        "gpt2": lambda: kt.gpt2(vocabulary_size=400, max_sequence_length=64, num_layers=2,
                                hidden_dim=48, num_heads=4),
        **{name: lambda: kt.language_model(400, num_layers=2, blocks="llama", **LLAMAS[kind])
           for name in LLAMAS},
    }[kind]()  # fmt: skip
    generator = Generator(
        noisy(model), tokenizer, kt.serving.SamplingSettings(context=64, max_tokens=9)
    )
    path = convert.write(generator, "ctranslate2", tmp_path / "model")
    engine = ctranslate2.Generator(str(path), device="cpu")
    texts = [text[:15] for text in demo_corpus(8, seed=3).sources]
    pieces = [tokenizer.pieces(row) for row in tokenizer.tokenize(texts).to_list()]
    control = [[piece] for piece in tokenizer.pieces(range(4))]
    found = engine.generate_batch(
        pieces, max_length=9, min_length=9, sampling_topk=1, include_prompt_in_result=False,
        suppress_sequences=control,
    )  # fmt: skip
    written = [result.sequences_ids[0] for result in found]
    given = tokenizer.tokenize(texts).to_list()
    rows = [[*before, *after] for before, after in zip(given, written, strict=True)]
    logits = array(model(tf.ragged.constant(rows).to_tensor()))[..., 4:]
    for before, after, row in zip(given, written, logits, strict=True):
        likeliest = 4 + row[len(before) - 1 : len(before) + 8].argmax(-1)
        assert likeliest.tolist() == after
    if kind == "gpt2":  # the others' graphs take long, and go on by the same code
        joined = [text.decode() for text in tokenizer.detokenize(written).numpy()]
        assert generator(texts, max_tokens=9, temperature=1e-6) == joined


def generator_of():
    tokenizer = kt.tokenizers.train_byte_pairs(CORPUS.sources, 400)
    settings = kt.serving.SamplingSettings(context=64, max_tokens=9)
    return Generator(noisy(kt.language_model(400, num_layers=2)), tokenizer, settings)


def changed(change):
    """What gives `write` the arrays of a model, each changed."""
    exact = module.arrays_of
    return lambda rows: {name: change(array) for name, array in exact(rows).items()}


def backwards(array):
    return np.ascontiguousarray(array[::-1])


@pytest.mark.usefixtures("checked_here")
@pytest.mark.parametrize("dtype", ["int8", "int16", "bfloat16", "float16"])
def test_smaller_weights_are_loaded_and_compared(dtype, tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    ours = translator_of(tokenizer)
    path = convert.write(ours, "ctranslate2", tmp_path / dtype, dtype=dtype)
    whole = convert.write(ours, "ctranslate2", tmp_path / "float32")
    sizes = [(folder / "model.bin").stat().st_size for folder in (path, whole)]
    assert sizes[0] < 0.6 * sizes[1]
    assert json.loads((path / "config.json").read_text())["add_source_eos"]
    monkeypatch.setattr(module, "arrays_of", changed(backwards))
    with pytest.raises(convert.ConversionError, match=f"log-probabilities of {dtype} differ by"):
        convert.write(ours, "ctranslate2", tmp_path / "spoiled", dtype=dtype)
    assert not (tmp_path / "spoiled").exists()


@pytest.mark.usefixtures("checked_here")
def test_a_language_model_in_int8_is_compared(tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    ours = generator_of()
    convert.write(ours, "ctranslate2", tmp_path / "model", dtype="int8")
    monkeypatch.setattr(module, "arrays_of", changed(backwards))
    with pytest.raises(
        convert.ConversionError, match=r"\d of how much texts differ: more than 0\.3"
    ):
        convert.write(ours, "ctranslate2", tmp_path / "spoiled", dtype="int8")


def test_a_folder_that_answers_otherwise_is_not_left_behind(tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    ours = translator_of(tokenizer)
    monkeypatch.setattr(module, "arrays_of", changed(lambda array: array * np.float32(1.01)))
    with pytest.raises(
        convert.ConversionError, match=r"Nothing was written.*log-probab.* differ by"
    ):
        convert.write(ours, "ctranslate2", tmp_path / "model")
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        convert.ConversionError, match=r"dtype must be float32 or int8 .*Received: 'int4'"
    ):
        convert.write(ours, "ctranslate2", tmp_path / "model", dtype="int4")
    with pytest.raises(convert.ConversionError, match=r"supports the activations .*Received: tanh"):
        convert.write(
            translator_of(tokenizer, activation="tanh"), "ctranslate2", tmp_path / "model"
        )
    with pytest.raises(convert.ConversionError, match=r"as wide as the model.*key_dim=8"):
        convert.write(translator_of(tokenizer, key_dim=8), "ctranslate2", tmp_path / "model")
