"""The endpoints of each model, and asyncio around its admission core."""
