"""The producer: single sends become batches, and batches are sent again until they are answered."""
