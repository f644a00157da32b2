"""Our models in CTranslate2, beside themselves."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import ctranslate2 as module
from keras_transformer.data import TokenBatches, tokenize
from keras_transformer.decoding import TokenRules
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.serving import Generator, SearchSettings, Translator
from tests.convert.drawn import CORPUS, noisy, translator_of
from train.demo.corpus import demo_corpus
from train.translation import main as translation

pytestmark = pytest.mark.oracle


T5 = {"scale_embedding": False, "use_bias": False, "normalization": "rms",
      "position_bias": {"type": "t5", "num_buckets": 8, "max_distance": 20}}  # fmt: skip


@pytest.mark.parametrize(
    ("num_beams", "options"),
    [
        (1, {}),
        (4, {"num_decoder_layers": 1}),
        (4, {"normalize_first": False, "activation": "silu", "positions": {"interleaved": False}}),
        (
            4,
            {
                "target_vocabulary_size": 410,
                "tie_output": False,
                "output_bias": True,
                "activation": "gelu",
            },
        ),
        (4, {"scale_embedding": False, "use_bias": False, "activation": gelu_tanh}),
        (2, {"max_sequence_length": 24, "embedding_norm": True, "normalize_first": False}),
        (2, {"source_end": False, "positions": {"interleaved": False, "first_position": 2}}),
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
    engine = convert.CTranslate2Engine(path, ours)
    texts = demo_corpus(48, seed=3).sources
    found, is_cut = engine.answer(texts)
    answer = ours.answer(texts)
    equal = [one == other.decode() for one, other in zip(found, answer["translation"], strict=True)]
    print(f"{sum(equal)} of {len(equal)} texts equal")
    assert all(equal)
    assert is_cut == answer["truncated"].tolist()


@pytest.mark.soak
def test_a_trained_model_translates_by_both_engines_alike(tmp_path):
    pytest.importorskip("ctranslate2")
    keras.utils.set_random_seed(1)
    train, valid = demo_corpus(3000), demo_corpus(150, seed=9)
    tokenizer = kt.tokenizers.train_sentencepiece([*train.sources, *train.targets], 400)
    sides = (tokenize(side, tokenizer) for side in train)
    batches = TokenBatches(*sides, 2048, 64, 1)
    sizes = {"hidden_dim": 64, "intermediate_dim": 128, "num_heads": 4}
    model = kt.translation(400, size="tiny", num_layers=1, **sizes)
    model.compile(kt.Adam(2e-3), kt.TokenCrossentropy(0.1), clip_norm=1.0)
    model.fit(batches.dataset(0), steps_per_epoch=300, epochs=1, verbose=0)
    texts, rules = list(valid.sources), TokenRules(3, min_length=4, suppress_tokens=[9])
    for settings, least in (
        (SearchSettings(1, token_rules=rules), 1.0),
        (SearchSettings(5, length_penalty=1.0), 0.7),
        (SearchSettings(5, length_penalty=1.0, scoring="gnmt_heuristic"), 0.7),
        (SearchSettings(5, length_penalty=0.6, scoring="huggingface"), 0.7),
    ):
        ours = Translator(model, tokenizer, settings=settings)
        path = convert.write(ours, "ctranslate2", tmp_path / settings.scoring)
        engine = convert.CTranslate2Engine(path, ours)
        pairs = zip(ours(texts), engine.answer(texts)[0], strict=True)
        share = np.mean([one == other for one, other in pairs])
        print(f"{settings.num_beams} beams, {settings.scoring}: {share:.0%} of {len(texts)} equal")
        assert share >= least
        assert ("close to the run's" in engine.differences()) == (
            settings.num_beams > 1 and not settings.as_hugging_face
        )
        shutil.rmtree(path)


HONOURED = {
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.5,
    "min_length": 4,
    "bad_words_ids": ((7, 8),),
    "suppress_tokens": (9,),
    "forced_bos_token_id": 5,
}
NAMED = {
    "begin_suppress_tokens": (9,),
    "min_new_tokens": 20,
    "renormalize_logits": True,
    "start_counts_as": 0,
    "forces_end": False,
}


def test_every_rule_is_honoured_or_named_as_a_difference():
    of_language_models = {"counts_as_end"}
    fields = {field.name for field in dataclasses.fields(TokenRules)}
    assert fields == HONOURED.keys() | NAMED.keys() | of_language_models
    engine = convert.CTranslate2Engine.__new__(convert.CTranslate2Engine)  # no folder is needed
    engine.settings = SearchSettings(1, token_rules=TokenRules(**HONOURED))
    assert engine.differences() == ""
    for name, value in NAMED.items():
        rules = TokenRules(**HONOURED | {name: value})
        engine.settings = SearchSettings(1, token_rules=rules)
        words = "translations that are always complete" if name == "forces_end" else f"no {name}"
        assert engine.differences() == words


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
    written = tokenizer.detokenize([result.sequences_ids[0] for result in found]).numpy()
    assert generator(texts, max_tokens=9, temperature=1e-6) == [text.decode() for text in written]


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


def test_a_run_is_translated_and_measured_by_the_engine(tmp_path, capsys, monkeypatch):
    pytest.importorskip("ctranslate2")
    import io

    for name, lines in zip(("a.en", "a.de"), demo_corpus(40), strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    files = ["--source", str(tmp_path / "a.en"), "--target", str(tmp_path / "a.de")]
    run = ["--run", str(tmp_path / "run")]
    # Of texts that a model can hardly tell apart, products of 8 bits can tell even less.
    sizes = ["--size", "tiny", "--vocabulary-size", "330", "--steps", "100", "--warmup-steps", "2"]
    sizes += ["--peak-rate", "0.01"]
    sizes += ["--max-length", "64", "--tokens-per-batch", "512", "--num-layers=1"]
    sizes += ["--hidden-dim=16", "--intermediate-dim=32", "--num-heads=2"]
    translation([*files, *run, *sizes])
    capsys.readouterr()
    printed = []
    for engine in ("tensorflow", "ctranslate2", "ctranslate2-int8"):
        translation(["evaluate", *files, *run, "--engine", engine, "--num-beams", "1"])
        printed.append(capsys.readouterr().out)
        assert printed[-1].startswith("BLEU: ")
    assert printed[0] == printed[1]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"A dog runs.\n\n")))
    translation(["translate", *run, "--engine", "ctranslate2", "--length-penalty", "0"])
    assert capsys.readouterr().out.count("\n") == 2
