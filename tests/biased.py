"""A rule that is biased on purpose: tests of distributions must catch it."""

from domino.verification import accept


def always_keep_the_first(tables, flip):
    """Biased: one node is kept unseen, where there is one."""
    found = accept.traversal(tables, flip)
    if found.path or not tables.children[0]:
        return found
    node = tables.children[0][0]
    return accept.Verdict([node], tables.p[node + 1], tables.rest[node + 1])
