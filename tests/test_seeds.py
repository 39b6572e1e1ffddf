"""Random numbers of different purposes never share a key."""

from itertools import pairwise

from fpa.seeds import Stream, derive

TRAINING = [Stream.ORDER, Stream.WORKERS, Stream.INITIAL, Stream.AUGMENT, Stream.DROPOUT]


def test_no_two_uses_share_a_key():
    """Trainings draw from (stream,) and (stream, epoch), evaluations from (image, stream)."""
    keys = [(stream,) for stream in TRAINING]
    keys += [(stream, epoch) for stream in TRAINING for epoch in range(300)]
    keys += [(image, stream) for stream in Stream if stream not in TRAINING for image in range(2000)]
    assert len({derive(0, *key) for key in keys}) == len(keys)


def test_streams_are_apart_for_any_epoch_and_any_image():
    others = sorted(set(Stream) - set(TRAINING))
    assert all(after > before for before, after in pairwise(others))
    assert min(others) > 2**32  # no training has as many epochs


def test_trainings_keep_their_numbers():
    assert [int(stream) for stream in TRAINING] == [1, 2, 3, 4, 5]
    assert derive(0, Stream.AUGMENT, 3) == 2131651786762809423
