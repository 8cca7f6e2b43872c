// Package kvstore keeps threads, leases, locks, instances and artifact records
// in one JetStream KV bucket, "<store>-state". The server copies their changes
// into the stream "<store>-events" by itself.
//
// Glossary. The thread state is the one key whose compare-and-set commits
// anything about a thread. A slot holds the checkpoint record of one depth. A
// pointer leads from a checkpoint's id to its slot. A checkpoint is visible if
// its pointer leads to a slot that holds its id and is not above the thread's
// depth. A fence is the sequence of the first value of a lease; whoever
// acquires a thread moves its own fence into the thread state, and thereby
// fails every commit of the holder before.
//
// # The commit protocol
//
// It was model-checked; the obvious shortcuts each lose data. Comments in the
// code cite its sections: 1 acquire, 2 renew and release, 3 append with R (the
// resolving of a lost commit reply), 4 delete-head, 5 fork, 6 save a
// conversation, 7 delete a thread, 8 sweep, 9 read.
//
// Every read goes to the stream's leader. Every write carries the sequence
// expected of its subject; a marker counts as absent, with its own sequence.
// Only leases, locks and their removal markers have a TTL: an expiry marker
// wipes whatever its subject holds. A touch writes the thread state again with
// the same content and so fails every commit in flight that was prepared
// before it.
//
// A deleted thread leaves a tombstone, a state that refuses every write. What a
// commit made invisible is removed by a purge of its key up to the sequence
// that was read before the commit: newer values stay, and no marker is left.
//
// A write ends in one of three ways: it landed, it was refused and never will
// (another sequence, no room), or its reply was lost and it may land at any
// later time. Only the last kind needs resolving, and only for a commit: all
// other writes are simply prepared anew.
package kvstore
