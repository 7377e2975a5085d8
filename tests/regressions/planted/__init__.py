"""The planted bugs, one module for each part of the product."""
