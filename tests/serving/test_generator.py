import dataclasses
import json
import math
import subprocess
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import Sampling, TokenRules
from keras_transformer.models.decoder_only import language_model
from keras_transformer.models.gpt2_model import gpt2
from keras_transformer.serving import (
    Generator,
    SamplingSettings,
)
from keras_transformer.serving.control_ids import AfterControlIds
from keras_transformer.serving.generator import INCOMPLETE
from keras_transformer.serving.publishing import c_api
from keras_transformer.tokenizers import (
    BytePairTokenizer,
    SymbolTokenizer,
    train_byte_pairs,
    train_sentencepiece,
    train_word_pieces,
)
from tests.reference import array, fill

SETTINGS = SamplingSettings(context=13, max_tokens=5)


@pytest.fixture(scope="module")
def model():
    sizes = {"num_layers": 2, "hidden_dim": 12, "intermediate_dim": 7, "num_heads": 3}
    return fill(language_model(260, **sizes))


@pytest.fixture(scope="module")
def generator(model):
    return Generator(model, SymbolTokenizer(), SETTINGS)


def ask(generator, signature, **inputs):
    outputs = generator.signatures[signature](**{k: tf.constant(v) for k, v in inputs.items()})
    return {key: value.numpy() for key, value in outputs.items()}


def greedy(generator, prompts, lengths):
    rows = np.ones(len(prompts), "int32")
    return ask(
        generator,
        "generate",
        prompt=prompts,
        max_tokens=np.array(lengths, "int32"),
        temperature=0 * rows.astype("float32"),
        top_k=0 * rows,
        top_p=rows.astype("float32"),
        seed=rows,
    )


def test_the_best_token_is_written_as_by_the_whole_model(model, generator):
    answer = greedy(generator, ["to be", "or"], [4, 6])
    for row, (prompt, length) in enumerate((("to be", 4), ("or", 6))):
        ids = [byte + 4 for byte in prompt.encode()]
        for _ in range(length):
            scores = array(model(np.array([ids])))[0, -1]
            ids.append(int(scores[4:].argmax()) + 4)
        expected = SymbolTokenizer().detokenize([ids[-length:]]).numpy()[0]
        assert answer["continuation"][row] == expected
        assert answer["length"][row] == length and not answer["truncated"][row]


def test_a_prompt_is_continued_alone_as_in_a_batch(generator):
    prompts = ["to be or not to be", "", "or", b"\xff not"]
    together = ask(generator, "serving_default", prompt=prompts)
    assert together["truncated"].tolist() == [True, False, False, False]
    for row, prompt in enumerate(prompts):
        alone = ask(generator, "serving_default", prompt=[prompt])
        assert alone["continuation"][0] == together["continuation"][row]


def test_a_forced_first_token_is_forced_alone_as_in_a_batch(model):
    rules = TokenRules(forced_bos_token_id=ord("x") + 4)
    settings = SamplingSettings(13, 5, Sampling(token_rules=rules), start_id=2)
    forcing = Generator(model, SymbolTokenizer(), settings)
    together = forcing(["or", "", "to be"], temperature=1e-6)
    alone = [forcing([prompt], temperature=1e-6)[0] for prompt in ("or", "", "to be")]
    assert together == alone
    assert alone[1][0] == "x" and "".join(forcing.stream("", 5, temperature=1e-6)) == alone[1]


@pytest.mark.parametrize("start_id", [0, 3])
def test_a_start_that_pads_or_ends_texts_is_refused(start_id):
    with pytest.raises(ValueError, match=f"start_id must not be 0.*Received: start_id={start_id}"):
        SamplingSettings(13, 5, start_id=start_id)


def test_seeds_draw_different_texts(generator):
    rows = np.ones(7, "int32")
    answer = ask(
        generator,
        "generate",
        prompt=["to be"] * 7,
        max_tokens=5 * rows,
        temperature=rows.astype("float32"),
        top_k=0 * rows,
        top_p=rows.astype("float32"),
        seed=np.array([1, 2, 3, 4, 5, 6, 1], "int32"),
    )["continuation"]
    assert answer[0] == answer[6] and len(set(answer.tolist())) > 3


def test_a_second_stream_is_not_traced(model, monkeypatch):
    traced, step = [], model.step
    monkeypatch.setattr(
        type(model), "step", lambda self, *arguments: traced.append(1) or step(*arguments)
    )
    generator = Generator(model, SymbolTokenizer(), SETTINGS)
    first = list(generator.stream("to be", 9, seed=3))
    other = list(generator.stream("or", 4, temperature=0.5, top_k=3, top_p=0.9, seed=5))
    assert first and other and len(traced) == 1
    assert list(generator.stream("to be", 9, seed=3)) == first


@pytest.mark.parametrize(
    "prompt, length, expected", [("to be", 1, 1), ("to be", 3, 3), ("t", 1, 2)]
)
def test_each_new_token_takes_one_step(model, monkeypatch, prompt, length, expected):
    steps, step = [], model.step
    monkeypatch.setattr(
        type(model), "step", lambda self, *arguments: steps.append(1) or step(*arguments)
    )
    generator = Generator(model, SymbolTokenizer(), SETTINGS)
    tf.config.run_functions_eagerly(True)
    try:
        answer = greedy(generator, [prompt], [length])
    finally:
        tf.config.run_functions_eagerly(False)
    assert answer["length"] == length and len(steps) == expected


def test_a_score_is_the_log_likelihood_of_the_text(model, generator):
    texts = ["to be or not", "or", "x", "", "longer than the context is"]
    answer = ask(generator, "score", text=texts)
    for row, text in enumerate(texts):
        ids = [byte + 4 for byte in text.encode()][:14]
        nats = 0.0
        if len(ids) > 1:
            scores = array(model(np.array([ids[:-1]])))[0].astype("float64")
            for position, label in enumerate(ids[1:]):
                powers = np.exp(scores[position] - scores[position].max())
                nats -= math.log(powers[label] / powers.sum())
        np.testing.assert_allclose(answer["nats"][row], nats, rtol=1e-4, atol=1e-4)
        assert answer["length"][row] == max(0, len(ids) - 1)
        assert answer["truncated"][row] == (len(text) > 14)


@pytest.mark.slow
def test_an_export_answers_in_a_fresh_process(exported):
    generator, path = exported("generator")
    expected = ask(generator, "serving_default", prompt=["to be"])
    [answer] = c_api.ask(path, [{"inputs": {"prompt": ["to be"]}}])
    assert answer["outputs"]["continuation"] == [expected["continuation"][0].decode()]
    command, environment = c_api.bare_command(path, "--text", "to be")
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout) == answer, "a prompt is a text on the command line"


@pytest.mark.soak
def test_gpt2_is_served_with_its_own_ids_and_as_many(tmp_path):
    pytest.importorskip("tokenizers")
    text = "to be or not to be, that is the question! "
    bytes_only = train_byte_pairs([text], 270)
    bytes_only.save(tmp_path / "kept.json")
    kept = json.loads((tmp_path / "kept.json").read_text("utf-8"))
    pieces = sorted(kept["vocabulary"], key=kept["vocabulary"].get)[4:]
    pieces += [f"never{number}" for number in range(50_256 - len(pieces))]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, "<|endoftext|>"])}
    tokenizer = BytePairTokenizer(vocabulary, kept["merges"], first_id=4)
    sizes = {"num_layers": 1, "hidden_dim": 12, "num_heads": 3}
    model = fill(gpt2(vocabulary_size=len(vocabulary), max_sequence_length=13, **sizes))
    shifted = AfterControlIds(model)
    generator = Generator(shifted, tokenizer, SETTINGS)
    ids = [vocabulary["!"], vocabulary["t"]]  # "!" is 0 to GPT-2
    assert ids[0] == 0
    for _ in range(4):
        scores = array(model(np.array([ids])))[0, -1]
        ids.append(int(scores.argmax()))
    written = greedy(generator, ["!t"], [4])["continuation"][0]
    assert written == tokenizer.detokenize([[i + 4 for i in ids[2:]]]).numpy()[0]
    path = generator.export(tmp_path, "gpt2", ["to be", "!"])
    [answer] = c_api.ask(path, [{"inputs": {"prompt": ["to be"]}}])
    expected = ask(generator, "serving_default", prompt=["to be"])["continuation"][0]
    assert answer["outputs"]["continuation"] == [expected.decode()]


def test_an_export_draws_a_continuation_token_by_token(generator):
    module = generator.saved_module()
    for prompt, max_tokens in [("to be", 4), ("", 99), ("longer than the context is", 3)]:
        request = {
            "prompt": tf.constant([prompt]),
            "max_tokens": tf.constant([max_tokens]),
            "temperature": tf.constant([0.9]),
            "top_k": tf.constant([7]),
            "top_p": tf.constant([1.0]),
            "seed": tf.constant([-3]),
        }
        expected, lengths = generator.signatures["generate"](**request), []
        state = module.start_stream(**request)
        while state["goes_on"]:
            found, state = module.continue_stream(state)
            lengths.append(int(found["length"][0]))
        assert lengths == list(range(1, int(expected["length"][0]) + 1))
        for name, value in expected.items():
            assert found[name] == value, name


@pytest.mark.slow
def test_the_length_of_a_continuation_counts_what_was_drawn_with_its_end(model):
    rows = [SymbolTokenizer().tokenize([text]).to_list()[0] for text in ("to be", "or")]
    for row in rows:
        for _ in range(6):
            row.append(4 + int(array(model(np.array([row])))[0, -1, 4:].argmax()))
    drawn = rows[0][5:], rows[1][2:8]
    end = drawn[0][2]
    settings = dataclasses.replace(SETTINGS, sampling=Sampling(0.8, end_ids=(end,)))
    generator = Generator(model, SymbolTokenizer(), settings)
    expected = [([*ids, end].index(end) + 1) if end in ids else 6 for ids in drawn]
    answer = greedy(generator, ["to be", "or"], [6, 6])
    assert expected[0] < 6 and answer["length"].tolist() == expected
    module = generator.saved_module()
    numbers = [[6], [0.0], [0], [1.0], [0]]  # as of `greedy`
    state = module.start_stream(tf.constant(["to be"]), *map(tf.constant, numbers))
    lengths = []
    while state["goes_on"]:
        found, state = module.continue_stream(state)
        lengths += found["length"].numpy().tolist()
    assert lengths == list(range(1, expected[0] + 1)), "a stream counts on to the same number"


SENTENCES = ["the cat sat on the mat", "a dög ran €5 to 東京", "Ten cats, two dogs!"] * 3
TOKENIZERS = {
    "pieces": lambda: train_sentencepiece(SENTENCES, 310),
    "pieces of every character": lambda: train_sentencepiece(
        SENTENCES, 310, normalization="identity"
    ),
    "words": lambda: train_sentencepiece(SENTENCES, 17, "words"),
    "byte pairs": lambda: train_byte_pairs(SENTENCES, 290),
    "word pieces": lambda: train_word_pieces(SENTENCES, 60),
    "bytes": lambda: SymbolTokenizer(),
    "characters": lambda: SymbolTokenizer("".join(sorted(set("".join(SENTENCES))))),
}
CONTEXT = 12


def written_by_heart(tokenizer):
    """A generator whose token at each position is that of the script, and the script."""
    script, size = tf.Variable(tf.zeros([2 * CONTEXT], tf.int32)), tokenizer.vocabulary_size

    def prefill(token_ids, _, count, cache):
        return None, cache

    def step(token_ids, parents, position, cache):
        return 99 * tf.one_hot(token_ids * 0 + script[position + 1], size), cache

    functions = types.SimpleNamespace(
        weights=[], start_cache=lambda *_: (), step=step, prefill=prefill, logits=None
    )
    settings = SamplingSettings(CONTEXT, 5, Sampling(top_k=1), empty_prompt="the cat")
    return Generator(functions, tokenizer, settings), script


def check_continuations(name, count):
    """Prompts of words, characters and bytes: with what follows, they are the whole, decoded."""
    tokenizer, draw = TOKENIZERS[name](), np.random.default_rng(count)
    writer, script = written_by_heart(tokenizer)
    start, go_on = writer._start_stream, writer._continue_stream
    if hasattr(tokenizer, "processor") and tokenizer.processor:
        decode = tokenizer.processor.decode  # sentencepiece's own
    else:

        def decode(ids):
            return tokenizer.detokenize([ids]).numpy()[0].decode()

    least = 2 if name == "word pieces" else 4  # among its own are none that are never joined
    text = " ".join(SENTENCES).encode()
    for _ in range(count):
        first, size = draw.integers(len(text) - 40), draw.integers(1, 40)
        prompt = text[first : first + size]  # which may begin and end within a character
        if draw.random() < 0.5:
            prompt = prompt.decode(errors="ignore").encode()
        script.assign(draw.integers(least, tokenizer.vocabulary_size, 2 * CONTEXT))
        if draw.random() < 0.5:  # a text that was cut goes on as it did
            known = tokenizer.tokenize([text[max(first - 5, 0) :]])[0, :CONTEXT].numpy()
            script[: len(known)].assign(np.maximum(known, least))  # never drawn: unknown
        new = int(draw.integers(1, 6))
        ids = tokenizer.tokenize([prompt]).to_list()[0] or writer.empty_prompt_ids
        kept = ids[max(0, len(ids) - CONTEXT + new) :]
        whole = decode([*kept, *script[len(kept) : len(kept) + new].numpy().tolist()])
        answer = ask(
            writer, "generate", prompt=[prompt], max_tokens=[new], temperature=[0.0], top_k=[1],
            top_p=[1.0], seed=[0],
        )  # fmt: skip
        continuation = answer["continuation"][0].decode()
        before = decode(kept)
        while not whole.startswith(before) and before.endswith("\ufffd"):
            before = before[:-1]  # the beginning of a character that the first new tokens complete
        assert before + continuation == whole, (prompt, kept)
        try:
            prompt = prompt.decode()
        except UnicodeDecodeError:
            pass
        else:
            if len(ids) == len(kept):
                pieces = list(writer.stream(prompt, new))
                assert len(pieces) in (new, new + 1) and "".join(pieces) == continuation
        state = start(tf.constant([prompt]), *map(tf.constant, ([new], [0.0], [1], [1.0], [0])))
        while state["goes_on"]:
            found, state = go_on(state)
        assert found["continuation"].numpy()[0].decode() == continuation


def test_a_prompt_with_its_continuation_is_the_whole_decoded():
    check_continuations("pieces", 8)


@pytest.mark.soak
@pytest.mark.parametrize("name", TOKENIZERS)
def test_many_prompts_with_their_continuations_are_the_whole_decoded(name):
    check_continuations(name, 30)


def test_requests_of_unequal_rows_are_refused(generator):
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of rows"):
        greedy(generator, ["to be", "or"], [4])


@pytest.mark.parametrize("sizes", [(13, 13), (13, 0), (1, 1)])
def test_lengths_that_do_not_fit_the_context_are_refused(sizes):
    with pytest.raises(ValueError, match=r"context must be .* 2|max_tokens .* It must be below"):
        SamplingSettings(*sizes)


def test_a_wrong_byte_before_a_line_end_is_no_incomplete_character():
    assert INCOMPLETE.sub("", "a\ufffd\n") == "a\ufffd\n"
    assert INCOMPLETE.sub("", "a\ufffd\ufffd") == "a"
