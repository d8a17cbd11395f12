"""One gateway, put together from its parts: endpoints, pools, the relay and the admin routes."""
