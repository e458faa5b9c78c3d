"""`better-compute`: what is asked, over what, and how answers look to a person. Part of the base install: no database."""
