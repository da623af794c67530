"""A page for browsers on the server's port: what the run does now, for whoever has the key.

``board`` gathers what there is to see, ``history`` keeps the curve, ``camera`` the newest image,
``routes`` answers requests; the rest is HTML, CSS and JavaScript. ``vendor`` has parts of others.
"""
