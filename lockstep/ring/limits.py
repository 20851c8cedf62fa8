"""The bounds of the ring, each named once with its reason."""

from __future__ import annotations

from typing import Final

#: Entries of a ring, members and tombstones: a thousand members, and nine times as many that left.
RING_ENTRIES_MAX: Final = 10_000
#: Tokens of all its members, owned and to be owned: with the entries 8 MiB, so a ring goes in one message.
RING_TOKENS_MAX: Final = 500_000
#: Characters of a member's, a data centre's or a rack's name.
RING_NAME_CHARACTERS_MAX: Final = 64
#: Members that one change may concern: a data centre that leaves, and its message is small.
RING_CHANGES_MAX: Final = 256
#: A member asks so often again for an answer that did not come; a message takes some tens of milliseconds.
RING_RETRY_MS: Final = 500
#: A proposal is given up after so long: twenty repetitions, so that loss alone ends none.
RING_PROPOSAL_MS: Final = 10_000
#: An acceptor asks so often what became of a proposal that it promised; the answer is one small message.
RING_ASK_MS: Final = 2_000
#: Proposals that were aborted, of which a late copy is refused; the oldest goes, and costs one more question.
RING_DEAD_MAX: Final = 256
#: What an initiator whose ballot was too low waits, times its place among the members and the attempt, and at
#: most: two do not meet again, and the last of a thousand members tries within the time of a proposal.
RING_BACKOFF_MS: Final = 50
RING_BACKOFF_MS_MAX: Final = 2_000
#: Between two rounds of gossip, and while a proposal is pending.
RING_GOSSIP_MS: Final = 1_000
RING_GOSSIP_PENDING_MS: Final = 250
#: Messages a second that a seed gets of members that wait for a decision; a node answers thousands of
#: requests.
RING_SEED_ASKED_PER_S_MAX: Final = 200
#: Seeds that an initiator tells at once of what was agreed; others hear from them.
RING_SEEDS_TOLD_MAX: Final = 16
#: The newest agreed changes that a member keeps to bring others up; who lacks more gets the ring.
RING_DELTAS_KEPT: Final = 64
#: Messages that one step of a member makes: a round with its peers, or all members and the seeds.
RING_MESSAGES_MAX: Final = RING_ENTRIES_MAX + 2 * RING_SEEDS_TOLD_MAX
