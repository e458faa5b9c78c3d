"""What operators order through the API (SPEC B9): each method parses its request, calls a function of receiver/apply, and says
what to answer. All are audited: `api.write` stands in the transaction of what it tells.

One more method costs its entry in proto/bettercompute/control/v1, its function here, and a row in methods.WRITES.
"""
