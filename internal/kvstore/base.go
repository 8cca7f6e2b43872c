package kvstore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/snapshot"
)

// baseKey has the tenant as a hash: two more identifiers could make the subject
// longer than the server takes.
func baseKey(k snapshot.BaseKey) string {
	key := "base." + token(k.Definition)
	if k.Tenant != (snapshot.Tenant{}) {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", k.Tenant.OrgID, k.Tenant.UserID))
		key += fmt.Sprintf(".%x", sum[:16])
	}
	return key
}

// Base reads the newest manifest that was noted; one that can't be decoded is
// as good as none.
func (s *Store) Base(ctx context.Context, k snapshot.BaseKey) (snapshot.List, error) {
	e, err := s.kv.get(ctx, baseKey(k))
	if err != nil || !e.live {
		return snapshot.List{}, err
	}
	var files snapshot.List
	if json.Unmarshal(e.value, &files) != nil {
		return snapshot.List{}, nil
	}
	return files, nil
}

// MoveBase notes a manifest without a condition: whichever of two is late, each
// is a good one. It is sent once.
func (s *Store) MoveBase(ctx context.Context, k snapshot.BaseKey, files snapshot.List) error {
	data, err := json.Marshal(files)
	if err != nil {
		return fmt.Errorf("encode base: %w", err)
	}
	m := nats.NewMsg(s.kv.putPre + baseKey(k))
	m.Data = data
	r, err := s.kv.request(ctx, m)
	if err == nil {
		var ack putReply
		if err = json.Unmarshal(r.Data, &ack); ack.Error != nil {
			err = refusal(ack.Error)
		}
	}
	if err != nil {
		return fmt.Errorf("note the newest manifest of definition %q: %w", k.Definition, err)
	}
	return nil
}
