"""Rights at the broker: what each call needs, the guard that asks the rules, and where the rules are kept."""
