"""The operator's side: metrics, logs and the admin routes."""
