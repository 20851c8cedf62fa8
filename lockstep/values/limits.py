"""Every bound of the system, named once, with the reason for the number."""

from __future__ import annotations

from typing import Final

#: One internode frame. A mutation of 16 MiB (Cassandra's default commit log segment half) fits
#: with its envelope; a longer length prefix is garbage or an attack.
INTERNODE_FRAME_BYTES_MAX: Final = 17 * 1024 * 1024
#: One CQL envelope, as Cassandra's native_transport_max_frame_size default.
CQL_FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
#: A value larger than this would not fit an internode frame together with its mutation.
MUTATION_BYTES_MAX: Final = 16 * 1024 * 1024
#: Requests in flight from one internode peer; above it the sender waits. 4096 requests of 1 KiB are 4 MiB.
PEER_REQUESTS_IN_FLIGHT_MAX: Final = 4096
#: CQL requests in flight on one connection. The protocol's stream ids end at 32768; drivers use at most that.
CQL_REQUESTS_IN_FLIGHT_MAX: Final = 32768
#: Rows in one prebuilt storage batch: 2,000 rows block the loop for 0.75 ms, 20,000 for 15 ms.
STORE_BATCH_ROWS_MAX: Final = 2000
#: Operations staged for one write of the store: two thousand are written in 2 ms, which a request may wait.
STORE_STAGED_OPERATIONS_MAX: Final = 2000
#: Bytes staged for one write of the store; small against its write buffer, so that both fill evenly.
STORE_STAGED_BYTES_MAX: Final = 1024 * 1024
#: Metadata entries one fetch returns; a longer gap is fetched in several rounds.
LOG_FETCH_ENTRIES_MAX: Final = 256
#: Bytes of entries' bodies in one fetch or one local batch (one entry goes even when larger): with the
#: envelope it stays below an internode frame and below a journal record.
LOG_FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
#: Bytes of one metadata entry's body. A schema statement is far below; a runaway body is refused.
ENTRY_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
#: Recent entry ids kept in the metadata so that a retried submission finds its first outcome.
RECENT_ENTRY_IDS_MAX: Final = 4096
#: Partitions one read repairs at once; a scan over a newcomer's ranges differs in every partition.
REPAIRS_AT_ONCE_MAX: Final = 128
#: Bytes of changes that wait for the disk of a local metadata service before more are refused.
LOCAL_PENDING_BYTES_MAX: Final = 16 * 1024 * 1024
#: Submissions that a test may hold back at one node.
GATE_HELD_MAX: Final = 10_000
#: Entries before its snapshot that a consensus group keeps for members that lag: a restart takes less.
RAFT_KEPT_ENTRIES: Final = 1000
#: Bytes of those entries; a member that lags by more takes the snapshot.
RAFT_KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
#: Bytes of entries in one record when a consensus journal is written anew; bounds what is encoded at once.
RAFT_RECORD_BYTES: Final = 1024 * 1024
#: Snapshot entries whose place in the consensus log is noted until their file is stored; it takes seconds.
RAFT_SNAPSHOTS_NOTED_MAX: Final = 16
#: Refused submissions a leader remembers in its term; a doubled frame arrives long before so many others.
REFUSED_IDS_MAX: Final = 4096
#: Tokens one node may own. More only slows placement down; Cassandra advises 16.
TOKENS_PER_NODE_MAX: Final = 1536
#: Plans made for one request at once; each needs a newer epoch, so three is already rare. After so many a
#: request that still changes plans pauses before each, until its deadline.
REQUEST_PLANS_MAX: Final = 8
#: Bytes of fragments in one record of a checkpoint of the model store; far below the largest record.
CHECKPOINT_PORTION_BYTES: Final = 256 * 1024
#: Prepared statements kept by a node (least recently used goes first).
PREPARED_STATEMENTS_MAX: Final = 10_000
#: Rows that one page may hold whatever the client asks: some 30 ms to encode.
PAGE_ROWS_MAX: Final = 20_000
#: Rows when the client names no page size, as in the drivers.
PAGE_ROWS_DEFAULT: Final = 5000
#: Rows of a virtual table that are made in one go: the loop stands still meanwhile, some tens of us each.
VIRTUAL_ROWS_AT_ONCE_MAX: Final = 256
#: Sets of table options of which the serialised form is kept for `system_schema.tables`, some 2 KB each.
TABLE_OPTIONS_KEPT_MAX: Final = 256
#: Tables whose content is dropped with one sync, while the loop stands still for some us each.
TABLES_DROPPED_AT_ONCE_MAX: Final = 256
#: Fragments that one row may gather before a read asks for their merge in the background.
ROW_FRAGMENTS_MERGE_AT: Final = 8
#: Nodes of one cluster: ids are 16 bits in mutation ids' high half and on the wire.
NODES_MAX: Final = 65_535
#: Features that are ever enabled: names in the metadata, each for a change of how nodes work together.
FEATURES_MAX: Final = 1000
#: Attempts to join of one start of a node (years of them), so that the attempts of a later start are larger.
JOIN_ATTEMPTS_PER_START_MAX: Final = 1 << 32
#: Bytes waiting for one internode peer that does not read; above it requests fail as unreachable.
PEER_QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Connect and handshake together; a loopback or LAN peer answers within milliseconds.
PEER_CONNECT_TIMEOUT_MS: Final = 2000
#: First pause after a failed connection attempt; doubles up to the maximum, with jitter.
PEER_BACKOFF_MS_MIN: Final = 50
#: Longest pause between attempts: a restarted node is reached again within two seconds.
PEER_BACKOFF_MS_MAX: Final = 2000
#: Smallest distance of two deadline sweeps of a peer; timeouts are late by at most this.
PEER_SWEEP_MS: Final = 10
#: A sweep later than this found a loop that stood still: the answers in its sockets are read before anything
#: counts as expired.
SWEEP_LATE_MS: Final = 100
#: A connection on which requests expire and nothing was heard for this long is taken as half open.
PEER_SILENT_MS: Final = 5000
#: One-way messages kept while a connection is being made; they are best effort, older ones go first.
PEER_ONE_WAY_QUEUED_MAX: Final = 256
#: Frames a test's duplication keeps for a second delivery on a later connection.
PEER_REPLAYED_FRAMES_MAX: Final = 16
#: Requests from one peer being answered at once: twice what a well-behaved sender has in flight.
PEER_REQUESTS_SERVED_MAX: Final = 2 * PEER_REQUESTS_IN_FLIGHT_MAX
#: Open symbols of a CQL text while it is parsed: some 500 nested brackets; Python's own recursion over
#: the resulting tree stays far below its limit. Columns of a long list do not add to it.
CQL_NESTING_MAX: Final = 1000
#: Operators and calls inside each other in one expression, where a sum of n numbers is n - 1 deep: compiling
#: one level takes several calls of Python's own.
CQL_EXPRESSION_DEPTH_MAX: Final = 100
#: Bytes of the model store's log before a checkpoint replaces it; keeps a simulated restart below 50 ms.
MODEL_STORE_LOG_BYTES_MAX: Final = 4 * 1024 * 1024
#: One record of the model store's log is one sync group; a longer length prefix is damage.
MODEL_STORE_RECORD_BYTES_MAX: Final = 1024 * 1024 * 1024
#: Between two looks at how much of the disk is free: a node cannot write its reserve away in that time.
DISK_SPACE_LOOK_MS: Final = 500
#: Writes that are not yet synced; above it more are refused as overloaded. At 1 KiB each: 64 MiB.
UNSYNCED_WRITES_MAX: Final = 65_536
#: Fragment bytes behind one read answer; it then ends early with `more`. Fits an internode frame four times.
READ_RESULT_BYTES_MAX: Final = 4 * 1024 * 1024
#: Fragments handled before the loop gets a turn: about 3 microseconds each, so below 3 ms.
FRAGMENTS_PER_TURN_MAX: Final = 1000
#: As that, for work in the background that also digests or rewrites them: some 15 microseconds each.
BACKGROUND_FRAGMENTS_PER_TURN: Final = 64
#: Rows waiting for their fragments to be merged; further ones are found again by their next read.
MERGES_QUEUED_MAX: Final = 1024
#: Key combinations one statement may ask for with IN, as Cassandra's guardrail order of magnitude: each
#: is a read or a row of its own.
IN_COMBINATIONS_MAX: Final = 10_000
#: Descriptors a node keeps open for appended files; a metadata log and a few journals need far fewer.
DISK_OPEN_FILES_MAX: Final = 128
#: Threads for blocking calls of one process: syncs of the metadata log and of each shard's store.
BLOCKING_THREADS_MAX: Final = 8
#: Operations running at once. A new one is planned against every outcome of those that it touches, which are
#: few: 2^n plans at worst, each some milliseconds on a large ring.
PARALLEL_OPERATIONS_MAX: Final = 6
#: Steps of one change of replication: each moves data of every range, and its history stays in the metadata.
REPLICATION_STEPS_MAX: Final = 64
#: Requests that wait or run at once: a large cluster's worth of nodes; further ones are refused.
REQUESTS_LIVE_MAX: Final = 1024
#: Ended requests that the metadata remembers; each is some 100 bytes of every snapshot.
REQUESTS_ENDED_KEPT_MAX: Final = 256
#: Queued requests that are planned for one decision, in the order of the queue: a plan of a large ring costs
#: milliseconds, and those at the head say enough about who is in the way.
REQUESTS_PLANNED_MAX: Final = 8
#: Queued requests that are looked at for one decision: those whose ranges are seen to be held without a plan
#: cost some 100 us each, so that a decision stays within 20 ms.
REQUESTS_LOOKED_AT_MAX: Final = 64
#: Later requests that may begin before one that waits for running operations: several rounds of the most that
#: run at once, so that what could run is not kept idle for it, and it still gets its turn.
REQUESTS_PASSED_MAX: Final = 16
#: Plans kept per table and level of one metadata value; a full table of 16 tokens on 4096 nodes fits.
PLANS_CACHED_MAX: Final = 65_536
#: Writes a coordinator has in flight; above it clients are told to slow down. Each holds its mutation.
WRITES_IN_FLIGHT_MAX: Final = 16_384
#: Counters are signed 64-bit numbers.
COUNTER_BOUND: Final = 1 << 63
#: Changes of counters whose ids a replica remembers, so that one delivered again is not added again: more
#: than a peer ever sends twice, and a minute's worth of them.
COUNTER_IDS_KEPT_MAX: Final = 65_536
#: Changes of one partition's counters that wait for each other; each takes a read and a sync.
COUNTER_WAITERS_MAX: Final = 1024
#: Bytes of their mutations, those included whose clients have been answered and that wait for a replica.
WRITES_BYTES_IN_FLIGHT_MAX: Final = 128 * 1024 * 1024
#: Reads a coordinator has in flight; answers are held whole until they are merged.
READS_IN_FLIGHT_MAX: Final = 4096
#: Origins of decided proposals that each new one names: more rounds than pass while one proposer is away for
#: the time of a request, and some hundred bytes.
BALLOT_CHAIN_MAX: Final = 16
#: Attempts at rounds of one conditional request: with the pauses between them far above any deadline.
BALLOT_ROUNDS_MAX: Final = 1000
#: Longest pause before another ballot after losing to one: it is drawn, at first below a round's time or two,
#: below twice as much each time.
BALLOT_PAUSE_MS_MIN: Final = 20
BALLOT_PAUSE_MS_MAX: Final = 160
#: Looks of a serial read at a partition that others are changing, before it takes a ballot and holds them up.
BALLOT_LOOKS_MAX: Final = 4
#: For how long a decision is finished or brought to replicas that lack it in any case: its request has ended
#: by then, and clocks differ by less.
BALLOT_BROUGHT_S: Final = 60
#: Nothing younger is purged, whatever a table's options say: so much longer than what may still be brought,
#: that a round which brings it has ended, also by another clock.
PURGE_AGE_S_MIN: Final = 2 * BALLOT_BROUGHT_S
#: How long a partition's ballots are kept after its last round: nobody waits that long for an outcome, and no
#: clock is that wrong.
BALLOTS_KEPT_S: Final = 10 * 24 * 3600
#: Conditional requests a coordinator has in flight, those included that wait for others of their partition.
CONDITIONAL_IN_FLIGHT_MAX: Final = 4096
#: Pause before a write or read asks a replica again whose connection failed.
REPLICA_RETRY_MS: Final = 50
#: A read asks one more replica when the answers take longer than this (or a quarter of its timeout), while
#: too little is known of how long such reads take.
READ_EXTRA_AFTER_MS: Final = 200
#: Requests after which what is known of their times is halved: some hundred of the last ones decide.
LATENCY_SAMPLES_MAX: Final = 2000
#: Requests that say enough about the slowest hundredth not to be misled by the first few.
LATENCY_SAMPLES_MIN: Final = 50
#: Tables of which a node remembers how long their requests took; each costs about a kilobyte.
LATENCY_TABLES_MAX: Final = 1024
#: An answer above this is told by its digest where only agreement is asked: below it a digest costs as much
#: as the answer, and a disagreement a second question.
DIGEST_OVER_BYTES: Final = 1024
#: Of a statement's text, what a warning about it repeats; as much as Cassandra does.
WARNED_QUERY_CHARACTERS_MAX: Final = 512
#: Plans that one request's notes keep for its client: a batch of that many partitions.
PLANS_NOTED_MAX: Final = 64
#: Rounds without a row that answers with hidden rows may cause; the asked rows double in each.
SHORT_READ_ROUNDS_MAX: Final = 64
#: Range streams one node serves at once; each pins a store snapshot and some files on disk.
STREAMS_OPEN_MAX: Final = 64
#: A stream nobody asks for this long is closed: its snapshot keeps old files on disk. A target that starts
#: again within that time goes on in the middle of a file.
STREAM_IDLE_MS: Final = 60_000
#: One request of a stream: reading and sending a part takes milliseconds, and nobody is let wait for longer
#: than STREAM_WAIT_MS.
STREAM_TIMEOUT_MS: Final = 10_000
#: How long a request of a stream waits for its file to be built, or for its turn under the throttle, before
#: it is answered with nothing yet; well below the request's own time.
STREAM_WAIT_MS: Final = 2000
#: Where a sorted file ends: what is built, sent, checked and made visible as one. Half a second of each, and
#: what a break can cost when the source is gone.
STREAM_FILE_BYTES: Final = 64 * 1024 * 1024
#: Files of one stream on the source's disk: one is made visible at the target, one is sent, one is built.
STREAM_FILES_KEPT_MAX: Final = 3
#: Bytes of a sorted file in one answer: a thread's work of some milliseconds, so that a hand-over to it and
#: back is a small part of that.
STREAM_PART_BYTES: Final = 8 * 1024 * 1024
#: The first part that is asked for, and the smallest. Parts grow while they come fast.
STREAM_PART_BYTES_MIN: Final = 512 * 1024
STREAM_PART_MS_FAST: Final = 100
#: A part that takes longer is followed by smaller ones: those behind it have to come in STREAM_TIMEOUT_MS.
STREAM_PART_MS_SLOW: Final = 1000
#: Parts asked for ahead: one arrives, one is at the source's socket, one is on its way there.
STREAM_PARTS_AHEAD: Final = 3
#: What is read at once of a sorted file for its digest: a busy interpreter is waited for before each.
STREAM_DIGEST_BYTES: Final = 4 * 1024 * 1024
#: For how long a node keeps the connection for files to another one when nothing is streamed.
STREAM_LANE_IDLE_MS: Final = 5000
#: Raw bytes behind a frame are read in pieces of this size: in the processor's cache, few calls.
RAW_PIECE_BYTES: Final = 1024 * 1024
#: Threads that send or take raw bytes; each may wait for a slow network, so they are not those of syncs.
RAW_THREADS_MAX: Final = 8
#: Raw bytes are given up when none of them moves for this long.
RAW_SILENT_MS: Final = 10_000
#: What is put into a sorted file in one go: some hundred microseconds, in the cache.
STREAM_BLOCK_BYTES: Final = 128 * 1024
STREAM_BLOCK_PAIRS: Final = 800
#: Files that a source builds at once, whatever the streams: one keeps a core busy.
STREAM_BUILDS_AT_ONCE_MAX: Final = 2
#: From about so many bytes on, a stream's files are built by helpers: starting them and fixing the content
#: on disk takes some tenths of a second, as long as building one file.
STREAM_HELPED_BYTES: Final = 128 * 1024 * 1024
#: Files that helpers build of a stream before their turn comes: one waits, as the one before took longer, one
#: is built.
STREAM_FILES_AHEAD_MAX: Final = 2
#: What a helper may take for one file; half a second unless the disk is very slow or the machine overloaded.
STREAM_HELPER_TIMEOUT_MS: Final = 120_000
#: Failures of helpers in a row after which a source builds all files itself, until it is started again.
STREAM_HELPER_FAILURES_MAX: Final = 3
#: Fragments looked at to tell how much a range holds; some hundred microseconds.
STREAM_ESTIMATE_PAIRS: Final = 500
#: Fragments of a stream's first block; as many follow as fit a block by the size of those before.
STREAM_PAIRS_TAKEN: Final = 32
#: What a fragment is taken to have when there is only room for a few of them.
STREAM_PAIR_BYTES: Final = 4096
#: One record of how far a stream has come: two keys, each at most as long as a mutation.
STREAM_RECORD_BYTES_MAX: Final = 2 * MUTATION_BYTES_MAX
#: Times that one damaged file is fetched again; a disk or network that spoils more is not to be trusted.
STREAM_FILE_ATTEMPTS_MAX: Final = 4
#: Attempts to continue one broken range stream, each from the last whole partition.
STREAM_ATTEMPTS_MAX: Final = 10
#: Times in a row that a node's part of a stage fails for a reason that is not the network before it is given
#: up as failed: enough for what passes by itself, few enough that nobody waits long for what does not.
WORK_ATTEMPTS_MAX: Final = 8
#: How long a node whose store died goes on answering while work runs on it, so that the coordinator hears why
#: it failed: above the pause between two of its questions.
WORK_FAREWELL_MS: Final = 1500
#: Longest time to live: 20 years, as in Cassandra, so that expiry times stay far from 32-bit limits of tools.
TTL_S_MAX: Final = 20 * 365 * 24 * 3600
#: Partitions of one IN query that are read at once: enough to hide round trips, few enough that a page
#: that is full early has not read much in vain.
PARTITION_READS_AT_ONCE_MAX: Final = 16
#: Rows in one read repair write, so that it fits one storage batch.
REPAIR_ROWS_MAX: Final = 500
#: Request bytes in flight on one CQL connection; above it the server stops reading until answers went out.
CQL_BYTES_IN_FLIGHT_MAX: Final = 64 * 1024 * 1024
#: Request bytes in flight on all CQL connections of a node: four connections at their own limit.
CQL_NODE_BYTES_IN_FLIGHT_MAX: Final = 4 * CQL_BYTES_IN_FLIGHT_MAX
#: Requests in flight on all CQL connections of a node: at some 4 KiB for each task as much as their bytes.
CQL_NODE_REQUESTS_IN_FLIGHT_MAX: Final = 65536
#: How long requests in flight may take once a node takes leave of its clients: longer than any takes by
#: default, and a bound that whoever stops a process can wait for.
DRAIN_BY_COMMAND_MS: Final = 15_000
DRAIN_BY_SIGNAL_MS: Final = 5_000
#: How long a client has to close a connection that has told it its last: a round trip takes less, also of a
#: client on a busy machine; twice this is less than a drain may take.
CQL_GOODBYE_MS: Final = 2_000
#: Connections read again in one turn of the loop when the node has room: each may bring a buffer of requests.
CQL_CONNECTIONS_WOKEN_AT_ONCE: Final = 16
#: Statements of clients that begin in one turn of a node's loop: some 20 ms of work, so that other nodes are
#: answered soon, and enough to share syncs and socket writes.
CQL_STATEMENTS_A_TURN: Final = 128
#: Statements of batches in flight at a node, beyond which batches wait: bulk loaders send what they have, and
#: what is begun all at once ends too late. Half a second of work on a slow machine.
CQL_BATCHED_IN_FLIGHT_MAX: Final = 512
#: Requests that a waiting connection begins before the next one has its turn.
CQL_REQUESTS_A_CONNECTION_TURN: Final = 16
#: Bytes of a request that are as much work as a statement more.
CQL_BYTES_A_STATEMENT: Final = 16 * 1024
#: CQL connections of one node; each costs some kilobytes and a descriptor. Further ones are closed at once.
CQL_CONNECTIONS_MAX: Final = 8192
#: Answers written at once on one connection; beyond it they go out without waiting for the turn's end.
CQL_ANSWER_BYTES_COALESCED: Final = 256 * 1024
#: Statements sent as text whose plans are kept: applications repeat a few texts, tools send each once.
TEXT_STATEMENTS_MAX: Final = 512
#: A longer statement text is planned anew each time, so that kept texts stay below 2 MiB.
TEXT_STATEMENT_CHARACTERS_MAX: Final = 4096
#: Statements of one batch: they are decoded in one go, some 35 ms.
BATCH_STATEMENTS_MAX: Final = 32_768
#: Traces that one node is storing; requests beyond it run untraced, and their clients are told.
TRACES_IN_FLIGHT_MAX: Final = 64
#: Statements of a traced batch that its trace names.
TRACED_STATEMENTS_MAX: Final = 16
#: Of one trace: a scan has a step for each data range and replica, and people read what is kept.
TRACE_STEPS_MAX: Final = 1000
#: Of a traced statement's text, what its trace keeps.
TRACE_PARAMETER_CHARACTERS_MAX: Final = 4096
#: Partitions of an unlogged batch above which its client is warned.
UNLOGGED_PARTITIONS_WARNED: Final = 10
#: Nodes that keep a logged batch for its coordinator: it survives it, and one more.
BATCH_HOLDERS: Final = 2
#: How long a batch waits for those that are to keep it before others are asked as well: several slow syncs,
#: and a tenth of a write's usual timeout.
BATCH_HOLDER_PATIENCE_MS: Final = 200
#: Bytes of logged batches that one node keeps for others; batches are small and gone within milliseconds.
BATCH_LOG_BYTES_MAX: Final = 256 * 1024 * 1024
#: Batches read or replayed in one go.
BATCH_LOG_PAGE: Final = 256
#: Between two looks for batches whose coordinator does not say that they are done.
BATCH_REPLAY_ROUND_MS: Final = 1000
#: How long a schema change waits for the other live nodes to apply it, before clients may compare versions.
SCHEMA_AGREEMENT_WAIT_MS: Final = 1000
#: How long ALTER KEYSPACE waits for data to move before it answers with a warning, and a schema change for
#: the end of an operation that excludes it: drivers give up after ten seconds, and send nothing again.
REPLICATION_WAIT_MS: Final = 6_000
#: Schema versions a node remembers, to name those of peers that are behind and to answer its own changes.
SCHEMA_VERSIONS_KEPT_MAX: Final = 1024
#: Between a node's sign of life and telling clients that it is up: its client door opens a little later.
NODE_UP_EVENT_DELAY_MS: Final = 500
#: Requests a data job has in flight on one connection; enough to hide round trips.
SPARK_REQUESTS_IN_FLIGHT_MAX: Final = 256
#: Idle connections to one node that a Spark worker process keeps for its next task.
SPARK_CONNECTIONS_IDLE_MAX: Final = 2
#: Failed attempts in a row before a Spark task gives up; with the pauses between them some 15 seconds.
SPARK_ATTEMPTS_MAX: Final = 12
#: First and longest pause between the attempts of a Spark task.
SPARK_RETRY_MS_MIN: Final = 50
SPARK_RETRY_MS_MAX: Final = 2000
#: Partition keys that pushed filters may name before they are left to Spark: each is a read of its own.
SPARK_POINT_READS_MAX: Final = 10_000
#: Body of one admin HTTP request: a plan file of thousands of steps is below it.
ADMIN_BODY_BYTES_MAX: Final = 1024 * 1024
#: Admin HTTP connections of one node: consoles, scrapers and commands; further ones are closed at once.
ADMIN_CONNECTIONS_MAX: Final = 256
#: An admin connection without a request for this long is closed.
ADMIN_IDLE_MS: Final = 60_000
#: Asking the metadata leader for what only it knows, on behalf of a status answer.
ADMIN_FORWARD_TIMEOUT_MS: Final = 1000
#: Named values that tools may keep in the metadata; they are in every snapshot.
EXTENSIONS_MAX: Final = 100_000
#: Of an extension's name; long enough for a path with a host name.
EXTENSION_NAME_CHARACTERS_MAX: Final = 256
#: One piece of a metadata snapshot, on disk and on the wire: encoding it blocks the loop for about a
#: millisecond, and it interleaves with requests like a chunk of a stream.
SNAPSHOT_PIECE_BYTES_MAX: Final = 256 * 1024
#: One item (a node, a table, a running operation) of a snapshot; a longer length prefix is damage.
SNAPSHOT_ITEM_BYTES_MAX: Final = 1024 * 1024 * 1024
#: Epochs between two (epoch, hash) pairs that stay when log entries are dropped, as proof for later.
LOG_CHECKPOINT_EPOCHS: Final = 256
#: One record of a snapshot's or dump's file: a piece, or a fetch's worth of entries with their largest body.
SNAPSHOT_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
#: Outcomes of management commands kept so that a retried one finds its first; a cluster admits nodes rarely.
MANAGEMENT_OUTCOMES_MAX: Final = 1024
#: Voters of the metadata group: seven survive three losses, more only slow every change down.
METADATA_VOTERS_MAX: Final = 7
#: Nodes that one entry (or a few in one turn) lets go and that the leader tells of it itself.
NODES_LET_GO_TOLD_MAX: Final = 8
#: A reason that an operator gives for a change of the metadata service: a sentence with a ticket's address.
SERVICE_TEXT_CHARACTERS_MAX: Final = 500
#: User-defined types of one keyspace: they are part of the keyspace's record, which every change of one of
#: its tables encodes.
USER_TYPES_MAX: Final = 1000
#: User-defined types inside each other, to bound recursion while they are resolved.
USER_TYPE_DEPTH_MAX: Final = 32
#: Fields of a user-defined type with those of the types inside it: the protocol spells out all of them
#: with every result.
USER_TYPE_LEAVES_MAX: Final = 10_000
#: Nodes that are asked what an epoch is when the voters that this node knows are no more: one round of
#: questions, and enough for a false answer not to prevail.
HASH_WITNESSES_MAX: Final = 32
#: A node that is further behind gets a snapshot first, if there is one: some tens of ms of applying entries.
SNAPSHOT_GAP_EPOCHS: Final = 256
#: Bytes of a snapshot in one answer: small enough to interleave with requests.
SNAPSHOT_CHUNK_BYTES: Final = 256 * 1024
#: Metadata entries applied again for a look at the past before the loop gets a turn: some 30 us each.
ENTRIES_PER_TURN_MAX: Final = 64
#: Nodes asked in one round for who is in the cluster, by a node that nobody answers or that starts.
MEMBERS_ASKED_AT_ONCE_MAX: Final = 16
#: The file of members: the largest cluster, with 200 bytes a node.
MEMBERS_FILE_BYTES_MAX: Final = 16 * 1024 * 1024
#: Entries of the management group's log between two snapshots of its state; a few per node that joins.
MANAGEMENT_SNAPSHOT_ENTRIES: Final = 256
#: Announcements one node sends for one epoch, whatever happens: the tree's roots, its own children in the
#: tree, and the children of those that seem dead.
ANNOUNCEMENTS_MAX: Final = 32
#: Nodes asked for a sign of life in one round; up to this cluster size that is everyone.
PINGED_MAX: Final = 32
#: Others that are asked whether a silent node answers them: one cut link says little, three say enough.
ASKED_FOR_ME_MAX: Final = 3
#: Nodes with which one exchanges soft state in a round: two, so that one dead partner costs no round.
GOSSIP_PARTNERS_MAX: Final = 2
#: Versions one gossip message names: all nodes of most clusters, and some 4 kilobytes.
GOSSIP_DIGESTS_MAX: Final = 256
#: States one gossip message carries, some 6 kilobytes: news is fewer, and a newcomer asks again.
GOSSIP_STATES_MAX: Final = 64
#: Starts of a node and changes of its state that gossip believes: a thousand a second for thousands of years.
#: What is above them was never counted, and would outrank all that the node ever says.
GOSSIP_VERSION_MAX: Final = 1 << 48
#: Bytes of each text in a node's soft state, some times those of a release or a schema version.
GOSSIP_TEXT_BYTES_MAX: Final = 64
#: Views of which one node says that it builds them: more than are made at a time, in less than 200 bytes.
GOSSIP_BUILDING_MAX: Final = 32
#: Rounds after which a node publishes its state although nothing in it changed, so that age says something.
GOSSIP_REFRESH_ROUNDS: Final = 10
#: Peers remembered as having more of the log: enough fallbacks, and bounded however many nodes speak.
FETCH_SOURCES_MAX: Final = 16
#: Fetched entries that may wait to be applied while more are fetched.
FETCHED_ENTRIES_QUEUED_MAX: Final = 512
#: Ranges whose size one node estimates for one plan; a node's ranges in a cluster of 16 tokens a node are
#: some hundreds.
SIZE_RANGES_ASKED_MAX: Final = 1024
#: Pairs read for one such question: some 30 ms of a node's time.
SIZE_PAIRS_PER_QUESTION_MAX: Final = 40_000
#: Pairs read of each range and table at least: an estimate within some ten percent.
SIZE_PAIRS_PER_RANGE_MIN: Final = 100
#: To tell clients how much tables hold: pairs read for one question, some 0.2 s beside requests, in steps of
#: well below a millisecond; of a range, where more would tell little more; places looked up in a table.
SAMPLE_PAIRS_MAX: Final = 65_536
SAMPLE_STEP_PAIRS: Final = 128
SAMPLE_PAIRS_PER_RANGE_MAX: Final = 256
SAMPLE_SEEKS_MAX: Final = 256
#: Nothing is measured again for so long; tables of which that is known, as many as one question is about.
SAMPLE_KEPT_S: Final = 10.0
SAMPLES_KEPT_MAX: Final = 64
#: Rows with such figures that are made in one go: they are of fewer tables than one question is about.
SAMPLED_ROWS_AT_ONCE_MAX: Final = 16
#: Sentences of one story that are told, the newest ones: some screens full.
STORY_EVENTS_MAX: Final = 500
#: Repairs that run at once: each is driven by one node, which compares two ranges at a time.
REPAIRS_RUNNING_MAX: Final = 16
#: Repairs that ended which the metadata remembers; each is some 200 bytes of every snapshot.
REPAIRS_ENDED_KEPT_MAX: Final = 64
#: Ranges of one table whose last repair is recorded apart; with more, neighbours share the older one.
REPAIRED_RANGES_KEPT_MAX: Final = 1024
#: Leaves of one tree of hashes: 64 KiB of digests, compared in one go.
REPAIR_LEAVES_MAX: Final = 4096
#: What a leaf should cover, by the estimate of what a range holds: read and compared in some milliseconds.
REPAIR_LEAF_BYTES: Final = 64 * 1024
#: Ranges of a ring with the same replicas that are compared as one.
REPAIR_RANGES_AT_ONCE_MAX: Final = 256
#: Trees that one node builds at once, whoever asks: each reads all it covers.
REPAIR_TREES_AT_ONCE_MAX: Final = 2
#: Trees of a node that are built or wait to be built or taken; further ones are asked for again.
REPAIR_TREES_KEPT_MAX: Final = 64
#: Ranges that one repair compares at once, and differing leaves that it mends at once.
REPAIR_UNITS_AT_ONCE: Final = 2
REPAIR_LEAVES_AT_ONCE: Final = 4
#: Attempts to ask a participant before its ranges are given up: with the pauses some six seconds.
REPAIR_ATTEMPTS_MAX: Final = 8
#: How long a question for a tree is held open; well below the question's own time.
REPAIR_TREE_WAIT_MS: Final = 1000
#: One question of a repair: a page of READ_RESULT_BYTES_MAX, or a batch of changes with its sync.
REPAIR_TIMEOUT_MS: Final = 5000
#: Bytes of changes in one message of a repair; one change goes even when it is larger.
REPAIR_WRITE_BYTES: Final = 1024 * 1024
#: Changes in one message of a repair: applied in one turn, some milliseconds.
REPAIR_WRITES_MAX: Final = 64
#: Pieces of a table that one replica says may have changed since its repair; of more, neighbours are joined.
REPAIR_CHANGED_RANGES_MAX: Final = 1024
#: Ranges that one repair may name.
REPAIR_RANGES_NAMED_MAX: Final = 1024
#: How far a write to a table with change data capture may be ahead of a coordinator's clock, and the clock of
#: a coordinator ahead of another's: clocks that time servers keep differ by far less.
CDC_LEEWAY_MS: Final = 5000
#: As long as the news of a generation of change data capture may take to any node that serves: nobody waits
#: for it, and a node that a restart or a broken link kept from the log has caught up by then.
CDC_RING_DELAY_MS: Final = 30_000
#: Generations kept at once, with eight bytes a token each: more than two while logs have rows of older ones
#: (the oldest make room), and when nodes join faster than generations take effect (the newest does).
CDC_GENERATIONS_KEPT_MAX: Final = 16
#: Hints sent to one node at once; each holds its mutation until it is answered.
HINTS_AT_ONCE_MAX: Final = 64
#: Hints read from the store in one go: some milliseconds at 1 KiB each.
HINTS_PAGE: Final = 256
#: Between two rounds of hints to nodes that are back.
HINTS_ROUND_MS: Final = 1000
#: One hint's answer; a replica that needs longer gets it again.
HINT_TIMEOUT_MS: Final = 2000
#: Ranges of one table and node that are remembered as lacking hints; more become the whole ring.
DROPPED_HINT_RANGES_MAX: Final = 64
#: Writes that have been answered and still wait for their last replicas; above it those get a hint at once.
WRITES_LINGERING_MAX: Final = 8192
#: How long a node that leaves tries to hand over what it keeps for others before it is recorded as lacking.
LEAVING_FAREWELL_MS: Final = 10_000
#: How long a node that has left stays for what came in last, while nobody takes or records it.
LEAVING_RECORD_MS: Final = 600_000
#: Ranges that one entry records as lacking what nobody took; of more, each keyspace is recorded as a whole.
UNDELIVERED_RANGES_MAX: Final = 256
#: Roles of one cluster: applications, people and groups; they are in every snapshot of the metadata.
ROLES_MAX: Final = 10_000
#: Roles that one role is directly a member of.
ROLE_MEMBERSHIPS_MAX: Final = 256
ROLE_NAME_CHARACTERS_MAX: Final = 256
#: (role, resource) pairs with permissions; a dropped table looks through all of them, some 100 ms at worst.
GRANTS_MAX: Final = 100_000
#: Passwords checked at once: each keeps a core busy for some 50 ms, and requests need the others.
PASSWORD_CHECKS_AT_ONCE_MAX: Final = 2
#: Logins that wait for their check; with two at once the last waits for some six seconds.
PASSWORD_CHECKS_QUEUED_MAX: Final = 256
#: Passwords lately found right, so that the other connections of a client's pools cost no check.
PASSWORDS_KNOWN_MAX: Final = 1024
#: Sets of permissions that one connection is known to have; a client repeats a few statements.
ALLOWED_NEEDS_KEPT_MAX: Final = 1024
#: Bytes of hints in one message of a node that leaves; with one more it stays below an internode frame.
HINTS_HANDED_BYTES_MAX: Final = 1024 * 1024
#: Secondary indexes of one table: each write of a row makes an entry in each.
TABLE_INDEXES_MAX: Final = 64
#: Entries of a secondary index whose rows are read in one go: some milliseconds.
INDEX_CANDIDATES_MAX: Final = 256
#: As many when values between bounds are asked for: each go looks at all entries between the bounds.
INDEX_SPAN_CANDIDATES_MAX: Final = 4096
#: Outdated entries of a secondary index that one read takes away; the next reads go on.
INDEX_STALE_AT_ONCE_MAX: Final = 64
#: Fragments whose entries are made in one step when an index is built: about a millisecond.
INDEX_BUILD_FRAGMENTS: Final = 128
#: Steps of building an index between two notes of how far it is.
INDEX_NOTED_EVERY: Final = 64
#: How long a read waits for an index that is being built, as that of a small table is when it is first asked.
INDEX_WAIT_MS: Final = 1500
#: Data ranges that one query by index asks about at once; more waiting would not make replicas faster.
INDEX_RANGES_AT_ONCE_MAX: Final = 16
#: User functions and aggregates of one keyspace: they are in every snapshot, and a change looks at all.
KEYSPACE_FUNCTIONS_MAX: Final = 1000
FUNCTION_ARGUMENTS_MAX: Final = 255
#: Characters of a user function's body: to check the worst one of this size takes a node some 100 ms.
FUNCTION_BODY_CHARACTERS_MAX: Final = 32 * 1024
#: Times that one request is worked out again with the results of user functions that it waited for: as deep
#: as calls can lie inside each other, and more only where results decide what is called.
USER_CALL_ROUNDS_MAX: Final = 64
#: Different calls of user functions that one request waits for or remembers: some hundred bytes each.
USER_CALLS_MAX: Final = 100_000
#: Rows that one page, or one aggregation, with user functions reads: they are kept until all is worked out.
USER_CALL_ROWS_MAX: Final = 100_000
#: Calls in one message to a worker; each message has the whole time that a function may take.
USER_CALLS_AT_ONCE_MAX: Final = 1000
#: Rows folded in one message to a worker.
USER_FOLD_ROWS_AT_ONCE_MAX: Final = 1000
#: Materialized views of one table: each write of a row reads it and writes one row in each.
TABLE_VIEWS_MAX: Final = 64
#: A change of one partition of a view is cut into writes of about this size, a row of the base included.
VIEW_MUTATION_BYTES: Final = 1024 * 1024
VIEW_MUTATION_ROWS: Final = 500
#: View updates in one record of the batch log: a deletion of a large partition makes several.
VIEW_RECORD_MUTATIONS: Final = 200
#: Records of view updates being sent; what comes on top waits for the batch log's next round.
VIEW_RECORDS_IN_FLIGHT_MAX: Final = 10_000
#: Base writes that a coordinator says to be settled in one message, and how long it gathers them.
BASE_SETTLED_MAX: Final = 500
BASE_SETTLED_MS: Final = 20
#: Base writes whose coordinator a replica still hears; older ones are left to the batch log's replay.
BASE_WRITES_OPEN_MAX: Final = 100_000
#: Tables whose views are kept ready to derive rows.
VIEWS_CACHED_MAX: Final = 1000
#: Rows of a base table that are read at a time to build a view.
VIEW_BUILD_ROWS: Final = 200
#: Pause before rows that could not be written to a view being built, or read for an index, are tried again.
BUILD_RETRY_MS: Final = 500

#: Where a file of a backup ends: read whole when it is checked, some of them at once.
BACKUP_FILE_BYTES: Final = 16 * 1024 * 1024
#: One block of it: what a sorted file is given in one go, with one partition's largest row.
BACKUP_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
#: Parts of a backup, as many as a cluster has nodes, and backups that one node lists.
BACKUP_PARTS_MAX: Final = 4096
#: How long a question about work for a backup is held open; well below the question's own time.
BACKUP_WAIT_MS: Final = 1000
BACKUP_TIMEOUT_MS: Final = 10_000
#: Times that work for a backup is asked for at a node that cannot be reached: with the pauses half a minute.
BACKUP_ATTEMPTS_MAX: Final = 8
#: Tables that a restore brings to a node at once; each reads from all parts.
RESTORE_STREAMS_AT_ONCE: Final = 2
#: Times that a restore looks again because replicas changed while it ran.
RESTORE_ROUNDS_MAX: Final = 8
#: Between two notes of how far the store has got: what a kill can hide from the next start, and five small
#: appends and syncs a second while there are writes.
STORE_POSITION_MS: Final = 200
#: Bytes of such notes before the file begins anew: a few hundred of them, read within a millisecond.
STORE_POSITION_FILE_BYTES_MAX: Final = 64 * 1024
