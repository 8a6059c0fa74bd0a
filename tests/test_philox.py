"""Counter-based random numbers: equal names give equal streams, other names give others."""

import numpy as np

from andrea.philox import generator


def test_streams_depend_on_every_part_of_the_name_and_on_nothing_else() -> None:
    """A stream that depended on earlier draws would make a resumed run differ."""
    first = generator(1, "window", 3).random(4)
    generator(1, "window", 3).random(100)
    assert np.array_equal(generator(1, "window", 3).random(4), first)
    others = [generator(2, "window", 3), generator(1, "sample", 3), generator(1, "window", 4), generator(1, "window")]
    assert all(not np.array_equal(g.random(4), first) for g in others)


def test_parts_do_not_run_into_each_other() -> None:
    """("a", "bc") and ("ab", "c") are different places."""
    assert generator(1, "a", "bc").random() != generator(1, "ab", "c").random()


def test_recorded_bits() -> None:
    """The stream of a given name is part of every run's record; a change would break every resume."""
    assert generator(1, "window", 0).integers(0, 2**32, 3).tolist() == RECORDED


RECORDED = [1288882638, 2810020366, 2183502070]
