"""Owns how tablets get from replica to replica, each by itself: the stages, and the entry that begins it."""
