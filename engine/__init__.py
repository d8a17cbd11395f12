"""Everything about the vLLM processes behind the gateway: set up, launched, followed, restarted, diagnosed."""
