"""The blocking client behind `dejaq.sync`; `scripts/generate_sync.py` writes all modules except
`portal` and `opening`.
"""
