package bus

import (
	"bytes"
	"encoding/json"
	"fmt"

	"sandkeep/internal/snapshot"
)

// appender is a reply with parts that must stay byte for byte as they are.
type appender interface {
	AppendJSON(buf []byte) ([]byte, error)
}

// checkpointReply is a checkpoint that may be absent.
type checkpointReply struct{ checkpoint *snapshot.Checkpoint }

// AppendJSON gives the wire shape.
func (r checkpointReply) AppendJSON(buf []byte) ([]byte, error) {
	buf = append(buf, `{"checkpoint":`...)
	if r.checkpoint == nil {
		return append(buf, "null}"...), nil
	}
	buf, err := r.checkpoint.AppendJSON(buf)
	return append(buf, '}'), err
}

// encode writes a reply, a JSON object, with its warnings.
func encode(v any, warnings []snapshot.Warning) ([]byte, error) {
	out, err := marshal(v)
	if err != nil || len(warnings) == 0 {
		return out, err
	}
	rest, err := marshal(struct {
		Warnings []snapshot.Warning `json:"warnings"`
	}{warnings})
	if err != nil {
		return nil, err
	}
	if bytes.Equal(out, []byte("{}")) {
		return rest, nil
	}
	return append(append(out[:len(out)-1], ','), rest[1:]...), nil
}

// marshal is json.Marshal without HTML escapes.
func marshal(v any) ([]byte, error) {
	if a, ok := v.(appender); ok {
		return a.AppendJSON(nil)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode reply: %w", err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
