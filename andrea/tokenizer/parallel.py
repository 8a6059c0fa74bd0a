"""Encoding by worker processes, in order, with a bounded number of batches on the way.

Workers are spawned, not forked: the parent may hold threads of BLAS or of a progress display, which a fork would copy
in the middle of what they do. A script that encodes with several processes needs the usual
`if __name__ == "__main__":`. Workers end with their parent, even when it is killed, and leave Ctrl-C to it.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice

from andrea.errors import RunError
from andrea.tokenizer.encoders import Batch, Encoder, make_encoder
from andrea.tokenizer.exported import Learned

BATCH_BYTES = 1 << 20
_FEW = 4  # batches that are encoded sooner than workers start

_encoder: Encoder | None = None  # of a worker process


def encode_batches(
    learned: Learned, encode: Encoder, documents: Iterable[bytes], processes: int, bos: bool
) -> Iterator[Batch]:
    """Encode `documents` in batches of about BATCH_BYTES, here (by `encode`) or in `processes` workers.

    Raises RunError when a worker dies.
    """
    batches = _batches(documents)
    first = list(islice(batches, _FEW))
    if processes > 1 and len(first) == _FEW:
        yield from _by_workers(learned, chain(first, batches), processes, bos)
        return
    for batch in chain(first, batches):
        yield encode(batch, bos)


def _batches(documents: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _by_workers(learned: Learned, batches: Iterator[list[bytes]], processes: int, bos: bool) -> Iterator[Batch]:
    context = multiprocessing.get_context("spawn")
    processes = min(processes, 4 * (os.cpu_count() or 1))  # all of them start at once, each with a tokenizer
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start, initargs=(learned,))
    waiting: deque[Future[Batch]] = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(_encode, batch, bos))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as cause:
        raise RunError(
            "the processes that encode must stay alive",
            got="one was killed, most often for memory",
            fix="run again with fewer threads (--cores), or free some memory",
        ) from cause
    finally:
        pool.shutdown(cancel_futures=True)


def _start(learned: Learned) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread a worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder = make_encoder(learned)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(documents: Sequence[bytes], bos: bool) -> Batch:
    assert _encoder is not None
    return _encoder(documents, bos)
