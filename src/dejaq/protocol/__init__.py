"""The wire: generated code, columns to and from the domain, errors to and from the wire."""
