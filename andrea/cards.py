"""NVIDIA cards as their maker describes them: what an estimate of time starts from.

Peak rates count dense products: data sheets that count sparse ones say twice as much. 16 bits means bf16 or fp16 summed in
float32, which GeForce cards do at half the rate that is advertised for fp16 sums: 512 operations a clock and multiprocessor.
Sources: data sheet "NVIDIA H200 Tensor Core GPU"; "NVIDIA Ampere GA102 GPU Architecture", appendix A (RTX 3090); "NVIDIA Ada GPU
Architecture", appendix A (RTX 4090). RTX 3060 and 4070: the same rates a multiprocessor, times 28 at 1.777 GHz and 46 at
2.475 GHz, and the memory of their product pages.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """`half`, `tf32`, `fp32`: 10^12 operations a second by type; `bandwidth` in 10^9 bytes a second; `memory` in GiB."""

    name: str
    half: float
    tf32: float
    fp32: float
    bandwidth: float
    memory: float


H200 = Card("H200", 989.4, 494.7, 66.9, 4800, 131)
CARDS = (
    H200,
    Card("RTX 4090", 165.2, 82.6, 82.6, 1008, 24),
    Card("RTX 3090", 71.2, 35.6, 35.6, 936, 24),
    Card("RTX 4070", 58.3, 29.1, 29.1, 504, 12),
    Card("RTX 3060", 25.5, 12.7, 12.7, 360, 12),
)
