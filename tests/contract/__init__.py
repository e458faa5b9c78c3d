"""Both ends of a session in one test: bcd's machine and the gateway's, through both codecs."""
