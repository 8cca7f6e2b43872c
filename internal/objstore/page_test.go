package objstore_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"sandkeep/internal/objstore"
	"sandkeep/internal/snapshot"
	"sandkeep/internal/snapshot/snapshottest"
)

var emptyContent = snapshot.Digest(sha256.Sum256(nil))

func sampleEntries() []snapshot.Entry {
	pack := []snapshot.Digest{{1}, {2}}
	return []snapshot.Entry{
		{Path: "a", Kind: snapshot.KindDir, Mode: 0o700},
		{Path: "a/empty", Kind: snapshot.KindFile, Mode: 0o644, Mtime: -1, Digest: emptyContent},
		{Path: "a/large", Kind: snapshot.KindFile, Mtime: math.MaxInt64, Size: 5_000_000, Digest: snapshot.Digest{9}, Pieces: []snapshot.Piece{
			{Digest: snapshot.Digest{3}, Pack: pack[0], Offset: 100, Length: 4 << 20},
			{Digest: snapshot.Digest{4}, Pack: pack[1], Offset: 0, Length: 5_000_000 - 4<<20},
		}},
		{Path: "a/link", Kind: snapshot.KindSymlink, Target: "../é"},
		{Path: "a/loose", Kind: snapshot.KindFile, Mode: 0o777, Size: math.MaxInt64, Digest: snapshot.Digest{5}},
		{Path: "a/small", Kind: snapshot.KindFile, Mode: 0o600, Mtime: 1_700_000_000_123_456_789, Size: 7, Digest: snapshot.Digest{6},
			Pieces: []snapshot.Piece{{Digest: snapshot.Digest{6}, Pack: pack[1], Offset: 16<<20 - 7, Length: 7}}},
	}
}

func TestEntryPage_RoundTrip(t *testing.T) {
	want := sampleEntries()
	page := objstore.EncodeEntries(want)
	got, err := objstore.DecodeEntries(page)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for i := range page { // every shorter page is refused
		if _, err := objstore.DecodeEntries(page[:i]); err == nil {
			t.Errorf("the first %d bytes count as a page", i)
		}
	}
	if _, err := objstore.DecodeEntries(append(page, 0)); err == nil {
		t.Error("a trailing byte is taken")
	}
}

func TestEntryPage_Refuses(t *testing.T) {
	for name, change := range map[string]func(e []snapshot.Entry){
		"unsorted":       func(e []snapshot.Entry) { e[0], e[1] = e[1], e[0] },
		"twice":          func(e []snapshot.Entry) { e[1] = e[0] },
		"escape":         func(e []snapshot.Entry) { e[0].Path = "../a" },
		"absolute":       func(e []snapshot.Entry) { e[0].Path = "/a" },
		"piece too long": func(e []snapshot.Entry) { e[2].Pieces[0].Length = 16 << 20 },
		"piece missing":  func(e []snapshot.Entry) { e[2].Pieces = e[2].Pieces[:1:1] },
		"piece outside":  func(e []snapshot.Entry) { e[5].Pieces[0].Offset++ },
		"mode":           func(e []snapshot.Entry) { e[0].Mode = 0o4755 },
		"link with NUL":  func(e []snapshot.Entry) { e[3].Target = "a\x00b" },
		"link to UTF-8":  func(e []snapshot.Entry) { e[3].Target = "\xff" },
		"kind":           func(e []snapshot.Entry) { e[3].Kind = 4 },
	} {
		entries := sampleEntries()
		change(entries)
		if _, err := objstore.DecodeEntries(objstore.EncodeEntries(entries)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestRefPage_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		firsts := rapid.SliceOf(rapid.StringN(0, 30, 60)).Draw(t, "firsts")
		slices.Sort(firsts)
		refs := []snapshot.PageRef{}
		for i, f := range firsts {
			refs = append(refs, snapshot.PageRef{First: f, Piece: snapshot.Piece{
				Digest: snapshot.Digest{byte(i)}, Pack: snapshot.Digest{byte(i / 3)}, Offset: int64(i * 1000), Length: int64(i),
			}})
		}
		got, err := objstore.DecodeRefs(objstore.EncodeRefs(refs))
		if diff := cmp.Diff(refs, got); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	})
}

// TestUnpack_Bomb makes sure that a pack never unpacks to more than it may.
func TestUnpack_Bomb(t *testing.T) {
	frame := objstore.Zip(make([]byte, 9<<20))
	stream := func(n int) []byte { // a frame that does not say its size
		var out bytes.Buffer
		enc, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			if _, err := enc.Write(make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
		}
		if err := enc.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	for name, bomb := range map[string][]byte{
		"one frame": objstore.Zip(make([]byte, objstore.MaxPack+1)), "two frames": append(frame, frame...),
		"stream": stream(17), "two streams": append(stream(9), stream(9)...), "huge": stream(100),
	} {
		if data, err := objstore.Unpack(bomb); err == nil {
			t.Errorf("%s: %d bytes from %d", name, len(data), len(bomb))
		}
	}
	if data, err := objstore.Unpack(objstore.Zip(make([]byte, objstore.MaxPack))); err != nil || len(data) != objstore.MaxPack {
		t.Errorf("a full pack: %d bytes, %v", len(data), err)
	}
}

// TestSqueeze compresses in place what gets smaller and what does not.
func TestSqueeze(t *testing.T) {
	s, _ := newStore(t)
	random := snapshottest.RandomBytes(1, objstore.MaxPack)
	mixed := bytes.Clone(random)
	for at := 0; at < len(mixed); at += 700_000 { // text between what does not compress
		copy(mixed[at:], bytes.Repeat([]byte("all the same "), 20_000))
	}
	for name, data := range map[string][]byte{"one byte": {7}, "random": random, "small": random[:1000], "odd": random[:3<<20+1], "zeros": make([]byte, objstore.MaxPack), "mixed": mixed} {
		zipped, err := s.Squeeze(t.Context(), data)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := objstore.Unpack(zipped); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d of %d bytes came back: %v", name, len(got), len(data), err)
		}
	}
}

func FuzzEntryPage(f *testing.F) {
	f.Add(objstore.EncodeEntries(sampleEntries()))
	f.Add(objstore.EncodeEntries(sampleEntries()[5:]))
	f.Add([]byte{0x11, 0, 1, 0, 1, 'a', 3, 0, 1, 'b'})
	f.Add([]byte{0x11, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, page []byte) {
		entries, err := objstore.DecodeEntries(page)
		if err != nil {
			return
		}
		if again := objstore.EncodeEntries(entries); !bytes.Equal(again, page) {
			t.Errorf("a page has two spellings: %x and %x", page, again)
		}
		before := ""
		for _, e := range entries {
			if e.Path <= before || snapshot.ValidatePath(e.Path) != nil {
				t.Errorf("path %q after %q", e.Path, before)
			}
			before = e.Path
		}
	})
}

func FuzzRefPage(f *testing.F) {
	ref := snapshot.PageRef{First: "a", Piece: snapshot.Piece{Pack: snapshot.Digest{1}, Offset: 5, Length: 10}}
	next := ref
	next.First = "a/b"
	f.Add(objstore.EncodeRefs([]snapshot.PageRef{ref, next}))
	f.Add([]byte{0x21, 0, 0})
	f.Fuzz(func(t *testing.T, page []byte) {
		if refs, err := objstore.DecodeRefs(page); err == nil && !bytes.Equal(objstore.EncodeRefs(refs), page) {
			t.Errorf("a page has two spellings: %x", page)
		}
	})
}

func FuzzItemPages(f *testing.F) {
	f.Add(objstore.EncodeItems([][]byte{{}, []byte("one"), []byte("two")}), []byte{})
	f.Add([]byte{0x41, 0x80, 0x80, 0x80, 0x20, 0}, []byte{0x41, 0x80, 0x80, 0x80, 0x20, 1})
	f.Add(append([]byte{0x41, 0xe1, 0xd4, 0x03, 0}, make([]byte, 60001)...), []byte{0x31, 1, 1, 'x'})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		items, err := objstore.DecodeItemPages(first, second)
		size := 0
		for _, it := range items {
			size += len(it)
		}
		if err == nil && size > len(first)+len(second) {
			t.Errorf("%d bytes out of %d", size, len(first)+len(second))
		}
	})
}

func FuzzUnpack(f *testing.F) {
	f.Add(objstore.Zip([]byte("some bytes")))
	f.Add(objstore.Zip(make([]byte, objstore.MaxPack+1)))
	f.Add([]byte(strings.Repeat("\x28\xb5\x2f\xfd", 10)))
	f.Fuzz(func(t *testing.T, stored []byte) {
		data, err := objstore.Unpack(stored)
		if err == nil && len(data) > objstore.MaxPack {
			t.Errorf("%d bytes", len(data))
		}
	})
}

// TestPack_Hostile stores packs of a stranger under a name that a tree uses.
func TestPack_Hostile(t *testing.T) {
	for name, stored := range map[string][]byte{
		"garbage": []byte("garbage"), "empty": {}, "short": objstore.Zip([]byte("x")),
		"bomb": objstore.Zip(make([]byte, 40<<20)), "other": objstore.Zip(make([]byte, 50_000)),
	} {
		t.Run(name, func(t *testing.T) {
			s, js := newStore(t)
			items := [][]byte{bytes.Repeat([]byte("abc"), 10_000)}
			list, err := s.WriteItems(t.Context(), items, snapshot.List{})
			if err != nil {
				t.Fatal(err)
			}
			obs, err := js.ObjectStore(t.Context(), packs)
			if err != nil {
				t.Fatal(err)
			}
			object := fmt.Sprintf("sha256/%s", list.Pages[0].Pack)
			if _, err := obs.PutBytes(t.Context(), object, stored); err != nil {
				t.Fatal(err)
			}
			s.ForgetCache()
			if err := lastError(s.Items(t.Context(), list)); !errors.Is(err, snapshot.InvalidBlob) {
				t.Errorf("got %v", err)
			}
			if _, err := s.WriteItems(t.Context(), items, list); err != nil { // heals it
				t.Fatal(err)
			}
			if err := lastError(s.Items(t.Context(), list)); err != nil {
				t.Errorf("after the same items were stored again: %v", err)
			}
		})
	}
}
