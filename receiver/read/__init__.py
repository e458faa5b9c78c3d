"""What people and programs ask of the receiver: `better-compute api`. What changes something: receiver/operate.

One more method costs its entry in proto/bettercompute/control/v1, its answer in answers/, and a row in api.READS; the command
line finds it by itself.
"""
