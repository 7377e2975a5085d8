"""Sessions and calls over WebSocket: frames, handshake, streams, and the client's transport."""
