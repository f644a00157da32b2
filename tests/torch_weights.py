"""Copies the weights of our layers into PyTorch's; both keep kernels as (out, in)."""

import numpy as np

from tests.reference import array, pair


def copy_attention(ours, theirs):
    if hasattr(ours, "query_key_value"):
        kernel, bias = (array(weight) for weight in pair(ours.query_key_value))
    else:
        kernel, bias = (
            np.concatenate([array(query), array(key_value)])
            for query, key_value in zip(pair(ours.query), pair(ours.key_value), strict=True)
        )
    _set(theirs.in_proj_weight, kernel)
    _set(theirs.in_proj_bias, bias)
    _copy_linear(ours.output_projection, theirs.out_proj)


def copy_encoder_block(ours, theirs):
    copy_attention(ours.self_attention, theirs.self_attn)
    _copy_feed_forward(ours.feed_forward, theirs)
    copy_norm(ours.around_self_attention.norm, theirs.norm1)
    copy_norm(ours.around_feed_forward.norm, theirs.norm2)


def copy_decoder_block(ours, theirs):
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_attention(ours.cross_attention, theirs.multihead_attn)
    _copy_feed_forward(ours.feed_forward, theirs)
    copy_norm(ours.around_self_attention.norm, theirs.norm1)
    copy_norm(ours.around_cross_attention.norm, theirs.norm2)
    copy_norm(ours.around_feed_forward.norm, theirs.norm3)


def copy_norm(ours, theirs):
    _set(theirs.weight, array(ours.gamma))
    _set(theirs.bias, array(ours.beta))


def _copy_feed_forward(ours, theirs):
    _copy_linear(ours.widen, theirs.linear1)
    _copy_linear(ours.narrow, theirs.linear2)


def _copy_linear(ours, theirs):
    kernel, bias = pair(ours)
    _set(theirs.weight, array(kernel))
    _set(theirs.bias, array(bias))


def _set(parameter, values):
    assert tuple(parameter.shape) == values.shape, "the same shape in both libraries"
    parameter.data.copy_(parameter.data.new_tensor(np.ascontiguousarray(values)))
