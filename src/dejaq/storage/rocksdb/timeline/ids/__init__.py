"""The entries of listed ids on disk: sorted columns of hashes, which name the run that an id arrived in."""
