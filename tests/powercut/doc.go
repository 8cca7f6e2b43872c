// Package powercut is a file system for tests that knows what a power cut
// would leave of it. It lies in memory; Cut takes away what was not durable.
//
// Under [Journal], which is less than ext4 gives in its default mode:
//
//   - Names (create, mkdir, link, rename, unlink) and truncations are operations in
//     one journal. What is durable is a beginning of the journal, never an
//     operation without those before it. An fsync of a file or directory makes
//     the journal durable up to the last operation on that file or directory,
//     so a file that was created and synced has its name. (ext4 gives more: it
//     commits whole transactions, every five seconds at the latest, a write
//     that grows a file is in the journal too, and a file that is renamed over
//     another one is written out.)
//   - Bytes are durable after fsync or fdatasync of their file, or when they
//     were written through a descriptor with O_SYNC or O_DSYNC.
//   - Of bytes that were not synced a cut leaves nothing, or the writes up to
//     some moment with the last one torn, or any of the 512-byte sectors, the
//     others old or, beyond the old end, zero.
//
// Under [Names], which is the letter of POSIX, a name is durable only by fsync
// of the directory that it is in, and a truncation by fsync of the file; one
// directory tells nothing about another.
//
// Modes and times are not modelled: they are durable at once. There are no
// symbolic links.
package powercut
