"""What people and programs ask of the receiver: `better-compute api`.

One more method costs its entry in proto/bettercompute/control/v1 and a row in api.HANDLERS; the command line finds it by itself.
"""
