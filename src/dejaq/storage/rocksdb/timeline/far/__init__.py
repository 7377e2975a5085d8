"""Messages of the far future, by their ids: many of them in one call, without reading their runs into memory."""
