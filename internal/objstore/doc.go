// Package objstore keeps contents in JetStream Object Store buckets: packs of
// file contents and manifest pages, artifacts, and the claim-check buckets. The
// buckets have the standard layout, so any client reads them with the ordinary
// Object Store API; they are written by this package's own writer.
//
// # Objects
//
// An object is its chunks, messages of at most 512 KiB under one chunk subject
// "$O.<bucket>.C.<nuid>", and its info, the last message of
// "$O.<bucket>.M.<name>". The nuid of a content-addressed object is the SHA-256
// of its bytes, so an interrupted upload is found again and continued.
//
// Why an info never promises bytes that are not there:
//
//   - Chunks go one after the other. Each carries the expected last sequence of
//     its subject, so a late, doubled or reordered publish is refused.
//   - A lost reply is resolved by reading the subject back from the leader.
//   - The info goes last, and it carries the expected last sequence of the
//     chunk subject: it is refused if the chunks have moved since they were
//     complete. Chunks that an upload found instead of writing them are read
//     back and hashed before.
//   - Whoever frees chunks first closes their subject with an empty message
//     under the same guard, then makes sure that no info refers to them, then
//     purges up to that message. An upload that was under way notices at its
//     next publish, its info included.
//
// # Packs
//
// A pack is the concatenation of contents of at most 4 MiB, compressed with
// zstd, named by the SHA-256 over the digests and lengths of its contents.
// Where it ends follows from the digest of its last content, so equal trees
// make equal packs. Larger contents are cut by FastCDC first.
//
// # Saves upon a parent
//
// A tree writer goes through the parent's pages beside the entries that it
// gets. A page whose rows all came as they were, between page ends, is taken
// over by its reference; only pages with a difference are spelled anew, and come
// out as a writer without a parent would make them. Contents that are not at
// their path any more are found by digest, through an index that is made when
// the first of them is asked for. Every pack that is referred to again was asked
// for first: what lies in a lost one counts as unknown, is read and stored anew.
//
// # Memory
//
// All saves and reads of a Store share one budget, first come, first served. A
// save keeps a share to its end, half of the budget is for those; packs that are
// filled or stored, lists and the reading of packs take turns with the rest.
// Packs are compressed in their own buffer. The cache of unpacked packs has what
// nobody has taken.
//
// # Loose blobs
//
// A client that captures by itself puts each content as an object of its own,
// named by its digest; an entry without pieces refers to it. It counts as there
// when its info and all its chunks are, and is hashed whenever it is read or
// put again.
//
// # Lists
//
// A manifest or a conversation is cut into pages by its own items, each page a
// content of a metadata pack. The root names the pages; when it would grow too
// large, pages of page references come between (Level). Every decoder here
// accepts exactly what its encoder writes.
package objstore
