package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// entryWire is an Entry on the wire.
type entryWire struct {
	Path    string      `json:"path"`
	Kind    string      `json:"kind"`
	BlobKey string      `json:"blobKey,omitempty"`
	Size    *int64      `json:"size,omitempty"`
	Mode    *uint16     `json:"mode,omitempty"`
	Mtime   json.Number `json:"mtime,omitempty"`
	Target  string      `json:"target,omitempty"`
}

// MarshalJSON gives the wire shape: default modes are absent, mtime is in
// milliseconds with its exact fraction.
func (e Entry) MarshalJSON() ([]byte, error) {
	w := entryWire{Path: e.Path, Kind: e.Kind.String(), Target: e.Target}
	switch e.Kind {
	case KindFile:
		w.BlobKey, w.Size, w.Mtime = FileBlobPrefix+e.Digest.String(), &e.Size, json.Number(formatMtime(e.Mtime))
		if e.Mode != DefaultFileMode {
			w.Mode = &e.Mode
		}
	case KindDir:
		if e.Mode != DefaultDirMode {
			w.Mode = &e.Mode
		}
	case KindSymlink:
	default:
		return nil, fmt.Errorf("entry %q has no kind", e.Path)
	}
	return marshal(w)
}

// formatMtime writes nanoseconds as milliseconds, exactly.
func formatMtime(ns int64) string {
	ms, rest := ns/1e6, ns%1e6
	if rest == 0 {
		return strconv.FormatInt(ms, 10)
	}
	sign := ""
	if ns < 0 {
		sign, ms, rest = "-", -ms, -rest
	}
	frac := bytes.TrimRight(fmt.Appendf(nil, "%06d", rest), "0")
	return fmt.Sprintf("%s%d.%s", sign, ms, frac)
}

type checkpointWire struct {
	ID          CheckpointID  `json:"id"`
	ThreadID    ThreadID      `json:"threadId"`
	Parent      *CheckpointID `json:"parentCheckpointId"`
	CreatedAt   Millis        `json:"createdAt"`
	Reason      string        `json:"reason"`
	Label       string        `json:"label,omitempty"`
	SourceRunID RunID         `json:"sourceRunId,omitempty"`
	Stats       Stats         `json:"stats"`
	Coverage    Coverage      `json:"coverage"`
	Artifacts   []Artifact    `json:"artifacts"`
	Files       *[]Entry      `json:"files,omitempty"`
}

// MarshalJSON writes empty members where nil would be null.
func (c Coverage) MarshalJSON() ([]byte, error) {
	type plain Coverage
	if c.Excluded == nil {
		c.Excluded = map[string]int64{}
	}
	if c.Skipped == nil {
		c.Skipped = []Skipped{}
	}
	if c.Unstable == nil {
		c.Unstable = []string{}
	}
	return marshal(plain(c))
}

// AppendJSON gives the wire shape. Unlike a json.Marshaler it keeps the bytes
// of the conversation as they are.
func (c *Checkpoint) AppendJSON(buf []byte) ([]byte, error) {
	w := checkpointWire{ID: c.ID, ThreadID: c.ThreadID, CreatedAt: c.CreatedAt, Reason: c.Reason, Label: c.Label,
		SourceRunID: c.SourceRunID, Stats: c.Stats, Coverage: c.Coverage, Artifacts: c.Artifacts}
	if c.Parent != "" {
		w.Parent = &c.Parent
	}
	if c.Artifacts == nil {
		w.Artifacts = []Artifact{}
	}
	if c.Entries != nil {
		w.Files = &c.Entries
	}
	b, err := marshal(w)
	if err != nil {
		return nil, err
	}
	buf = append(buf, b...)
	if c.Conversation != nil {
		buf = append(buf[:len(buf)-1], `,"conversation":`...)
		buf = append(c.Conversation.appendJSON(buf), '}')
	}
	return buf, nil
}

func (m Messages) appendJSON(buf []byte) []byte {
	buf = append(buf, '[')
	for i, msg := range m {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = append(buf, msg...)
	}
	return append(buf, ']')
}

// AppendJSON keeps the bytes of the messages as they are.
func (r *LoadThreadReply) AppendJSON(buf []byte) ([]byte, error) {
	id, err := marshal(r.ThreadID)
	if err != nil {
		return nil, err
	}
	buf = append(append(buf, `{"threadId":`...), id...)
	buf = r.Messages.appendJSON(append(buf, `,"messages":`...))
	return fmt.Appendf(buf, `,"revision":%d}`, r.Revision), nil
}

// AppendJSON gives the wire shape of a page of checkpoints.
func (r *ListCheckpointsReply) AppendJSON(buf []byte) ([]byte, error) {
	buf = append(buf, `{"checkpoints":[`...)
	for i, c := range r.Checkpoints {
		if i > 0 {
			buf = append(buf, ',')
		}
		var err error
		if buf, err = c.AppendJSON(buf); err != nil {
			return nil, err
		}
	}
	buf = append(buf, ']')
	if r.Next != "" {
		next, err := marshal(r.Next)
		if err != nil {
			return nil, err
		}
		buf = append(append(buf, `,"next":`...), next...)
	}
	return append(buf, '}'), nil
}

// marshal is json.Marshal without HTML escapes.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
