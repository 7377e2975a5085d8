"""Wide runs, which lie over many slices of time, and the merge that makes narrow ones of them."""
