"""The gateway `dejaq web`: pages, an HTTP API and live data, in front of any number of brokers."""
