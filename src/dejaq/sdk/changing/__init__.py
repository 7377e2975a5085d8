"""Changes to messages: by their owner, and in transactions."""
