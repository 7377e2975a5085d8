"""The broker's HTTP/1.1 endpoint: sessions and calls over WebSocket, health and metrics."""
