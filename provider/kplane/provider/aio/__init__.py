"""Small kits for asyncio: back-off, cancellation, running, turns."""
