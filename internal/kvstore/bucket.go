package kvstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sandkeep/internal/snapshot"
)

// How a write can end without having landed.
var (
	errMoved  = errors.New("the key is at another sequence")        // refused: nothing was written
	errLost   = errors.New("the reply was lost")                    // it may have landed, or land later
	errBusy   = errors.New("the store takes no requests right now") // nobody got it: nothing was written
	errSilent = errors.New("the store said nothing for a while")    // beside errLost
	errStale  = errors.New("the read is older than an earlier one") // a leader that was deposed meanwhile
	again     = []error{errMoved, errLost, errStale}                // prepare anew from a fresh read
)

// isAgain reports whether the operation has to go on from a fresh read.
func isAgain(err error) bool {
	for _, kind := range again {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// transport sends a request and waits for its reply; a *nats.Conn is one.
type transport interface {
	RequestMsgWithContext(ctx context.Context, m *nats.Msg) (*nats.Msg, error)
}

// limits bound what one call and one operation may take.
type limits struct {
	call     time.Duration // one request
	patience time.Duration // one read or write with its retries while the store takes no requests
	whole    time.Duration // one operation of a caller that set no deadline
	grace    time.Duration // the resolving of a lost commit reply after the caller gave up
	silence  time.Duration // without a reply after which the store is to blame, not the time that was given
	reread   time.Duration // the look of a waiter at the lease, should its watch be dead
}

var defaultLimits = limits{call: 5 * time.Second, patience: 12 * time.Second, whole: time.Minute, grace: 5 * time.Second, silence: 2 * time.Second, reread: 2 * time.Second}

// bucket reads and writes single keys, by the leader and conditionally.
type bucket struct {
	conn       transport
	maxPayload func() int64
	api        string // prefix of requests about streams
	getSubject string // of leader reads
	delSubject string // of removals that leave no marker
	pre        string // subject of a key, in the stream
	putPre     string // subject to publish a key to
	limits     limits
}

// entry is the newest message of a key. A removed key has a sequence and is not live.
type entry struct {
	key   string
	value []byte
	seq   uint64
	live  bool
	at    time.Time // when it was written, by the server's clock
}

// write is one conditional change of a key.
type write struct {
	key    string
	value  []byte
	expect uint64
	ttl    time.Duration // leases and locks only
	remove bool
}

type getRequest struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
}

type getReply struct {
	Error   *jetstream.APIError `json:"error"`
	Message *struct {
		Subject  string    `json:"subject"`
		Sequence uint64    `json:"seq"`
		Header   []byte    `json:"hdrs"`
		Data     []byte    `json:"data"`
		Time     time.Time `json:"time"`
	} `json:"message"`
}

type putReply struct {
	Error    *jetstream.APIError `json:"error"`
	Sequence uint64              `json:"seq"`
}

// get reads the newest value of a key from the leader.
func (b *bucket) get(ctx context.Context, key string) (entry, error) {
	e, err := b.read(ctx, getRequest{LastFor: b.pre + key})
	if err != nil {
		return entry{}, fmt.Errorf("read %s: %w", shorten(key), err)
	}
	return e, nil
}

// next reads the first message at or after the sequence that matches the
// pattern, from the leader; its sequence is 0 if there is none.
func (b *bucket) next(ctx context.Context, pattern string, from uint64) (entry, error) {
	e, err := b.read(ctx, getRequest{Seq: from, NextFor: b.pre + pattern})
	if err != nil {
		return entry{}, fmt.Errorf("read %s from %d: %w", shorten(pattern), from, err)
	}
	return e, nil
}

// read asks until there is an answer or the patience is over.
func (b *bucket) read(ctx context.Context, req getRequest) (entry, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return entry{}, err
	}
	patient, began := ctx, time.Now()
	for try := 0; ; try++ {
		if try == 1 { // the first one has the time of one call
			var cancel context.CancelFunc
			patient, cancel = context.WithDeadline(ctx, began.Add(b.limits.patience))
			defer cancel()
		}
		e, err := b.readOnce(patient, body)
		if !errors.Is(err, errBusy) && !errors.Is(err, errLost) {
			return e, err
		}
		if pause(patient, try) != nil {
			return entry{}, gaveUp(ctx, b.silent(began, err))
		}
	}
}

func (b *bucket) readOnce(ctx context.Context, body []byte) (entry, error) {
	m, err := b.request(ctx, &nats.Msg{Subject: b.getSubject, Data: body})
	if err != nil {
		return entry{}, err
	}
	var r getReply
	if err := jsonv2.Unmarshal(m.Data, &r); err != nil {
		return entry{}, fmt.Errorf("decode the store's reply: %w", err)
	}
	if r.Error != nil && r.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
		return entry{}, nil
	}
	if r.Error != nil {
		return entry{}, refusal(r.Error)
	}
	if r.Message == nil {
		return entry{}, snapshot.Errorf(snapshot.Internal, "the store answered a read without a message")
	}
	e := entry{key: strings.TrimPrefix(r.Message.Subject, b.pre), value: r.Message.Data, seq: r.Message.Sequence, at: r.Message.Time}
	e.live = !isMarker(r.Message.Header)
	return e, nil
}

// isMarker recognises removals and expiries. An empty value is not one.
func isMarker(header []byte) bool {
	if len(header) == 0 {
		return false
	}
	h, err := nats.DecodeHeadersMsg(header)
	if err != nil {
		return false
	}
	op := h.Get("KV-Operation")
	return op == "DEL" || op == removalMarkerID || h.Get(jetstream.MarkerReasonHeader) != ""
}

// put writes if the key is at the expected sequence, and returns the new one.
// Its errors are errMoved, errLost, or a refusal after which nothing was and
// nothing will be written.
func (b *bucket) put(ctx context.Context, w write) (uint64, error) {
	patient, began := ctx, time.Now()
	for try := 0; ; try++ {
		if try == 1 { // the first one has the time of one call
			var cancel context.CancelFunc
			patient, cancel = context.WithDeadline(ctx, began.Add(b.limits.patience))
			defer cancel()
		}
		if err := ctx.Err(); err != nil { // not sent
			return 0, fmt.Errorf("write %s: %w", shorten(w.key), gaveUp(ctx, err))
		}
		seq, err := b.putOnce(patient, w)
		if err == nil {
			return seq, nil
		}
		if errors.Is(err, errBusy) && pause(patient, try) == nil {
			continue
		}
		if errors.Is(err, errBusy) {
			err = gaveUp(ctx, err)
		}
		return 0, fmt.Errorf("write %s: %w", shorten(w.key), err)
	}
}

func (b *bucket) putOnce(ctx context.Context, w write) (uint64, error) {
	m := b.message(w)
	if size, limit := int64(m.Size()-len(m.Subject)), b.maxPayload(); size > limit {
		return 0, snapshot.Errorf(snapshot.PayloadTooLarge, "a record of %d bytes is over the %d bytes that the NATS server takes in one message; raise its max_payload", size, limit).
			With("size", size).With("limit", limit)
	}
	r, err := b.request(ctx, m)
	if err != nil {
		return 0, err
	}
	var ack putReply
	if err := jsonv2.Unmarshal(r.Data, &ack); err != nil {
		return 0, fmt.Errorf("%w: decode the store's reply: %w", errLost, err)
	}
	if ack.Error != nil {
		return 0, refusal(ack.Error)
	}
	return ack.Sequence, nil
}

func (b *bucket) message(w write) *nats.Msg {
	m := nats.NewMsg(b.putPre + w.key)
	m.Data = w.value
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(w.expect, 10))
	if w.ttl > 0 {
		m.Header.Set(jetstream.MsgTTLHeader, w.ttl.String())
	}
	if w.remove {
		m.Header.Set("KV-Operation", removalMarkerID)
		m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	}
	return m
}

type purgeRequest struct {
	Filter string `json:"filter"`
	Below  uint64 `json:"seq"`
}

// purge removes what matches the pattern if its sequence is not above upTo. It
// leaves no marker: the sequence is 0 again. Sent again, or late, it removes
// nothing that is newer.
func (b *bucket) purge(ctx context.Context, pattern string, upTo uint64) error {
	if upTo == absent {
		return nil
	}
	body, err := json.Marshal(purgeRequest{Filter: b.pre + pattern, Below: upTo + 1})
	if err != nil {
		return err
	}
	m, err := b.request(ctx, &nats.Msg{Subject: b.delSubject, Data: body})
	if err == nil {
		var r struct {
			Error *jetstream.APIError `json:"error"`
		}
		if err = jsonv2.Unmarshal(m.Data, &r); r.Error != nil {
			err = refusal(r.Error)
		}
	}
	if errors.Is(err, errBusy) {
		err = gaveUp(ctx, err)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", shorten(pattern), err)
	}
	return nil
}

// request sends one message within the time of one call and translates the
// client's errors.
func (b *bucket) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, b.limits.call)
	defer cancel()
	began := time.Now()
	r, err := b.conn.RequestMsgWithContext(ctx, m)
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("%w: %w", errBusy, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return nil, snapshot.Errorf(snapshot.PayloadTooLarge, "a record of %d bytes is over what the NATS server takes in one message; raise its max_payload", len(m.Data)).Because(err)
	}
	return nil, b.silent(began, fmt.Errorf("%w: %w", errLost, err))
}

// silent marks a lost reply that was waited for long enough.
func (b *bucket) silent(since time.Time, err error) error {
	if errors.Is(err, errLost) && !errors.Is(err, errSilent) && time.Since(since) >= b.limits.silence {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return err
}

// refusal translates a definite answer of the server.
func refusal(e *jetstream.APIError) error {
	switch e.ErrorCode {
	case 10071, 10164: // wrong last sequence; the second: another write of the key is in flight
		return fmt.Errorf("%w: %w", errMoved, e)
	case 10077: // maximum bytes
		return snapshot.Errorf(snapshot.StoreFull, "the state bucket takes no more bytes; raise its limit with \"agent init\" or delete threads that are not needed").Because(e)
	case 10023, 10047, 10028, 10002: // resources of server and account
		return snapshot.Errorf(snapshot.StoreFull, "the servers have no room for another write; give them more storage: deleting checkpoints frees no contents").Because(e)
	case 10054:
		return snapshot.Errorf(snapshot.PayloadTooLarge, "the record is larger than the state bucket takes; raise the bucket's maximum value size").Because(e)
	case 10004, 10005, 10006, 10007, 10008, 10009, 10010, 10118, 10167: // too few servers yet, no leader, offline, too many requests
		return fmt.Errorf("%w: %w", errBusy, e)
	case 10074:
		return snapshot.Errorf(snapshot.BadRequest, "a server without a cluster keeps no replicas; start the cluster, or give --replicas 1").Because(e)
	case 10059:
		return snapshot.Errorf(snapshot.StoreUnavailable, "the state bucket is gone; run `agent init`").Because(e)
	case 10035, 10039, 10076:
		return snapshot.Errorf(snapshot.StoreUnavailable, "JetStream is not enabled for this connection; enable it for the account").Because(e)
	}
	return snapshot.Errorf(snapshot.Internal, "the store refused a request").Because(e)
}

// gaveUp is the error of a call that got no answer. The caller's own end
// counts, unless the store was known to be away, or said nothing until the time
// was over.
func gaveUp(ctx context.Context, last error) error {
	away := errors.Is(last, errBusy) || errors.Is(last, errSilent) && errors.Is(ctx.Err(), context.DeadlineExceeded)
	if ctx.Err() != nil && !away {
		return ended(ctx)
	}
	return snapshot.Errorf(snapshot.StoreUnavailable, "the store does not answer; check the NATS servers and the space on their disks, and send the request again").Because(errors.New(last.Error())) // the answer is final: last must not match any more
}

// ended tells why a context is over.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", cause, ctx.Err())
	}
	return ctx.Err()
}

// pause waits before another try, longer each time, with jitter; it fails when
// the context is over.
func pause(ctx context.Context, try int) error {
	d := time.Millisecond << min(try, 8)
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shorten keeps long keys out of error texts.
func shorten(key string) string {
	if len(key) > 80 {
		return key[:80] + "…"
	}
	return key
}
