"""Limits of what clients send where its size alone would keep a node from everything else, of clocks, of what
a node tells its operators, of the processes that it starts, of what it keeps of its own store's state, and
of resets of the groups.

Invariant: each number is named once, with its reason; nothing here depends on anything.
"""

from __future__ import annotations

from typing import Final

#: Tokens of one statement that changes rows: read and planned beside the loop, which takes a core two
#: seconds. A map literal of 65,535 entries has 262,000, and clients send such.
STATEMENT_TOKENS_MAX: Final = 300_000
#: Tokens of any other statement: IN with as many values as a query may combine has 20,000.
PLAIN_STATEMENT_TOKENS_MAX: Final = 32_768
#: Characters of the text of such a statement.
PLAIN_STATEMENT_CHARACTERS_MAX: Final = 1024 * 1024
#: Columns of a table that CREATE TABLE makes: every change of its keyspace looks at all of them, some ten
#: microseconds each.
TABLE_COLUMNS_MAX: Final = 2_500
#: Fields of a type that CREATE TYPE makes, some hundred microseconds each.
USER_TYPE_FIELDS_MAX: Final = 400
#: Characters of a text that is read and planned on the loop, some 20 ms at worst; a longer one beside it.
STATEMENT_INLINE_CHARACTERS: Final = 8 * 1024
#: Bytes of values that are looked at on the loop: collections of some thousand entries, a few milliseconds.
VALUES_INLINE_BYTES: Final = 64 * 1024
#: Long statements that wait for the one that is planned; each may take two seconds.
PLANNED_ASIDE_QUEUED_MAX: Final = 64
#: Characters of a statement that are as much work as a statement more: some 300 tokens.
TEXT_CHARACTERS_A_STATEMENT: Final = 1024
#: Characters of the statements that a batch brings as text; the values of a batch are bound far lower.
BATCH_TEXT_CHARACTERS_MAX: Final = 256 * 1024
#: Bytes of the whole number that a varint or decimal is: 4,000 digits, as many as a literal may have. Work on
#: long numbers costs the square of their digits: a mebibyte would keep a node busy for minutes.
NUMBER_BYTES_MAX: Final = 1664
#: Entries of a collection that a client sends as one value: all are looked at and sorted in one go, which
#: takes a core one or two seconds. Twice what the protocol's first versions could count; appending goes on.
COLLECTION_ENTRIES_MAX: Final = 131_072
#: Characters of all prepared statements that a node keeps: 10,000 of usual length have a quarter of that.
#: What is planned of a text takes some 30 times its bytes.
PREPARED_CHARACTERS_MAX: Final = 8 * 1024 * 1024
#: An envelope of a client that has not begun a session: STARTUP and credentials take some hundred bytes.
HANDSHAKE_FRAME_BYTES_MAX: Final = 64 * 1024
#: How long a client may take to log in: a driver does it in its first messages, and who never does would hold
#: one of the connections that a node has for all.
LOGIN_MS_MAX: Final = 60_000
#: Bytes of rows in one page: the row that passes it is the page's last. Some milliseconds to merge and to
#: encode, and what one answer holds in memory.
PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
#: Bytes and rows of an answer that cannot be cut into pages: the client asked for none, or the rows must be
#: sorted. What is larger is refused, for it is held whole.
UNPAGED_BYTES_MAX: Final = 16 * 1024 * 1024
UNPAGED_ROWS_MAX: Final = 100_000
#: Bytes of answers that one CQL connection's client has not taken, above which none of its requests begin,
#: and as many again above which an answer that is ready becomes an error: eight large pages.
RESPONSE_BYTES_OWED_MAX: Final = 16 * 1024 * 1024
#: The same of all connections of a node. Above it the slowest clients lose their connections.
NODE_RESPONSE_BYTES_OWED_MAX: Final = 256 * 1024 * 1024
#: How often a node looks at the connections whose clients do not read.
RESPONSE_SWEEP_MS: Final = 500
#: How long a client may take nothing of its answers before its connection is closed; far longer than a pause
#: of a garbage collector, shorter than a person's look at a debugger.
CLIENT_STALLED_MS_MAX: Final = 30_000
#: How long it may leave answers waiting while the node owes too much in all.
CLIENT_SLOW_MS_MAX: Final = 2_000
#: Tables of which a node remembers how large their answers are; some hundred bytes each.
RESPONSE_SIZES_KEPT_MAX: Final = 1024
#: Values of all statements of a batch: they are decoded in one go, some 30 ms.
BATCH_VALUES_MAX: Final = 131_072
#: Statements of a batch that are looked up, or planned on the loop, in one go: some 10 ms.
BATCH_STATEMENTS_A_TURN: Final = 1000
#: Writes of one request that begin, or that one sync has made durable and that are acknowledged, before the
#: loop gets a turn: some 5 ms.
WRITES_A_TURN: Final = 500
#: Calls of functions that one callback of a node's loop makes for anything that a client sends: 20 to 50 ms.
#: Simulated nodes are held to it.
CALLBACK_CALLS_MAX: Final = 150_000
#: Rows, cells and bytes of a write of one partition, times the views of its table: a replica works out what
#: views make of them in the step in which it applies the write. Some 40 ms.
VIEWED_ROWS_MAX: Final = 1000
VIEWED_CELLS_MAX: Final = 16_384
VIEWED_BYTES_MAX: Final = 4 * 1024 * 1024
#: Rows made or encoded for one answer before the loop gets a turn: some 10 ms.
ROWS_A_TURN: Final = 2000
#: Cells of one row that is made on the loop: some 10 ms.
ROW_CELLS_INLINE: Final = 4096
#: Bytes of one row that is merged on the loop, and of fragments that are merged before it gets a turn: ten
#: thousand small cells, some 10 ms.
MERGED_BYTES_INLINE: Final = 256 * 1024
#: Failed logins that a node remembers of each kind (role at an address, address, role): a few megabytes.
LOGIN_FAILURES_KEPT_MAX: Final = 10_000
#: A login that would wait longer for its turn behind failed ones is refused: drivers give up by then.
LOGIN_WAIT_S_MAX: Final = 10.0
#: Requests of clients that a node works on at once: what it learns lies between these. The least keeps a node
#: of one core busy whatever it waits for; the most are as many as a coordinator's writes in flight.
ADMISSION_MIN: Final = 32
ADMISSION_START: Final = 256
ADMISSION_MAX: Final = 16_384
#: How long requests may be worked on while the loop is busy: enough to share syncs and socket writes, a small
#: part of what clients wait for.
ADMISSION_TARGET_MS: Final = 100
#: The loop's timer comes later than this on average: it always has work.
ADMISSION_BUSY_MS: Final = 5
#: What is learned is learned of such times: some loop turns of an overloaded node.
ADMISSION_WINDOW_MS: Final = 250
#: How often is looked at what waits and what is in flight.
ADMISSION_TICK_MS: Final = 20
#: How long requests may wait until they begin: half of a write's time; and while somebody always waits, so
#: that who is admitted is answered soon.
ADMISSION_PATIENCE_MS: Final = 1000
ADMISSION_STANDING_MS: Final = 500
#: How long batches may wait: as long as drivers do by default.
BATCH_PATIENCE_MS: Final = 10_000
#: Requests of one connection that were read and wait, and their bytes: as much as one read brings. Those in
#: the kernel wait unseen.
CQL_UNBEGUN_MAX: Final = 4096
CQL_UNBEGUN_BYTES_MAX: Final = 256 * 1024
#: By so much later than its sender gives it up a request of another node is dropped unread: what clocks may
#: drift while the fastest message is remembered.
EXPIRED_SLACK_MS: Final = 100


#: How far ahead of its clock a node reserves timestamps. After a crash it waits until they have passed, so
#: longer would keep it away; shorter would let a slow disk hold timestamps back.
STAMPS_RESERVED_US: Final = 2_000_000
#: With less than this reserved, more is: one small write to the disk in half a second at most.
STAMPS_RENEWED_BELOW_US: Final = 1_500_000
#: What is left of a reservation when the clock is at its end, until more is durable: as many timestamps.
STAMPS_KEPT_BACK_US: Final = 500_000
#: Longest wait for a timestamp that is not behind the clock: a few syncs of a disk that is busy.
STAMPS_CAUGHT_UP_MS: Final = 500
#: How far behind its clock a timestamp of a write may be, where the disk is slow: by more it would lose to
#: what other nodes wrote before, and followers of changes would have passed its time.
STAMPS_BEHIND_MAX_US: Final = 1_000_000
#: Pause before timestamps are reserved again after the disk refused.
STAMPS_RETRY_MS: Final = 500
#: Answers of one node from which its clock is known: the one with the shortest way of so many counts.
CLOCK_SAMPLES_MAX: Final = 8
#: Older ones say nothing: two clocks part by a few milliseconds a minute, and a dead node's may be set.
CLOCK_SAMPLE_AGE_S_MAX: Final = 60
#: Beyond that the wall clock of a node was set, and did not run.
CLOCK_STEP_US: Final = 50_000


#: A file of the node's log, and how many older ones stay beside it: a day or more of a busy node.
LOG_FILE_BYTES: Final = 20 * 1024 * 1024
LOG_FILES: Final = 10
#: The same of the audit file, whose lines are few.
AUDIT_FILE_BYTES: Final = 10 * 1024 * 1024
AUDIT_FILES: Final = 10
#: Of a request's path, body or a role's name, what a line of the audit file has.
AUDIT_TEXT_CHARACTERS_MAX: Final = 4096
#: Between two lines of the log that tell of the same kind of event: often enough to see that it goes on.
REPEATED_LOG_MS: Final = 60_000
#: Kinds of such events that are told apart: some for each of a cluster's nodes.
REPEATED_LOG_KINDS_MAX: Final = 1000
#: Latency histograms of one node: nine operations at eleven levels, of user and of system tables. Of each 18
#: series go to whoever scrapes, if requests of its kind were made.
LATENCY_SERIES_MAX: Final = 200
#: Of what a replica says of its failure, what a client is told.
CAUSE_CHARACTERS_MAX: Final = 200


#: One message to or from a worker: a thousand calls with values of 64 KiB.
WORKER_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
#: Worker processes of one node: user functions may take as much of the machine as two cores.
WORKERS_MAX: Final = 2
#: Messages that wait for a worker; with two workers and the default time the last may wait for minutes.
WORKER_QUEUE_MAX: Final = 256
#: What a worker may allocate, its interpreter's 40 MiB included.
WORKER_MEMORY_BYTES: Final = 256 * 1024 * 1024
#: Seconds of work after which a worker is replaced, and of processor time after which the kernel ends it.
WORKER_BUSY_S_MAX: Final = 300
WORKER_CPU_S_MAX: Final = 600
#: How long a new worker may take until it is confined and ready.
WORKER_START_S_MAX: Final = 20
#: Processes of one node that do its long work: two build files at once, one writing while the other reads.
HELPERS_MAX: Final = 2
#: For how long helpers without work are kept: a new one takes a tenth of a second to begin.
HELPER_IDLE_MS: Final = 10_000
#: How much later than the node's own work helpers get the processor: beside a process that is always busy a
#: tenth of it.
HELPER_NICENESS: Final = 10


#: Damaged table files that are kept by name: a disk that damages more is to be replaced, and each costs a
#: condition that all nodes hear of.
DAMAGED_FILES_MAX: Final = 64
#: One table file of a few hundred megabytes, read by a helper process that goes behind everything else.
SCRUB_FILE_TIMEOUT_MS: Final = 600_000
#: Applied metadata entries that are in the consensus journal and not in the metadata's own files yet: one
#: write of those files for so many, and what a start takes from the journal.
LOG_DEFERRED_ENTRIES_MAX: Final = 256
#: Bytes of their bodies.
LOG_DEFERRED_BYTES_MAX: Final = 1024 * 1024
#: They are written after so long even when they are few: not with each commit, and soon in two files.
LOG_DEFERRED_MS: Final = 1000
#: The last commit of a row waits so long for another write of the consensus journal to go with.
COMMIT_MARK_WAIT_MS: Final = 5
#: Ranges with the same replicas that one question is about: each replica judges all of them, some
#: microseconds each, in the step in which it takes the question.
SCAN_RANGES_MAX: Final = 64
#: Transitions that one entry has go on, each by itself: some 50 us to apply, and 20 bytes, each.
TRANSITIONS_ADVANCED_MAX: Final = 512
#: Orders for one node at once of transitions that move by themselves: it does few at a time, and each is
#: asked for again until it is done.
LONE_ORDERS_PER_NODE_MAX: Final = 16
#: Moves of tablets that one entry begins: each costs what a step of one does.
MOVES_BEGUN_MAX: Final = 512
#: Nodes have one shard each.
SHARDS_PER_NODE: Final = 1
#: Tablets of which one connection remembers what it was told, some 200 bytes each: of the newest that changed
#: since it began, or that lie elsewhere.
TABLETS_TOLD_MAX: Final = 4096
#: A ballot asks one more replica when its votes take longer than this: some rounds' time, also on a machine
#: that is busy, where more questions are what is needed least.
BALLOT_EXTRA_AFTER_MS: Final = 50
#: For how long ahead of its clock an acceptor reserves the times of promises that its disk does not have: one
#: write in half of it, and a restart that comes sooner waits for the rest.
BALLOTS_RESERVED_MS: Final = 500
#: States of acceptors that a replica has in memory, and how large one is at most: eight megabytes in all.
BALLOT_STATES_MAX: Final = 1024
BALLOT_STATE_BYTES_MAX: Final = 8192
#: Tables whose columns in the log of their changes a node keeps worked out: some 10 KiB each.
CAPTURED_TABLES_CACHED_MAX: Final = 256
#: Bulk loads that are under way at once: each holds space on its replicas, and waits for an entry.
LOADS_RUNNING_MAX: Final = 64
#: Loads that have ended and are remembered, newest last: asking again for one of them does nothing, and a
#: replica that was away as long as that many took does not take them in.
LOADS_ENDED_KEPT_MAX: Final = 256
#: Of the name that a job gives its load.
LOAD_JOB_CHARACTERS_MAX: Final = 128
#: Files of one load: what every replica is told when it commits, some hundred bytes each.
LOAD_FILES_MAX: Final = 20_000
#: Of one staged file: it is read as a whole for its digest, and sent anew when that is wrong.
LOAD_FILE_BYTES_MAX: Final = 512 * 1024 * 1024
#: What one message holds of a file: a turn of the loop each.
LOAD_PART_BYTES_MAX: Final = 1024 * 1024
#: Times that a file is fetched before its replica gives it up.
LOAD_FETCH_ATTEMPTS_MAX: Final = 3
#: Times that a commit is tried against placements that change under it.
LOAD_COMMIT_ATTEMPTS_MAX: Final = 8
#: How long a load lives without being renewed, unless its job wants something else.
LOAD_LEASE_MS: Final = 600_000
LOAD_LEASE_MS_MAX: Final = 86_400_000
#: Between two looks of the metadata leader for loads that nobody renews.
LOAD_LEASE_LOOK_S: Final = 5.0
#: What a replica has for the files of one message, and what a commit has for its entry.
LOAD_STAGE_TIMEOUT_MS: Final = 120_000
LOAD_SUBMIT_TIMEOUT_MS: Final = 20_000


#: Read sessions of one node: each keeps the files that were there when it was opened.
READ_SESSIONS_MAX: Final = 32
#: For how long a session lives without being read, unless its client says otherwise; and at most.
READ_SESSION_LEASE_MS: Final = 600_000
READ_SESSION_LEASE_MS_MAX: Final = 86_400_000
#: Where there are as many sessions as may be, one that was not read for so long makes room for another.
READ_SESSION_IDLE_MS: Final = 60_000
#: How often sessions whose lease has run out are looked for.
READ_SESSION_SWEEP_MS: Final = 1000
#: How long a process that answers readers waits for one that takes nothing, and is there for nobody else.
SESSION_SILENT_MS: Final = 30_000
#: Processes that answer readers, at most: as many as the machine has cores below that.
SESSION_READERS_MAX: Final = 16
#: Behind the node's own work, and before that of helpers: clients wait for it.
SESSION_READER_NICENESS: Final = 5
#: For how long they rest at most after a part in which they were interrupted: a part takes some milliseconds,
#: and a client waits.
SESSION_READER_REST_MS: Final = 50
#: A process that ended by itself is started again after so long.
SESSION_READER_PAUSE_MS: Final = 1000
#: Files of decoded columns at one node: each process that answers readers has all of them mapped.
COLUMN_FILES_MAX: Final = 4096
#: One that nobody has used for so long makes room for another: a table is often read by several jobs of one
#: pipeline, and one that is larger than the room would push out what its next reading begins with.
COLUMN_FILES_UNUSED_S: Final = 600
#: Of one request: keys are at most 64 KiB each, twice that as they are stored, and a request names some.
DOOR_REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
#: Connections that wait for a process.
SESSION_READERS_WAITING_MAX: Final = 512
#: How often a session is opened anew where placements changed meanwhile.
READ_SESSION_ATTEMPTS_MAX: Final = 3
#: Buckets that one question about a replica's content has: their digests are some tens of KiB.
AUDIT_BUCKETS_MAX: Final = 4096
#: Such questions that a node hashes for at once: one keeps as much of its loop busy as a repair may.
AUDIT_DIGESTS_AT_ONCE_MAX: Final = 1
#: Rows, bytes and partitions of one batch of a data job. One of one partition is not judged by size, and 128
#: rows cost a node's loop some 3 ms; of several, nodes warn above 10 partitions or 5 KiB.
SPARK_BATCH_ROWS_MAX: Final = 128
SPARK_BATCH_BYTES_MAX: Final = 4_500
SPARK_BATCH_PARTITIONS_MAX: Final = 10
#: Connections that one task writes over: as many nodes coordinate for it.
SPARK_WRITE_CONNECTIONS_MAX: Final = 8
#: Rows of a write that statements are sent for where a load could be made: they take as long as a load's two
#: entries and its files, some tenths of a second.
SMALL_WRITE_ROWS_MAX: Final = 4096
#: What one task of such a write hands to the driver in place of files: of 10,000 tasks, 640 MB at most.
CARRIED_ROWS_MAX: Final = 1024
CARRIED_BYTES_MAX: Final = 64 * 1024
#: Between the entry that gives a captured table other tablets, and the time from which on their streams
#: count. Twice the leeway of clocks, and as long as the news may take: mostly a second.
CDC_TABLETS_AHEAD_MS: Final = 15_000
#: As long later they count where the news takes longer, because a replica is down: so often there is an entry
#: until it is back, and as long the table is not balanced after that at the most.
CDC_TABLETS_POSTPONED_MS: Final = 60_000
#: As much later a generation of the ring counts while a node that is down does not know it: an entry every
#: four minutes, and as long the new ranges share streams after that at the most.
CDC_POSTPONED_MS: Final = 300_000
#: Sets of streams kept of one table, with sixteen bytes a tablet each: so often its tablets become others
#: while its log has rows of the oldest. A table that has doubled from one tablet to the most has had 14.
STREAM_SETS_KEPT_MAX: Final = 64

#: Ids that a cluster had: each but the first is a disaster, and greetings carry each of them.
LINEAGE_MAX: Final = 64
#: Bytes of the entries that a reset of the groups brings to every participant: what the freshest log has
#: beyond what was applied. Raft refuses proposals while more than this waits for its commit.
RECOVERY_TAIL_BYTES_MAX: Final = 16 * 1024 * 1024
#: Epochs before a reset whose hashes nodes are told that were away: who stopped earlier comes as a new one.
RECOVERY_HASHES_TOLD: Final = 512
#: Nodes that are asked at once what is left of a cluster.
RECOVERY_ASKED_AT_ONCE_MAX: Final = 64
#: Content that one answer sums up for an aggregate, and rows of it that one read does: about a tenth of what
#: a node gets through within the time that a read has.
TOLD_BYTES_MAX: Final = 32 * 1024 * 1024
TOLD_ROWS_MAX: Final = 100_000
#: The audit of repairs at one node: tens of thousands of steps, and repairs are rare.
RECOVERY_AUDIT_BYTES_MAX: Final = 16 * 1024 * 1024
#: Characters that one record tells beside who, when and what.
RECOVERY_AUDIT_TEXT_MAX: Final = 2048
#: Records that one answer has, the newest: at most 2 MiB.
RECOVERY_AUDIT_TOLD_MAX: Final = 1000
#: The compressed metadata in a plan that replaces them: with its text form, what one admin request takes.
RECOVERY_VALUE_BYTES_MAX: Final = 512 * 1024
#: Entries of what a repair takes out that a node tells who plans it, and bytes of their bodies: with that of
#: a hundred nodes, what one admin request takes.
RECOVERY_SHOWN_ENTRIES_MAX: Final = 20
RECOVERY_SHOWN_BYTES_MAX: Final = 4096
#: Of the node that plans it, for people.
RECOVERY_LISTED_ENTRIES_MAX: Final = 1000
#: Hosts that a truncated log of the management group let in or shut out and no metadata names: newcomers that
#: came just then. More is a log that nobody followed, and the entry that tells of them stays small.
MANAGEMENT_KEPT_MAX: Final = 1000
#: Records of a node's ring file before it is written anew: some hundred changes, and what it holds is read at
#: each start.
RING_RECORDS_MAX: Final = 256
#: What waits for a node's member of the ring: messages beyond it are lost, as a network may lose them.
RING_INBOX_MAX: Final = 1024
#: Changes of the metadata that wait to be agreed on at one node; each takes some milliseconds.
RING_SUBMISSIONS_MAX: Final = 256
#: What a node remembers for people of its proposals that ended, and of contradictions that it saw.
RING_REMEMBERED_MAX: Final = 16
#: Ids of mutations that a node lists by partition while replicas lack them, at some 250 bytes each: beyond,
#: reads of the range that has the most look at all of its ids, and are as right.
JOURNAL_PLACES_MAX: Final = 100_000
#: Ids that may stay listed once all replicas have them, beside as many as are still lacking: one walk over
#: the list lets go of many.
JOURNAL_PLACES_SPARE: Final = 256
#: Entries of the journal that one batch lets go of, or one step reads: well below a batch's operations.
JOURNAL_RECORDS_A_BATCH: Final = 512
#: Entries of the journal in one answer to a replica that lacks them; one that is larger comes alone.
JOURNAL_PULL_BYTES: Final = 1024 * 1024
#: Answers that a replica takes from another one in a row: the rest comes with the next round.
JOURNAL_PULLS_MAX: Final = 64
#: Between two rounds in which a replica asks the others what they hold of tracked ranges.
RECONCILE_INTERVAL_MS: Final = 1000
#: A replica that said something within so many rounds is heard of in the next one too.
RECONCILE_HEARD_ROUNDS: Final = 3
#: A replica that is to ask, and has not asked for so many rounds, is asked: more than one, for rounds of two
#: nodes are not in step; less than two, so that a question that is lost delays no mutation by more.
RECONCILE_UNASKED_ROUNDS: Final = 1.5
#: So many rounds apart each replica asks each other one: what was told in answers of one round is of a known
#: moment, and what may be purged follows that.
RECONCILE_MUTUAL_EVERY: Final = 5
#: So many rounds apart all ranges are asked about, for what they hold may be purged.
RECONCILE_ALL_EVERY: Final = 60
#: For so long after somebody looked on what is reconciled of a table, ranges of it that nobody writes to are
#: asked about as well: who follows its changes looks every few seconds.
RECONCILE_FOLLOWED_S: Final = 60.0
#: Rounds over which it is told how fast a replica gets what it lacks: half a minute.
RECONCILE_RATE_ROUNDS: Final = 30
#: Leaves of tables that who was away compares in one question: some 4 MiB are read for the answer.
COHORT_LEAVES_AT_ONCE: Final = 64
#: Rows that who was away takes in one step: a thousand, as a repair takes, hold up requests of both nodes for
#: tens of milliseconds, a hundred for some.
COHORT_PAGE_ROWS: Final = 100
#: How often who was away compares a range with one holder before it does so in a later round.
COHORT_PASSES_MAX: Final = 4
#: A journal above this is told as large: a hundredth of a small disk, and minutes of catching up.
JOURNAL_LARGE_BYTES: Final = 1024 * 1024 * 1024
#: The part of what a node may keep as a witness at which that is told: half of the outage is left to act.
WITNESS_JOURNAL_TOLD: Final = 0.5
#: A replica that lacks a mutation for so long is told as lagging: rounds come each second.
REPLICA_LAGS_S: Final = 600
#: Rounds for which a node tells what it holds of a range that is tracked no more and all reconciled: who has
#: something open asks in each, so it hears of the others' before they forget.
RECONCILE_ENDING_ROUNDS: Final = 10
#: Ranges in one message of a round: some tens of bytes each while nothing lacks.
RECONCILE_SHARDS_A_MESSAGE: Final = 256
#: Ranges of a round that are looked at before requests have a turn: a millisecond, where all were written to.
RECONCILE_SHARDS_A_TURN: Final = 8
#: Clocks of nodes, and a write that is under way, are no further behind than this.
RECONCILE_PURGE_MARGIN_S: Final = 60
#: Gaps between the numbers of a peer's requests that came: each is a request that was never sent, or that a
#: later one overtook; the oldest is closed when there are more.
NUMBERS_APART_MAX: Final = 1024
#: Between two looks of a repair at what participants lack of tracked ranges: they bring it in rounds of twice
#: that.
REPAIR_IDS_LOOK_MS: Final = 500
#: Questions for ids that one node has under way for its repairs: each is answered within milliseconds.
REPAIR_IDS_AT_ONCE: Final = 8
#: A repair gives a range up to which nothing came for so long: whoever keeps it may refuse more, or be full.
REPAIR_IDS_STALLED_S: Final = 600
#: Parts of partitions that differ and are judged in one go, after one wait: some megabytes at most.
REPAIR_SUSPECTS_MAX: Final = 512
#: Partitions whose data and ids disagree that one repair names; all are counted, and mended.
REPAIR_DISAGREEMENTS_NAMED_MAX: Final = 64
#: Ranges of a repair of which it is told how many ids participants still lack, the ones with most first.
REPAIR_WAITS_NAMED_MAX: Final = 64
#: Ids of one message of an audit of journals: hashing their entries holds the loop for some milliseconds,
AUDIT_IDS_A_MESSAGE: Final = 256
#: or fewer, where entries are large.
AUDIT_ENTRIES_BYTES: Final = 1024 * 1024
#: Entries that one audit compares: some seconds, so that whoever asks for it waits for the answer.
AUDIT_IDS_MAX: Final = 100_000
#: Ids that it names: where more differ, a whole replica is to be compared.
AUDIT_DIFFERING_MAX: Final = 1_000
AUDIT_TIMEOUT_MS: Final = 2_000

#: Bytes that a tablet is to have: a move of one takes seconds, and a node of terabytes has hundreds.
TARGET_TABLET_BYTES: Final = 5 << 30
#: How long requests in flight may take once a node goes on in another cluster, or with other metadata: reads
#: and writes end in milliseconds, and a change of the metadata waits for a majority that is gone.
DRAIN_BY_RESTART_MS: Final = 500
