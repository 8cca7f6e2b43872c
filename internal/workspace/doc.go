// Package workspace takes directory trees in and puts them out again: it
// captures a sandbox in path order, restores a manifest into a new directory,
// and knows the secrets that must not be stored.
//
// Safety of a capture. A directory is opened by its name in the open directory
// above it, and files are looked up and opened by their names in theirs; no link
// is followed, no open can block, and what was opened must be a directory, or
// the file that was looked up: a link, pipe or device that is swapped in is
// never followed or read. Sizes and digests come from the bytes that were read.
// Workers look the tree up ahead of the walk; only the walk reads files, asks
// the cache and hands on entries, in path order.
//
// Safety of the stat cache. A row is kept only if the file's mtime and ctime
// were older than the start of the scan by more than the tick of the file
// system's clock, so that any later write changes the ctime; rows exist only
// for local file systems, whose clock is ours. A store through a writable
// mapping to a page that the kernel has not written back since an earlier store
// moves no time stamp and is invisible to this, as to every tool that looks at
// time stamps.
//
// Safety of a restore. Everything is made in a hidden directory beside the
// destination and published by one rename, which only an absent or empty
// destination lets through. No link of the manifest is ever written through.
//
// Safety of a restore in place. All that is new is staged beside the directory.
// Then a journal of the moves is synced, and entries are renamed out of and into
// place, by their names in open directories, without following a link or
// replacing anything. A file or link that goes or changes must be, to its ctime,
// what it was when it was compared, or the restore fails; a write within the
// same tick of the file system's clock as that is the exception. A failure takes
// the moves back in reverse. What others wrote since is kept, and so is what went
// whose place is gone or taken: in the directory, or in one beside it. The removal
// of the journal is the commit; a stage with a journal whose process is dead is
// taken back in the same way by New, which finds those further down by signs in
// the root, by Capture of that directory, and by the next restore into it or
// into a new one beside it. A journal is obeyed only with a MAC by a salt in the
// state directory: what a checkpoint or a process in a sandbox has put there is not.
//
// Redaction covers the secrets as they are (in JSON, as decoded); encodings of
// them, such as base64 or hex, are out of its scope.
package workspace
