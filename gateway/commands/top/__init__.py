"""`kvgate top`: the load of a running kvgate in a terminal, as it changes or once."""
