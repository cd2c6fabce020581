"""The subcommands of `holdfast`, one file a topic.

Heavy imports are inside the functions: a command starts fast.
"""
