"""The gated activation of a feed-forward block."""
