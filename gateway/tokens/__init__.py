"""The token counts of a request's prompts, exactly as vLLM would count them."""
