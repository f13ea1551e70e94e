"""Lists of exchanges that were just read: which names they lack."""

from proxy.topology.reading import LISTING_COUNTS, MOST_LISTINGS, RecentListings

X = ("/", "x")


def test_a_list_answers_for_every_name_that_it_lacks_while_it_is_new() -> None:
    listings = RecentListings()
    assert not listings.lacks(X, 0.0, 100.0)
    listings.note("/", frozenset({"y"}), 100.0)
    assert listings.lacks(X, 99.0, 100.0 + LISTING_COUNTS)
    assert not listings.lacks(X, 99.0, 100.1 + LISTING_COUNTS)
    assert not listings.lacks(("/", "y"), 99.0, 100.0)
    assert not listings.lacks(("v", "x"), 99.0, 100.0)
    # Declared since.
    assert not listings.lacks(X, 100.0, 100.0)
    assert not listings.lacks_vhost("/")


def test_a_virtual_host_that_does_not_show_lacks_every_exchange() -> None:
    listings = RecentListings()
    listings.note("/", None, 100.0)
    assert listings.lacks(X, 99.0, 100.0)
    assert listings.lacks_vhost("/")


def test_few_lists_are_kept_and_for_a_moment_only() -> None:
    listings = RecentListings()
    for n in range(MOST_LISTINGS + 1):
        listings.note(f"v{n}", frozenset(), 100.0)
    assert not listings.lacks(("v0", "x"), 0.0, 100.0)
    assert listings.lacks(("v1", "x"), 0.0, 100.0)
    listings.forget_old(100.1 + LISTING_COUNTS)
    assert not listings._listed
