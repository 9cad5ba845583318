"""Slates that keep their promises inside the engines people already run.

    menu.py          what can be written: a catalog in the words of a vocabulary, with columns of values, on disk
    plan.py          a policy made ready for a menu: checked, and begun for rows
    rows.py          where rows stand: advance, score, take, join
    transformers.py  a logits processor and a decoding loop for transformers, and the front door's `generate`

Policies of different kinds may stand in one batch: what differs between rows is numbers, not code.
"""
