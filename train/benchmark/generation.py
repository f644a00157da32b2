"""What `train.benchmark --part generate` compares: GPT-2's shape, with random weights.

Our generator goes from text to text through its own signature, with the tokenizer; Hugging Face's
`generate` from ids to ids. Both take the most likely token each time, end no text early, and keep
keys and values.
"""

import numpy as np

from .engines import FIRST_WORD_ID, Engine, import_keras, import_torch

FEWEST_IDS = FIRST_WORD_ID + 256  # one for each byte


def ours_generation(new_tokens, workload):
    """Our `Generator` with a prompt of the size's length, through the signature `generate`."""
    tf, _ = import_keras(workload, decoding=True)
    generator, prompt = _our_generator(workload.size, new_tokens)
    inputs = {
        "prompt": tf.constant([prompt]),
        "max_tokens": tf.constant([new_tokens]),
        "temperature": tf.constant([0.0]),
        "top_k": tf.constant([0]),
        "top_p": tf.constant([1.0]),
        "seed": tf.constant([0]),
    }

    def unit():
        return float(generator.signatures["generate"](**inputs)["length"].numpy()[0])

    return Engine("keras_transformer, generate", unit, generator.model.count_params())


def ours_stream(new_tokens, workload):
    """The same with `Generator.stream`, which Python calls for each token."""
    import_keras(workload, decoding=True)
    generator, prompt = _our_generator(workload.size, new_tokens)

    def unit():
        for _ in generator.stream(prompt, new_tokens, top_k=1):
            pass
        return float(new_tokens)

    return Engine("keras_transformer, stream", unit, generator.model.count_params())


def ours_forward(workload):
    """One forward pass over the prompt, with all logits."""
    tf, _ = import_keras(workload)
    model = _our_model(workload.size)
    ids = tf.constant(prompt_ids(workload.size)[None])
    forward = tf.function(model.logits, autograph=False)

    def unit():
        return float(forward(ids).numpy()[0, -1, 0])

    return Engine("forward pass, keras_transformer", unit, model.count_params())


def huggingface_generation(new_tokens, workload):
    """`generate` of Hugging Face's GPT-2 in PyTorch, with its default cache, not compiled."""
    torch, device = import_torch(workload)
    import transformers

    size = workload.size
    config = transformers.GPT2Config(
        vocab_size=size.vocabulary_size, n_positions=_positions(size), n_embd=size.hidden_dim,
        n_inner=size.intermediate_dim, n_layer=size.num_layers, n_head=size.num_heads,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).to(device=device, dtype=torch.float32).eval()
    ids = torch.from_numpy(prompt_ids(size)[None]).long().to(device)
    count = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens}

    def unit():
        with torch.inference_mode():
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, use_cache=True, **count
            )
        return float(found.shape[1] - ids.shape[1])

    name = f"transformers {transformers.__version__}, generate"
    return Engine(name, unit, model.num_parameters())


def size_of(size):
    """The size with room for every byte in its vocabulary."""
    return size._replace(vocabulary_size=max(size.vocabulary_size, FEWEST_IDS))


def prompt_ids(size):
    """Random ids, (length,), those of small letters in our tokenizer."""
    letters = np.random.default_rng(0).integers(ord("a"), ord("z") + 1, size.length)
    return (letters + FIRST_WORD_ID).astype("int32")


def _positions(size):
    return 2 * size.length


def _our_model(size):
    import keras_transformer as kt

    return kt.gpt2("124M", size.vocabulary_size, _positions(size), dropout=0.0, **size.dimensions)


def _our_generator(size, new_tokens):
    """A `Generator`, and its prompt."""
    from keras_transformer.serving import Generator, SamplingSettings
    from keras_transformer.tokenizers import SymbolTokenizer

    settings = SamplingSettings(context=_positions(size), max_tokens=new_tokens)
    tokenizer = SymbolTokenizer()  # an id for each byte; the model's others stand for nothing
    prompt = "".join(chr(token_id - FIRST_WORD_ID) for token_id in prompt_ids(size))
    return Generator(_our_model(size), tokenizer, settings), prompt
