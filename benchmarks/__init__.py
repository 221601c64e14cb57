"""Speed claims, as ratios measured in one run: run by hand, never by the tests."""
