"""Rights: rules, and the decision that follows from them. Pure: no input, no output, no clock."""
