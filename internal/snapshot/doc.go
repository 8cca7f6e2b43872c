// Package snapshot is the domain: checkpoints of sandboxes, and the operations
// save, fork, restore and read over them. It knows no transport, no database
// and no logger; it declares the small interfaces that it needs from those.
//
// Glossary. A thread is a line of checkpoints, oldest (the root) first; its
// newest one is the head. A checkpoint is the record of one moment: files,
// conversation, artifacts. A writer is the holder of a thread's lease; its
// fence is a number that grows with each holder. A manifest is the sorted list
// of a checkpoint's entries, cut into pages; a pack is an object that holds
// many contents; a piece says where in a pack a content lies; a loose blob is
// a content that is an object of its own.
//
// Safety in one sentence: everything that a checkpoint refers to is stored and
// acknowledged first, and one compare-and-set on the thread's state makes it
// visible, so readers see the thread before or the thread after.
package snapshot
