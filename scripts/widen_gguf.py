#!/usr/bin/env python3
"""widen_gguf.py - the same model with every weight widened to F32: the reference for what quantised arithmetic costs.

Products with float weights take float activations (engine/README.md), so the widened file computes the function of the
quantised one in fp32, and the two tell how far int8 activations are from it:

    scripts/widen_gguf.py model.gguf /tmp/model-f32.gguf
    build/genai perplexity -m model.gguf --reference /tmp/model-f32.gguf -f text.txt -c 1024

Needs the PyPI package `gguf` (0.19). The output takes four bytes a weight on disk and about as much memory here.
"""
import sys

import gguf
import numpy

FILE_TYPE_KEY = "general.file_type"


def widen(source, target):
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue  # the writer counts for itself
        value = int(gguf.LlamaFileType.ALL_F32) if key == FILE_TYPE_KEY else field.contents()
        writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32, copy=False)
        writer.add_tensor(tensor.name, weights.reshape([int(extent) for extent in reversed(tensor.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    if len(sys.argv) != 3:
        raise SystemExit("usage: scripts/widen_gguf.py QUANTISED.gguf WIDENED.gguf")
    widen(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
