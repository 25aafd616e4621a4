#!/usr/bin/env python3
"""make_synthetic.py - a GGUF file with the exact tensor shapes and types of a real model and random weights, in seconds.

The file is valid for any GGUF reader: metadata, a byte-level vocabulary that can encode any text, padded to the real
size with unused tokens, and weights of ordinary magnitude. It answers with noise; it is for measuring speed and memory.

    scripts/make_synthetic.py 14b Q4_0 /tmp/qwen14b-q4_0.gguf
    scripts/make_synthetic.py 70b Q4_0 /tmp/70b-headers.gguf --sparse    # holes for weights: for plans of any size
    scripts/make_synthetic.py --list

`30b-a3b` and `tiny-moe` are mixtures of experts, which genai does not run yet: for other engines, and for what comes.
Needs numpy. A type mix follows what quantisers write: Q4_0 and Q4_K_M keep the output matrix in Q6_K, Q4_K_M also half of
the value and down matrices.
"""
import argparse
import math
import struct
import sys
import typing

import numpy

GGUF_VERSION = 3
ALIGNMENT = 32
UINT32, FLOAT32, STRING, ARRAY, BOOL, INT32 = 4, 6, 8, 9, 7, 5
F32, Q4_0, Q8_0, Q4_K, Q6_K = 0, 2, 8, 12, 14
BLOCK = {F32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}
MIXES = ("Q4_0", "Q4_K_M", "Q8_0")
FILE_TYPE = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
POOL_BLOCKS_BYTES = 64 << 20
WEIGHT_STD = 0.02


class Shape(typing.NamedTuple):
    architecture: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    tied: bool  # the output matrix is the embedding
    bias: bool  # of the q, k and v products
    rope_base: float
    experts: int = 0
    experts_used: int = 0
    expert_width: int = 0


MODELS = {
    "tiny": Shape("qwen2", 256, 2, 4, 2, 64, 512, 1024, True, True, 1e6),
    "tiny-moe": Shape("qwen3moe", 256, 2, 8, 2, 64, 1024, 1024, False, False, 1e6, 8, 2, 256),
    "0.5b": Shape("qwen2", 896, 24, 14, 2, 64, 4864, 151936, True, True, 1e6),
    "7b": Shape("qwen2", 3584, 28, 28, 4, 128, 18944, 152064, False, True, 1e6),
    "14b": Shape("qwen2", 5120, 48, 40, 8, 128, 13824, 152064, False, True, 1e6),
    "32b": Shape("qwen2", 5120, 64, 40, 8, 128, 27648, 152064, False, True, 1e6),
    "70b": Shape("llama", 8192, 80, 64, 8, 128, 28672, 128256, False, False, 5e5),
    "30b-a3b": Shape("qwen3moe", 2048, 48, 32, 4, 128, 6144, 151936, False, False, 1e6, 128, 8, 768),
}


def text(value):
    data = value.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    head = text(key) + struct.pack("<I", kind)
    if kind == UINT32:
        return head + struct.pack("<I", value)
    if kind == FLOAT32:
        return head + struct.pack("<f", value)
    if kind == BOOL:
        return head + struct.pack("<?", value)
    return head + text(value)


def array_entry(key, kind, values):
    head = text(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
    if kind == STRING:
        return head + b"".join(text(value) for value in values)
    return head + numpy.asarray(values, dtype="<i4" if kind == INT32 else "<f4").tobytes()


def byte_letters():
    """The letters by which byte-level vocabularies write the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {}
    extra = 0
    for byte in range(256):
        if byte in printable:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + extra)
            extra += 1
    return [letters[byte] for byte in range(256)]


def vocabulary(size):
    tokens = byte_letters()
    merges = []
    for left, right in (("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("\u0120", "t"), ("\u0120", "a"), ("e", "r")):
        merges.append(left + " " + right)
        tokens.append(left + right)
    kinds = [1] * len(tokens)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    first_special = len(tokens)
    tokens += special
    kinds += [3] * len(special)
    while len(tokens) < size:
        tokens.append("[PAD%d]" % len(tokens))
        kinds.append(5)
    return tokens, kinds, merges, first_special


def metadata(name, mix):
    shape = MODELS[name]
    tokens, kinds, merges, first_special = vocabulary(shape.vocabulary)
    key = lambda suffix: shape.architecture + "." + suffix
    entries = [
        entry("general.architecture", STRING, shape.architecture),
        entry("general.name", STRING, "synthetic %s %s" % (name, mix)),
        entry("general.file_type", UINT32, FILE_TYPE[mix]),
        entry("general.quantization_version", UINT32, 2),
        entry(key("block_count"), UINT32, shape.layers),
        entry(key("context_length"), UINT32, 32768),
        entry(key("embedding_length"), UINT32, shape.width),
        entry(key("feed_forward_length"), UINT32, shape.feed_forward),
        entry(key("attention.head_count"), UINT32, shape.heads),
        entry(key("attention.head_count_kv"), UINT32, shape.kv_heads),
        entry(key("attention.key_length"), UINT32, shape.head_size),
        entry(key("attention.value_length"), UINT32, shape.head_size),
        entry(key("attention.layer_norm_rms_epsilon"), FLOAT32, 1e-6),
        entry(key("rope.freq_base"), FLOAT32, shape.rope_base),
        entry(key("rope.dimension_count"), UINT32, shape.head_size),
        entry(key("vocab_size"), UINT32, shape.vocabulary),
        entry("tokenizer.ggml.model", STRING, "gpt2"),
        entry("tokenizer.ggml.pre", STRING, "llama-bpe" if shape.architecture == "llama" else "qwen2"),
        array_entry("tokenizer.ggml.tokens", STRING, tokens),
        array_entry("tokenizer.ggml.token_type", INT32, kinds),
        array_entry("tokenizer.ggml.merges", STRING, merges),
        entry("tokenizer.ggml.bos_token_id", UINT32, first_special),
        entry("tokenizer.ggml.eos_token_id", UINT32, first_special + 2),
        entry("tokenizer.ggml.padding_token_id", UINT32, first_special),
        entry("tokenizer.ggml.add_bos_token", BOOL, False),
    ]
    if shape.experts:
        entries += [
            entry(key("expert_count"), UINT32, shape.experts),
            entry(key("expert_used_count"), UINT32, shape.experts_used),
            entry(key("expert_feed_forward_length"), UINT32, shape.expert_width),
        ]
    return entries


def tensors(name, mix):
    """(name, dimensions with the reduced one first, type) in file order."""
    shape = MODELS[name]
    width, layers = shape.width, shape.layers
    query_width, key_width = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    usable = lambda kind, cols: kind if cols % BLOCK[kind][0] == 0 else Q8_0
    base = {"Q4_0": Q4_0, "Q8_0": Q8_0, "Q4_K_M": Q4_K}[mix]
    output = Q8_0 if mix == "Q8_0" else Q6_K

    def bumped(layer):
        more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        return Q6_K if mix == "Q4_K_M" and more else base

    listed = []
    add = lambda tensor, dimensions, kind: listed.append((tensor, dimensions, usable(kind, dimensions[0])))
    add("token_embd.weight", (width, shape.vocabulary), output if shape.tied else base)
    for layer in range(layers):
        block = "blk.%d." % layer
        add(block + "attn_norm.weight", (width,), F32)
        for part, rows, kind in (("q", query_width, base), ("k", key_width, base), ("v", key_width, bumped(layer))):
            add(block + "attn_%s.weight" % part, (width, rows), kind)
            if shape.bias:
                add(block + "attn_%s.bias" % part, (rows,), F32)
        if shape.architecture == "qwen3moe":
            add(block + "attn_q_norm.weight", (shape.head_size,), F32)
            add(block + "attn_k_norm.weight", (shape.head_size,), F32)
        add(block + "attn_output.weight", (query_width, width), base)
        add(block + "ffn_norm.weight", (width,), F32)
        if shape.experts:
            add(block + "ffn_gate_inp.weight", (width, shape.experts), F32)
            add(block + "ffn_gate_exps.weight", (width, shape.expert_width, shape.experts), base)
            add(block + "ffn_up_exps.weight", (width, shape.expert_width, shape.experts), base)
            add(block + "ffn_down_exps.weight", (shape.expert_width, width, shape.experts), bumped(layer))
        else:
            add(block + "ffn_gate.weight", (width, shape.feed_forward), base)
            add(block + "ffn_up.weight", (width, shape.feed_forward), base)
            add(block + "ffn_down.weight", (shape.feed_forward, width), bumped(layer))
    add("output_norm.weight", (width,), F32)
    if not shape.tied:
        add("output.weight", (width, shape.vocabulary), output)
    return listed


def tensor_bytes(dimensions, kind):
    elements, size = BLOCK[kind]
    return math.prod(dimensions) // elements * size


def random_blocks(kind, random):
    """About 64 MB of blocks whose weights have the usual spread."""
    _, size = BLOCK[kind]
    count = POOL_BLOCKS_BYTES // size
    blocks = random.integers(0, 256, size=(count, size), dtype=numpy.uint8)

    def put_half(offset, mean):
        values = (mean * random.uniform(0.5, 1.5, size=count)).astype("<f2")
        blocks[:, offset : offset + 2] = values.view(numpy.uint8).reshape(count, 2)

    if kind == Q4_0:
        put_half(0, WEIGHT_STD / 4.6)
    elif kind == Q8_0:
        put_half(0, WEIGHT_STD / 73.0)
    elif kind == Q4_K:
        put_half(0, WEIGHT_STD / (4.6 * 36.0))
        put_half(2, 7.5 * WEIGHT_STD / (4.6 * 36.0))
    elif kind == Q6_K:
        put_half(208, WEIGHT_STD / (18.5 * 74.0))
    return memoryview(blocks.reshape(-1))


def write_tensor(file, name, dimensions, kind, pools, random):
    if kind == F32:
        low, high = (0.5, 1.5) if name.endswith("norm.weight") else (-0.1, 0.1)
        file.write(random.uniform(low, high, size=math.prod(dimensions)).astype("<f4").tobytes())
        return
    if kind not in pools:
        pools[kind] = random_blocks(kind, random)
    pool = pools[kind]
    size = BLOCK[kind][1]
    left = tensor_bytes(dimensions, kind)
    start = int(random.integers(0, len(pool) // size)) * size  # so that no two tensors are equal
    while left > 0:
        count = min(left, len(pool) - start)
        file.write(pool[start : start + count])
        left -= count
        start = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("type", nargs="?", choices=MIXES)
    parser.add_argument("output", nargs="?")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sparse", action="store_true", help="leave holes for the weights, which take no disk")
    parser.add_argument("--list", action="store_true", help="print sizes and write nothing")
    options = parser.parse_args()
    if options.list:
        for model in MODELS:
            sizes = ", ".join("%s %.2f GB" % (mix, sum(tensor_bytes(d, k) for _, d, k in tensors(model, mix)) / 1e9)
                              for mix in MIXES)
            print("%-8s %s" % (model, sizes))
        return 0
    if options.output is None:
        parser.error("a model, a type and an output file are needed")

    random = numpy.random.default_rng(options.seed)
    entries = metadata(options.model, options.type)
    listed = tensors(options.model, options.type)
    infos = b""
    offset = 0
    for name, dimensions, kind in listed:
        infos += text(name) + struct.pack("<I", len(dimensions)) + struct.pack("<%dQ" % len(dimensions), *dimensions)
        infos += struct.pack("<IQ", kind, offset)
        offset += -(-tensor_bytes(dimensions, kind) // ALIGNMENT) * ALIGNMENT
    header = b"GGUF" + struct.pack("<IQQ", GGUF_VERSION, len(listed), len(entries)) + b"".join(entries) + infos
    pools = {}
    with open(options.output, "wb", buffering=0) as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        if options.sparse:
            file.truncate(file.tell() + offset)
        else:
            for name, dimensions, kind in listed:
                write_tensor(file, name, dimensions, kind, pools, random)
                file.write(bytes(-tensor_bytes(dimensions, kind) % ALIGNMENT))
    print("%s: %d tensors, %.2f GB of weights" % (options.output, len(listed), offset / 1e9), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
