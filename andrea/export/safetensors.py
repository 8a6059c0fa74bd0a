"""The safetensors format, as far as it is needed to write float32: a uint64 with the length of a JSON header, that header, the bytes.

The header maps a name to dtype, shape and place of its bytes, little-endian, one tensor behind the other without gaps.
Written here because it is that little. Format: https://github.com/huggingface/safetensors
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from andrea.engine.kernels import Array
from andrea.files import atomic_file

ALIGN = 8  # of the first tensor's bytes


def write(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write float32 arrays, atomically. StorageError when the disk refuses."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
    end = 0
    for name, array in tensors.items():
        start, end = end, end + 4 * array.size
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGN)
    with atomic_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array, "<f4").data)
