// Package workspace takes directory trees in and puts them out again: it
// captures a sandbox in path order, restores a manifest into a new directory,
// and knows the secrets that must not be stored.
//
// Safety of a capture. Every name is looked up in an os.Root of its own
// directory, lstat first, then an open that cannot block, and what was opened
// must be what lstat saw: a link, pipe or device that is swapped in is never
// followed or read. Sizes and digests come from the bytes that were read.
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
// Redaction covers the secrets as they are (in JSON, as decoded); encodings of
// them, such as base64 or hex, are out of its scope.
package workspace
