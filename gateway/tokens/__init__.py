"""From a request to its exact prompt token counts, as vLLM would count them."""
