package bus

import (
	"io"

	"sandkeep/internal/snapshot"
)

// RedactLog is a writer for JSON log lines, one a call, that lets no secret
// through to w.
func RedactLog(w io.Writer, r snapshot.Redactor) io.Writer { return redactingLog{w, r} }

type redactingLog struct {
	w io.Writer
	r snapshot.Redactor
}

func (l redactingLog) Write(line []byte) (int, error) {
	out, _ := l.r.JSON(line)
	if _, err := l.w.Write(out); err != nil {
		return 0, err
	}
	return len(line), nil
}
