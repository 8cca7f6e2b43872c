package workspace

import (
	"bufio"
	"bytes"
	"testing"

	"sandkeep/internal/snapshot"
)

func FuzzStatCache(f *testing.F) {
	row := appendRow(nil, "a/b", stat{size: 1, mtime: -2, ctime: 3, inode: 4}, content{snapshot.Digest{5}, 1, 6})
	f.Add([]byte(row))
	f.Add([]byte(append(row, row...)))
	f.Fuzz(func(t *testing.T, data []byte) {
		for in := bufio.NewReaderSize(bytes.NewReader(data), 64<<10); ; {
			row, err := peekRow(in)
			if err != nil {
				return
			}
			s := stat{row.number(rowSize), row.number(rowMtime), row.number(rowCtime), uint64(row.number(rowInode)), 0}
			again := appendRow(nil, string(row.path()), s, content{row.digest(), s.size, row.redactions()})
			if !bytes.Equal(row, again) || !row.is(s) {
				t.Fatalf("row %q became %q", row, again)
			}
			_, _ = in.Discard(len(row))
		}
	})
}
