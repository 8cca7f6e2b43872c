package objstore

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	callTimeout = 5 * time.Second        // one request to the server
	silence     = 2 * time.Second        // without a reply after which the server is to blame, not the time that was given
	patience    = 20 * time.Second       // without any answer, through a leader election
	firstWait   = 20 * time.Millisecond  // before a second try
	lastWait    = 500 * time.Millisecond // between later tries
)

// api speaks JetStream's request protocol. Reads marked "leader" are answered
// by the stream's leader and see every acknowledged write.
type api struct {
	nc      *nats.Conn
	prefix  string // "$JS.API." or that of a domain
	request func(context.Context, *nats.Msg) (*nats.Msg, error)
}

func newAPI(js jetstream.JetStream) api {
	prefix := "$JS.API."
	switch o := js.Options(); {
	case o.Domain != "":
		prefix = "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		prefix = o.APIPrefix
	}
	if prefix[len(prefix)-1] != '.' {
		prefix += "."
	}
	return api{nc: js.Conn(), prefix: prefix, request: js.Conn().RequestMsgWithContext}
}

func streamName(bucket string) string { return "OBJ_" + bucket }

func chunkSubject(bucket, nuid string) string { return "$O." + bucket + ".C." + nuid }

func infoSubject(bucket, name string) string {
	return "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// send makes one request. Without a reply the error is errUnknown, or that of
// ctx when its time is over.
func (a api) send(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	reply, err := a.request(limited, msg)
	if err == nil {
		return reply, nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && time.Since(began) >= silence {
		return nil, silent(err)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, fromClient(err)
}

// call asks the API about a bucket's stream, until it gets an answer.
func (a api) call(ctx context.Context, op, bucket string, req, resp any) error {
	body, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("encode %s request: %w", op, err)
	}
	return persist(ctx, func() error {
		msg := nats.NewMsg(a.prefix + op + "." + streamName(bucket))
		msg.Data = body
		reply, err := a.send(ctx, msg)
		if err != nil {
			return err
		}
		return decodeReply(bucket, reply.Data, resp)
	})
}

func decodeReply(bucket string, data []byte, resp any) error {
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(data, &failed); err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	if failed.Error != nil {
		return fromAPI(bucket, failed.Error)
	}
	if err := json.Unmarshal(data, resp); err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	return nil
}

// stored is a message as the leader has it.
type stored struct {
	Seq  uint64 `json:"seq"`
	Data []byte `json:"data"`
}

// last reads the newest message of a subject from the leader; nil if none.
func (a api) last(ctx context.Context, bucket, subject string) (*stored, error) {
	return a.message(ctx, bucket, map[string]any{"last_by_subj": subject})
}

// next reads the first message of a subject at or after seq from the leader.
func (a api) next(ctx context.Context, bucket, subject string, seq uint64) (*stored, error) {
	return a.message(ctx, bucket, map[string]any{"next_by_subj": subject, "seq": max(seq, 1)})
}

func (a api) message(ctx context.Context, bucket string, req any) (*stored, error) {
	var resp struct {
		Message *stored `json:"message"`
	}
	err := a.call(ctx, "STREAM.MSG.GET", bucket, req, &resp)
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	return resp.Message, err
}

// count asks the leader how many messages a subject has.
func (a api) count(ctx context.Context, bucket, subject string) (int, error) {
	var resp struct {
		State struct {
			Subjects map[string]int `json:"subjects"`
		} `json:"state"`
	}
	err := a.call(ctx, "STREAM.INFO", bucket, map[string]any{"subjects_filter": subject}, &resp)
	return resp.State.Subjects[subject], err
}

// purge removes the subject's messages below seq.
func (a api) purge(ctx context.Context, bucket, subject string, seq uint64) error {
	var resp struct{}
	return a.call(ctx, "STREAM.PURGE", bucket, map[string]any{"filter": subject, "seq": seq}, &resp)
}

// remove deletes one message; one that is gone already is fine.
func (a api) remove(ctx context.Context, bucket string, seq uint64) error {
	var resp struct{}
	err := a.call(ctx, "STREAM.MSG.DELETE", bucket, map[string]any{"seq": seq, "no_erase": true}, &resp)
	if errors.Is(err, errAbsent) {
		return nil
	}
	return err
}

// guard is the condition of a write: the last sequence of a subject, 0 for none.
type guard struct {
	subject string
	seq     uint64
}

// publish writes one message if its guard holds: errMoved if not, errUnknown
// if there was no answer. It never sends twice.
func (a api) publish(ctx context.Context, bucket string, msg *nats.Msg, g guard) (uint64, error) {
	msg.Header.Set(jetstream.ExpectedStreamHeader, streamName(bucket))
	msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(g.seq, 10))
	if g.subject != msg.Subject {
		msg.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, g.subject)
	}
	reply, err := a.send(ctx, msg)
	if err != nil {
		return 0, err
	}
	var ack struct {
		Seq uint64 `json:"seq"`
	}
	if err := decodeReply(bucket, reply.Data, &ack); err != nil {
		return 0, err
	}
	if ack.Seq == 0 {
		return 0, fmt.Errorf("%w: the acknowledgement has no sequence", errUnknown)
	}
	return ack.Seq, nil
}
