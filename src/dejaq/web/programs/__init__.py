"""Programs in browsers: producers and consumers with leases over one WebSocket, without server code of their own."""
