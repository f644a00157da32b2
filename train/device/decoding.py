"""Decoding on JAX, compiled once, beside Hugging Face's Marian in PyTorch.

All decode random sources with random weights to exactly `OUTPUT_TOKENS` tokens. A unit of work is
one batch.
"""

import functools

import numpy as np

from ..benchmark.decoding import NUM_BEAMS, OUTPUT_TOKENS, sources
from ..benchmark.engines import Candidate, Engine, import_keras, import_torch
from .training import cost_of, peak_bytes

START_ID, END_ID = 2, 3


def decoding_candidates(workload):
    """Ours with beams and greedily, and Hugging Face's Marian likewise; ratios are to the first."""
    return [
        Candidate(f"{label}, {name}", functools.partial(build, beams), workload)
        for beams, name in ((NUM_BEAMS, f"beam {NUM_BEAMS}"), (1, "greedy"))
        for label, build in (("ours", jax_decoding), ("Hugging Face", huggingface_decoding))
    ]


def jax_decoding(num_beams, workload):
    """Our encoder, cache and search, one program from token ids to token ids."""
    _, keras = import_keras(workload)
    import jax

    from keras_transformer.decoding.search import beam_search
    from keras_transformer.models.encoder_decoder import translation

    size = workload.size
    model = translation(size.vocabulary_size, dtype=workload.dtype, **size.dimensions)
    source_ids = jax.device_put(sources(workload))

    def decode(weights, source_ids):
        # The weights are arguments: as constants, the compiler would copy them.
        with keras.StatelessScope(state_mapping=list(zip(model.variables, weights, strict=True))):
            encoded = model.encode(source_ids)
            return beam_search(
                functools.partial(model.step, encoded),
                model.start_cache(encoded, num_beams, OUTPUT_TOKENS),
                num_beams=num_beams,
                limits=np.full(len(source_ids), OUTPUT_TOKENS, "int32"),
                start_id=START_ID,
                end_id=END_ID,
                forbidden_ids=(0, START_ID, END_ID),  # no end before the limit
                capacity=OUTPUT_TOKENS,
            ).lengths

    weights = [variable.value for variable in model.variables]
    search = jax.jit(decode).lower(weights, source_ids).compile()

    def finish(lengths):
        return float(np.mean(lengths))

    def details():
        # Of one step: the compiler counts the body of a loop once.
        return {"temporary_bytes": cost_of(search)["temporary_bytes"], "peak_bytes": peak_bytes()}

    name = f"ours, {'greedy' if num_beams == 1 else f'beam {num_beams}'}, JAX {jax.__version__}"
    return Engine(name, lambda: search(weights, source_ids), model.count_params(), finish, details)


def huggingface_decoding(num_beams, workload):
    """`generate` of a Marian model of the same size, with the default cache, not compiled."""
    torch, device = import_torch(workload)
    import transformers

    size = workload.size
    settings = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", size.num_layers),
            ("ffn_dim", size.intermediate_dim),
            ("attention_heads", size.num_heads),
        )
    }
    config = transformers.MarianConfig(
        vocab_size=size.vocabulary_size, d_model=size.hidden_dim, pad_token_id=0,
        decoder_start_token_id=START_ID, eos_token_id=END_ID, forced_eos_token_id=None,
        activation_function="relu", **settings,
    )  # fmt: skip
    dtype = getattr(torch, workload.dtype)
    model = transformers.MarianMTModel(config).to(device=device, dtype=dtype).eval()
    source_ids = torch.from_numpy(sources(workload)).long().to(device)

    def unit():
        with torch.inference_mode():
            return model.generate(
                source_ids,
                num_beams=num_beams,
                do_sample=False,
                min_new_tokens=OUTPUT_TOKENS,
                max_new_tokens=OUTPUT_TOKENS,
            )

    def finish(token_ids):
        return float(token_ids.cpu().shape[1] - 1)

    kind = "greedy" if num_beams == 1 else f"beam {num_beams}"
    name = f"transformers {transformers.__version__} Marian, {kind}"
    return Engine(name, unit, model.num_parameters(), finish)
