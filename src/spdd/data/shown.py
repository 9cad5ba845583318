"""What logs of impressions say was done with what was shown. Names alone, so that a machine without polars knows them too."""

# What a person did, in the column `action` of a log for rankers of shelves; 0 is nothing.
ACTION = ("nothing", "watched", "watched long", "liked", "passed by", "opened", "viewed long")

# Whether what was shown was taken: 1 or 0, -1 where nothing was shown.
LABELS = ("is_click", "long_view")
