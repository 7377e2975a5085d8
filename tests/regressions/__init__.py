"""Each test of a fixed defect must fail when the defect is brought back."""
