"""What many runs have in common is made once."""

from calmix.data.reusing import reused, reusing


def test_outside_the_block_nothing_is_kept() -> None:
    made: list[int] = []
    for _ in range(2):
        reused("kind", "key", lambda: made.append(1))
    assert len(made) == 2


def test_inside_it_each_key_is_made_once() -> None:
    with reusing():
        first = reused("kind", 1, lambda: [1])
        assert reused("kind", 1, lambda: [2]) is first
        assert reused("kind", 2, lambda: [2]) == [2]
        assert reused("other", 1, lambda: [3]) == [3]
    with reusing():
        assert reused("kind", 1, lambda: [4]) == [4]


def test_a_block_inside_another_shares_with_it() -> None:
    with reusing():
        with reusing():
            first = reused("kind", 1, lambda: [1])
        assert reused("kind", 1, lambda: [2]) is first


def test_copies_may_be_changed() -> None:
    with reusing():
        reused("kind", 1, lambda: [1], copied=list).append(2)
        assert reused("kind", 1, lambda: [5], copied=list) == [1]


def test_what_was_not_used_for_long_is_let_go() -> None:
    with reusing():
        kept = [reused("kind", key, object) for key in range(30)]
        assert reused("kind", 29, object) is kept[29]
        assert reused("kind", 0, object) is not kept[0]
