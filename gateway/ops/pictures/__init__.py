"""The picture of a gateway for `GET /kvgate/events`: now, its last 15 minutes, and what is wrong."""
