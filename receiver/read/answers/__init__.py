"""Each method's answer (SPEC B9): a request and a connection in, the response message out; a file a noun.

What is read stands in receiver/read/queries*.py; how an answer looks to a person in receiver/client/views.py.
"""
